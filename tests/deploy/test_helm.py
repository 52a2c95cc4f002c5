"""The chart: Helm itself renders it; what it makes is whole, hardened, and has settings that exist."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import yaml

from fairq.server.settings import Settings, load_settings
from tests.deploy.test_deploy import GIVE_BACK_S

pytestmark = pytest.mark.deep("image")

CHART = Path(__file__).resolve().parents[2] / "deploy" / "helm" / "fairq"
WORKER = {"name": "emails", "image": "emails:1", "app": "jobs:app", "tokenSecret": "fairq-worker"}
ZERO = {"minReplicas": 0}
KEDA = {"enabled": True, "prometheus": "http://prometheus:9090", "queue": "emails", "oldestSeconds": 20}
EVERYTHING: dict[str, Any] = {
    "ingress": {"enabled": True}, "autoscaling": {"enabled": True}, "serviceMonitor": {"enabled": True},
    "tlsSecret": "tls", "workers": [{**WORKER, "keda": KEDA}, {**WORKER, "name": "plain", "replicas": 3}],
}  # fmt: skip


def rendered(values: dict[str, Any] | None = None, name: str = "demo") -> list[dict[str, Any]]:
    """Render the chart; returns its objects."""
    import helm_python as helm  # here and below: runs of other parts do without it

    with helm.Chart.load(str(CHART)) as chart:
        chart.validate_schema(chart.merge_values(values or {}))
        texts = chart.render(values or {}, name=name, namespace="prod").values()
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def of_kind(objects: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] == kind]


def containers(objects: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """All pods' specs with their containers."""
    for each in of_kind(objects, "Deployment"):
        pod = each["spec"]["template"]["spec"]
        yield from ((pod, container) for container in pod["containers"])


def test_helm_finds_no_fault() -> None:
    import helm_python as helm

    found = helm.lint(str(CHART))
    assert found["errors"] == []
    assert {each["error"] for each in found["messages"]} <= {"icon is recommended"}


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_objects_are_named_and_selected_as_they_are_labelled(values: dict[str, Any]) -> None:
    objects = rendered(values)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for _, name in names)
    for each in of_kind(objects, "Deployment"):
        chosen = each["spec"]["selector"]["matchLabels"].items()
        assert chosen <= each["spec"]["template"]["metadata"]["labels"].items()
    (server,) = (each for each in of_kind(objects, "Deployment") if each["metadata"]["name"] == "demo")
    for each in of_kind(objects, "Service"):
        assert each["spec"]["selector"].items() <= server["spec"]["template"]["metadata"]["labels"].items()
    for worker in (each for each in of_kind(objects, "Deployment") if each is not server):
        labels = worker["spec"]["template"]["metadata"]["labels"].items()
        assert not server["spec"]["selector"]["matchLabels"].items() <= labels


@pytest.mark.parametrize("values", [{}, EVERYTHING], ids=["defaults", "everything"])
def test_pods_are_hardened_and_outlast_the_grace(values: dict[str, Any]) -> None:
    for pod, container in containers(rendered(values)):
        assert pod["terminationGracePeriodSeconds"] >= 30 + GIVE_BACK_S
        assert pod["automountServiceAccountToken"] is False
        assert pod["enableServiceLinks"] is False, "FAIRQ_PORT would be a URL"
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}


def test_settings_of_the_servers_exist_and_are_valid() -> None:
    known = {f"FAIRQ_{setting.name.upper()}" for setting in attrs.fields(Settings)}
    for values in ({}, EVERYTHING, {"settings": {"http_cors_origins": ["https://a", "https://b"]}}):
        pod, container = next(containers(rendered(values)))
        environment = {each["name"]: each["value"] for each in container["env"]}
        assert environment.keys() <= known
        settings = load_settings(None, environment | {"FAIRQ_HOST": "0.0.0.0", "FAIRQ_STORE": "redis://x"}, {})
        assert settings.admin_address == ("0.0.0.0", 7702)
        assert (settings.tls_cert is not None) == ("tlsSecret" in values)
        assert pod["containers"][0]["envFrom"] == [{"secretRef": {"name": "fairq-store"}}]


def test_probes_ask_readiness_of_the_store_and_life_of_the_process_alone() -> None:
    _, container = next(containers(rendered()))
    paths = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
    assert paths == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/livez"}
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert ports == {"ws": 7700, "http": 7701, "admin": 7702}


def test_large_numbers_stay_whole_numbers() -> None:
    given = {"max_payload_bytes": 4_194_304, "bytes_per_second": 134_217_728}
    _, container = next(containers(rendered({"settings": given})))
    environment = {each["name"]: each["value"] for each in container["env"]}
    assert {name: environment[f"FAIRQ_{name.upper()}"] for name in given} == {n: str(v) for n, v in given.items()}


