"""Prometheus itself reads the rules, fires the alerts when it should, and scrapes a server."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import yaml

from tests import stores
from tests.parts import program
from tests.server.conftest import server_store
from tests.server.harness import WORKER, raw, running, tenant
from tests.server.web.http.harness import DEADLINE_S

from .test_watching import ALERTS, EXPRESSIONS, page_of
from .tools import DEPLOY, run

__all__ = ["server_store"]

pytestmark = pytest.mark.deep("deploy")

RULES = [DEPLOY / "prometheus" / name for name in ("rules.yml", "alerts.yml")]
# What each alert needs to fire: series, and their values at each minute.
READY = {'fairq_ready{instance="a"}': "1x60"}
QUEUE = 'queue="q",instance="a"'
OPEN = {f"fairq_queue_paused{{{QUEUE}}}": "0x60", f"fairq_queue_closed{{{QUEUE}}}": "0x60"}
BUSY = {'fairq_worker_credit{instance="a"}': "100x60", 'fairq_worker_leases{instance="a"}': "99x60"}
TENANT = f'tenant="ada",{QUEUE}'
FIRES: dict[str, dict[str, str]] = {
    "FairqServerDown": {'up{job="fairq",instance="a"}': "0x60"},
    "FairqNoServer": {'fairq_ready{instance="a"}': "0x60"},
    "FairqNotReady": {'fairq_ready{instance="a"}': "0x60", 'fairq_ready{instance="b"}': "1x60"},
    "FairqNoWorkers": {
        f'fairq_queue_tasks{{state="ready",{QUEUE}}}': "3x60", f"fairq_slots{{{QUEUE}}}": "0x60", **OPEN,
    },
    "FairqWorkersSilent": {f"fairq_workers_silent{{{QUEUE}}}": "1x60"},
    "FairqTasksWait": {
        f"fairq_oldest_ready_age_seconds{{{QUEUE}}}": "301+60x60", f"fairq_slots{{{QUEUE}}}": "5x60", **OPEN,
    },
    "FairqUnfair": {
        f"fairq_tenant_share_ratio{{{TENANT}}}": "0.4x60", f"fairq_tenant_ready{{{TENANT}}}": "3x60",
        f"fairq_tenant_noisy{{{TENANT}}}": "0x60", **OPEN,
    },
    "FairqSlotsBusy": {
        **BUSY, **OPEN,
        f'fairq_queue_tasks{{state="ready",{QUEUE}}}': "3x60",
    },
    "FairqDeadLetters": {
        f"fairq_tasks_dead_total{{{QUEUE}}}": "0+10x60", f"fairq_tasks_done_total{{{QUEUE}}}": "0+10x60",
    },
    "FairqRetries": {
        f"fairq_tasks_dispatched_total{{{QUEUE}}}": "0+60x60", f"fairq_tasks_retried_total{{{QUEUE}}}": "0+40x60",
    },
    "FairqExpired": {f"fairq_tasks_expired_total{{{QUEUE}}}": "0+5x60"},
    "FairqTickerLate": {'fairq_ticker_lag_seconds{instance="a"}': "3x60"},
    "FairqStoreSlow": {'fairq_store_rtt_seconds{instance="a"}': "0.3x60"},
    "FairqStoreAway": {
        f"fairq_queue_partitions_away{{{QUEUE}}}": "4x60", f"fairq_queue_unavailable{{{QUEUE}}}": "0x60",
    },
    "FairqStoreMemory": {
        'fairq_store_memory_bytes{node="n",instance="a"}': "90x60",
        'fairq_store_memory_limit_bytes{node="n",instance="a"}': "100x60",
    },
    "FairqStoreFull": {'fairq_refusals_total{code="store_full",instance="a"}': "0+1x60"},
    "FairqStoreEvicts": {'fairq_store_evicts{node="n",instance="a"}': "1x60"},
    "FairqStoreNotDurable": {'fairq_store_durable{node="n",instance="a"}': "0x60"},
    "FairqStoreClock": {'fairq_store_clock_ahead{instance="a"}': "1x60"},
    "FairqHistoryDropped": {'fairq_history_dropped_total{instance="a"}': "0+1x60"},
    "FairqInternalErrors": {'fairq_refusals_total{code="internal",instance="a"}': "0+1x60"},
    "FairqRefusals": {'fairq_refusals_total{code="forbidden",instance="a"}': "0+120x60"},
    "FairqFileHandles": {
        'process_open_fds{job="fairq",instance="a"}': "90x60", 'process_max_fds{job="fairq",instance="a"}': "100x60",
    },
    "FairqTooManyQueues": {'fairq_queues{instance="a"}': "201x60"},
}  # fmt: skip
FLOOD = {"share_ratio": 0.1, "ready": 900, "noisy": 1}
IDLE = {"share_ratio": 0.1, "ready": 0, "noisy": 0}
HELD_BACK = {  # tasks wait for hours in queues that are paused or closed, with workers or without
    f'{name}{{queue="{how}-{slots}",state="ready",instance="a"}}': f"{value}x60"
    for how in ("paused", "closed")
    for slots in (0, 5)
    for name, value in {
        "fairq_queue_tasks": 30, "fairq_oldest_ready_age_seconds": 40_000, "fairq_slots": slots,
        "fairq_queue_paused": int(how == "paused"), "fairq_queue_closed": int(how == "closed"),
    }.items()
}  # fmt: skip
WELL = {  # a good day: nothing fires
    'up{job="fairq",instance="a"}': "1x60",
    f'fairq_queue_tasks{{state="ready",{QUEUE}}}': "30x60", f"fairq_slots{{{QUEUE}}}": "10x60",
    **OPEN, f"fairq_oldest_ready_age_seconds{{{QUEUE}}}": "20x60",
    **HELD_BACK, f"fairq_workers_silent{{{QUEUE}}}": "0x60",
    'fairq_worker_credit{instance="a"}': "100x60", 'fairq_worker_leases{instance="a"}': "50x60",
    f"fairq_tasks_dead_total{{{QUEUE}}}": "0+1x60", f"fairq_tasks_done_total{{{QUEUE}}}": "0+1000x60",
    f"fairq_tasks_dispatched_total{{{QUEUE}}}": "0+1000x60", f"fairq_tasks_retried_total{{{QUEUE}}}": "0+40x60",
    f"fairq_queue_partitions_away{{{QUEUE}}}": "0x60", f"fairq_queue_unavailable{{{QUEUE}}}": "0x60",
    'fairq_store_memory_bytes{node="n",instance="a"}': "900x60",
    'fairq_store_memory_limit_bytes{node="n",instance="a"}': "0x60",
    f"fairq_tenant_share_ratio{{{TENANT}}}": "0.9x60", f"fairq_tenant_ready{{{TENANT}}}": "3x60",
    f"fairq_tenant_noisy{{{TENANT}}}": "0x60", 'fairq_history_dropped_total{instance="a"}': "7x60",
    **{f'fairq_tenant_{name}{{tenant="flood",{QUEUE}}}': f"{value}x60" for name, value in FLOOD.items()},
    **{f'fairq_tenant_{name}{{tenant="idle",{QUEUE}}}': f"{value}x60" for name, value in IDLE.items()},
    'fairq_store_evicts{node="n",instance="a"}': "0x60", 'fairq_store_durable{node="n",instance="a"}': "1x60",
    'fairq_refusals_total{code="not_found",instance="a"}': "0+3x60", 'fairq_queues{instance="a"}': "2x60",
}  # fmt: skip


def case(series: dict[str, str], fire: set[str]) -> dict[str, Any]:
    """A test of promtool: these series, and after an hour these alerts and no others."""
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": "50m",
                "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(fire)],
            }
        ],
    }


def test_promtool_accepts_rules_and_configuration(tmp_path: Path) -> None:
    for path in RULES:
        run("promtool", "check", "rules", path)
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    text = text.replace("/etc/prometheus/", f"{DEPLOY}/prometheus/").replace(
        f"{DEPLOY}/prometheus/secrets", str(tmp_path)
    )
    (tmp_path / "viewer-token").write_text("fq_viewer_x\n")
    (tmp_path / "prometheus.yml").write_text(text)
    run("promtool", "check", "config", tmp_path / "prometheus.yml")


def test_each_alert_fires_when_it_should_and_alone(tmp_path: Path) -> None:
    assert set(FIRES) == {alert["alert"] for alert in ALERTS}
    both = {"FairqNoServer": {"FairqNotReady"}}
    tests = [
        case(
            series if name in ("FairqNoServer", "FairqNotReady") else {**READY, **series},
            {name} | both.get(name, set()),
        )
        for name, series in FIRES.items()
    ]
    tests += [case({**READY, **WELL}, set()), case({**READY, **HELD_BACK, **BUSY}, set())]
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"rule_files": list(map(str, RULES)), "tests": tests}))
    run("promtool", "test", "rules", tmp_path / "test.yml")


async def test_promtool_finds_no_fault_in_the_metrics(server_store: str) -> None:
    lines = run("promtool", "check", "metrics", stdin=await page_of(server_store))
    assert "fairq" not in lines, lines


async def test_prometheus_scrapes_a_server_and_answers_all_alerts_and_panels(server_store: str, tmp_path: Path) -> None:
    async with (
        running(server_store, metrics_port=0) as served,
        raw(served, tenant("ada")) as ada,
        raw(served, WORKER) as worker,
    ):
        await ada.enqueue("emails", [f"t{n}" for n in range(5)])
        await worker.attach("emails", credit=2)
        await worker.pushed(2)
        assert served.metrics is not None
        config = {
            "global": {"scrape_interval": "200ms", "evaluation_interval": "200ms", "scrape_timeout": "200ms"},
            "rule_files": list(map(str, RULES)),
            "scrape_configs": [
                {"job_name": "fairq", "static_configs": [{"targets": [f"127.0.0.1:{served.metrics.port}"]}]}
            ],
        }
        (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
        port = stores.free_port()
        flags = [f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data", "--log.level=warn"]
        argv = [program("prometheus"), *flags, f"--web.listen-address=127.0.0.1:{port}"]
        process = await trio.lowlevel.open_process(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=DEADLINE_S) as client:
                await answer_all(client)
        finally:
            process.terminate()
            with trio.CancelScope(shield=True), trio.fail_after(20):
                await process.wait()


async def query(client: httpx.AsyncClient, expression: str) -> list[Any]:
    """Ask for an expression now."""
    answer = await client.get("/query", params={"query": expression})
    assert answer.status_code == 200, (expression, answer.text)
    found: list[Any] = answer.json()["data"]["result"]
    return found


async def answer_all(client: httpx.AsyncClient) -> None:
    """Wait until all has been scraped and evaluated, and ask for every expression."""
    until = time.monotonic() + DEADLINE_S
    while True:
        try:
            is_ready = (await client.get("/status/runtimeinfo")).status_code == 200  # 503 while it starts
            if is_ready and await query(client, "fairq:enqueued:rate5m"):
                break
        except httpx.TransportError:
            pass
        assert time.monotonic() < until, "nothing was scraped"
        await trio.sleep(0.1)
    for name, expression in EXPRESSIONS:
        asked = expression.replace("$__rate_interval", "1m").replace("$queue", ".*")
        assert await query(client, asked) or name != "autoscaler", f"{asked}: workers would never scale"
    assert (await query(client, 'fairq:ready_tasks{queue="emails"}'))[0]["value"][1] == "3"
    groups = (await client.get("/rules")).json()["data"]["groups"]
    assert [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"] == []
