"""Tasks of a Celery project run through fairq, as they are."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("celery")

import fairq.celery
import fairq.sync
from tests.celery.conftest import get, wait_for, worker

pytestmark = [pytest.mark.deep("frameworks"), pytest.mark.usefixtures("working")]


def test_a_task_runs_for_the_tenant_of_its_header(shop: Any, acme: fairq.sync.Client) -> None:
    sent = shop.seen.apply_async(headers={"tenant": "acme"})
    assert get(sent) == {"tenant": "acme", "retries": 0, "redelivered": False, "eta": None}
    assert acme.wait_task("celery", sent.id, timeout=30)["state"] == "done"


def test_a_block_names_the_tenant_of_what_it_sends_and_a_header_is_stronger(shop: Any) -> None:
    with fairq.celery.tenant("acme"):
        inside, named = shop.seen.delay(), shop.seen.apply_async(headers={"tenant": "bob"})
    assert (get(inside)["tenant"], get(named)["tenant"]) == ("acme", "bob")


def test_what_a_task_sends_is_of_its_tenant(shop: Any) -> None:
    from celery import chain, chord

    with fairq.celery.tenant("acme"):
        assert get(chain(shop.add.s(1, 2), shop.seen.si())())["tenant"] == "acme"
        assert get(chord([shop.add.s(n, n) for n in range(4)], shop.total.s())()) == 12
        assert get(shop.unsure.delay()) == [2, "acme"]


def test_a_task_that_replaces_itself_is_run_under_its_own_id(shop: Any) -> None:
    with fairq.celery.tenant("acme"):
        assert get(shop.replaced.delay()) == 7
        assert get(shop.replaced_by_chain.delay()) == [2, "acme"]


def test_a_route_names_the_queue(shop: Any, acme: fairq.sync.Client) -> None:
    with fairq.celery.tenant("acme"):
        sent = shop.mail.delay("ada")
    assert get(sent) == "sent to ada"
    assert acme.wait_task("emails", sent.id, timeout=30)["state"] == "done"


@pytest.mark.parametrize("data", [b"\xff\x00" * 50, b"x" * 100_000], ids=["bytes", "long"])
def test_arguments_need_not_be_text(shop: Any, data: bytes) -> None:
    with fairq.celery.tenant("acme"):
        assert get(shop.size.apply_async((data,), serializer="pickle", compression="zlib")) == len(data)
        assert get(shop.size.apply_async((data,), serializer="pickle")) == len(data)


def test_a_coroutine_may_send_a_task_as_with_other_brokers(shop: Any) -> None:
    async def send() -> Any:
        with fairq.celery.tenant("acme"):
            return shop.add.delay(1, 2)

    assert get(asyncio.run(send())) == 3


def test_an_id_that_is_used_again_is_another_task_as_with_other_brokers(shop: Any, tmp_path: Path) -> None:
    from celery import chord

    marks = tmp_path / "marks"
    frozen = chord([shop.add.s(1, 2), shop.add.s(3, 4)], shop.marked.si(str(marks)))
    frozen.freeze()
    with fairq.celery.tenant("acme"):
        for _ in range(2):
            shop.marked.apply_async((str(marks),), task_id="order 17, paid")  # no id of fairq's
        wait_for(lambda: marks.exists() and marks.read_text() == "xx")
        for _ in range(2):
            frozen.apply_async()
        wait_for(lambda: marks.read_text() == "xxxx")


def test_a_message_that_kombu_sends_again_is_one_task(shop: Any, tmp_path: Path, acme: fairq.sync.Client) -> None:
    with fairq.celery.tenant("acme"), shop.app.producer_or_acquire() as producer:
        properties = {"correlation_id": "x", "delivery_info": {}}
        channel = producer.channel
        channel.queue_declare("repeated")
        for _ in range(2):  # as after an error, with the properties as they are
            message = channel.prepare_message("{}", 0, "application/json", "utf-8", {"id": "one"}, properties)
            channel.basic_publish(message, "", "repeated")
    assert [task.id for task in acme.peek("repeated")] == ["one"]


def test_a_project_with_nothing_but_settings_names_the_transport(shop: Any, variables: dict[str, str]) -> None:
    named = variables | {"SHOP_TRANSPORT": "fairq.celery:Transport"}
    with worker(named, "-n", "named@%h", "-Q", "other"), fairq.celery.tenant("acme"):
        assert get(shop.seen.apply_async(queue="other"))["tenant"] == "acme"