def test_a_start_may_take_as_long_as_it_is_given() -> None:
    for values, seconds in (({}, 300), ({"startupSeconds": 3601}, 3601)):
        _, container = next(containers(rendered(values)))
        probe = container["startupProbe"]
        assert seconds <= probe["periodSeconds"] * probe["failureThreshold"] <= seconds + 1


def test_operators_are_not_on_the_ingress() -> None:
    objects = rendered(EVERYTHING)
    (ingress,) = of_kind(objects, "Ingress")
    ports = {path["backend"]["service"]["port"]["name"] for path in ingress["spec"]["rules"][0]["http"]["paths"]}
    assert ports == {"ws", "http"}
    (monitor,) = of_kind(objects, "ServiceMonitor")
    (admin,) = (each for each in of_kind(objects, "Service") if each["metadata"]["name"].endswith("-admin"))
    assert monitor["spec"]["selector"]["matchLabels"].items() <= admin["metadata"]["labels"].items()


def test_workers_scale_by_wait_backlog_and_load() -> None:
    objects = rendered(EVERYTHING)
    (scaled,) = of_kind(objects, "ScaledObject")
    assert [(each["metricType"], each["metadata"]["threshold"]) for each in scaled["spec"]["triggers"]] == [
        ("Value", "20"), ("AverageValue", "100"), ("Value", "80"),
    ]  # fmt: skip
    (target,) = (each for each in of_kind(objects, "Deployment") if each["metadata"]["name"].endswith("-emails"))
    assert "replicas" not in target["spec"]
    assert scaled["spec"]["scaleTargetRef"]["name"] == target["metadata"]["name"]


def test_zero_is_a_number() -> None:
    objects = rendered({"workers": [{**WORKER, "replicas": 0, "name": "off"}, {**WORKER, "keda": KEDA | ZERO}]})
    (off,) = (each for each in of_kind(objects, "Deployment") if each["metadata"]["name"].endswith("-off"))
    assert off["spec"]["replicas"] == 0
    (scaled,) = of_kind(objects, "ScaledObject")
    assert scaled["spec"]["minReplicaCount"] == 0


def test_disruptions_leave_a_server_and_rolls_take_none_away() -> None:
    objects = rendered(EVERYTHING)
    (budget,) = of_kind(objects, "PodDisruptionBudget")
    assert budget["spec"]["minAvailable"] == 1
    (server,) = (each for each in of_kind(objects, "Deployment") if each["metadata"]["name"] == "demo")
    assert server["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    (scaler,) = of_kind(objects, "HorizontalPodAutoscaler")
    assert scaler["spec"]["scaleTargetRef"]["name"] == "demo"


WRONG: list[dict[str, Any]] = [
    {"replicas": 0}, {"replica": 2}, {"storeSecret": ""}, {"grace": -1}, {"workers": [{"name": "x"}]},
    {"workers": [{**WORKER, "name": "No Name"}]}, {"workers": [{**WORKER, "app": "jobs"}]},
    {"image": {"pullPolicy": "Sometimes"}}, {"settings": {"log_jsn": True}}, {"settings": {"port": 1}},
    {"ingress": {"hosts": []}}, {"service": {"type": "Headless"}}, {"autoscaling": {"maxReplicas": 0}},
    {"podDisruptionBudget": {"minAvailable": "most"}}, {"serviceMonitor": {"interval": "often"}},
    *({"workers": [{**WORKER, "keda": KEDA | wrong}]} for wrong in (
        {"queue": ""}, {"queue": 'a"b'}, {"maxReplica": 3}, {"oldestSeconds": 0}, {"minReplicas": -1},
        {"busyPercent": 0},
    )),
    *({"workers": [{**WORKER, "keda": {key: KEDA[key] for key in KEDA if key != left_out}}]}
      for left_out in ("queue", "prometheus")),
]  # fmt: skip


def test_wrong_values_are_refused() -> None:
    for wrong in WRONG:
        with pytest.raises(Exception, match=r"schema|at '|additional|missing"):
            rendered(wrong)


def test_the_schema_knows_the_settings_that_the_chart_leaves_to_its_user() -> None:
    """The chart itself gives the others, or they are the image's."""
    settings = json.loads((CHART / "values.schema.json").read_text())["properties"]["settings"]
    own = {
        "host",
        "port",
        "admin_host",
        "admin_port",
        "store",
        "data_dir",
        "fsync",
        "tls_cert",
        "tls_key",
        "grace",
        "dev",
    }
    assert {*settings["propertyNames"]["enum"]} == {setting.name for setting in attrs.fields(Settings)} - own
