"""Alerts, rules and panels ask for what /metrics tells; each alert has its command and its place in the guide."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import trio
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fairq.cli.app import commands
from tests.server.conftest import server_store
from tests.server.harness import OPERATOR, WORKER, Refused, raw, running, tenant

__all__ = ["server_store"]

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
DOCS = DEPLOY.parent / "fairq" / "docs"
GUIDE = DOCS / "monitoring.md"
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
RULES = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"][0]["rules"]
DASHBOARD: dict[str, Any] = orjson.loads((DEPLOY / "grafana" / "dashboards" / "fairq.json").read_bytes())
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
OF_PROMETHEUS = {"up": {"job", "instance"}}  # what it adds itself
TARGET = {"job", "instance"}


def asked() -> Iterator[tuple[str, str]]:
    """Name every expression: that of an alert, of a rule, of a panel, of the chart's autoscaler."""
    yield from ((alert["alert"], alert["expr"]) for alert in ALERTS)
    yield from ((rule["record"], rule["expr"]) for rule in RULES)
    yield from ((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"])
    chart = (DEPLOY / "helm" / "fairq" / "templates" / "workers.yaml").read_text()
    yield from (("autoscaler", query.replace("{{ .queue }}", "emails")) for query in re.findall("query: (.*)", chart))


EXPRESSIONS = list(asked())


async def page_of(store: str) -> str:
    """Read /metrics of a server that has queues, workers, and has refused something."""
    with trio.fail_after(30):
        async with (
            running(store, metrics_port=0) as served,
            raw(served, tenant("ada")) as ada,
            raw(served, tenant("bob")) as bob,
            raw(served, WORKER) as worker,
            raw(served, OPERATOR),
        ):
            await ada.enqueue("emails", ["a", "b"])
            await bob.enqueue("emails", ["a", "b"])
            await worker.attach("emails", credit=1)
            for _ in range(2):  # service while both have tasks
                await worker.settle("emails", "ack", *await worker.pushed(1))
            await worker.pushed(1)
            with pytest.raises(Refused):
                await ada.ask("enqueue", queue="No", tasks=[])
            await served.app.recorder.flush()
            assert served.metrics is not None
            async with httpx.AsyncClient(timeout=20) as client:
                answer = await client.get(f"http://{served.metrics.host}:{served.metrics.port}/metrics")
    return answer.text


async def test_alerts_rules_and_panels_ask_for_what_is_reported(server_store: str) -> None:
    found: dict[str, set[str]] = dict(OF_PROMETHEUS)
    for family in text_string_to_metric_families(await page_of(server_store)):
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels, TARGET)
    recorded = {rule["record"]: {"queue", "tenant", "code"} for rule in RULES}
    for where, expression in EXPRESSIONS:
        bare = re.sub(r'"[^"]*"', '""', expression)
        names = re.findall(r"\b((?:fairq|process)[a-z_:0-9]*|up)\b(?!=)(\{[^}]*\})?", re.sub(r"\[[^]]*\]", "", bare))
        assert names, (where, expression)
        for name, labels in names:
            assert name in found or name in recorded, f"{where}: nothing tells {name}"
            used = set(re.findall(r"([a-z_]+)\s*[=!]~?", labels))
            assert used <= (found.get(name) or recorded[name]), f"{where}: {name} has no {used}"


def test_each_alert_says_how_bad_it_is_and_which_command_answers_it() -> None:
    known, guide = {*commands()}, GUIDE.read_text()
    for alert in ALERTS:
        name, notes = alert["alert"], alert["annotations"]
        assert re.fullmatch("Fairq([A-Z][a-z]+)+", name)
        assert alert["labels"]["severity"] in ("critical", "warning", "info"), name
        assert notes.keys() == {"summary", "command", "runbook"}, name
        for words in (each.split() for each in re.split("[;|]", notes["command"])):
            assert words[0] != "fairq" or words[1] in known, words
        assert notes["runbook"] == "fairq/docs/monitoring.md#alerts", name
        row = re.search(rf"^\| `{name}` \|.*\|$", guide, re.MULTILINE)
        assert row, f"the guide does not tell what to do at {name}"
        for command in notes["command"].split("; "):
            named = command.replace("{{ $labels.queue }}", "QUEUE").replace("{{ $labels.tenant }}", "TENANT")
            assert named in row[0].replace("\\|", "|"), command


def test_the_guide_tells_of_no_other_alert() -> None:
    assert set(re.findall(r"^\| `(Fairq\w+)`", GUIDE.read_text(), re.MULTILINE)) == {each["alert"] for each in ALERTS}


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    provisioning = DEPLOY / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    assert (source["uid"], source["type"]) == ("prometheus", "prometheus")
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "fairq.yaml").read_text())["providers"]
    grafana = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["grafana"]
    assert f"./grafana/dashboards:{provider['options']['path']}:ro" in grafana["volumes"]


def test_each_outage_drill_of_the_guide_is_carried_out_by_the_suite() -> None:
    drills = (DOCS / "recovery.md").read_text().partition("## Outage drills")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(test_\w+)`", drills))
    assert len(named) > 8
    text = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py") if path != Path(__file__))
    assert [name for name in named if f"def {name}(" not in text] == []
