"""fairq.django with SQLite, in this process: connections, on_commit, the outbox and its relay, the worker's command."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

import fairq.sync
from tests.cli.harness import python, read_until, started

pytestmark = pytest.mark.deep("frameworks")  # they need more packages: the extra `frameworks`

SETTINGS = "tests.frameworks.shop.settings"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Django in this process, with its tables; gives its variables."""
    variables = {
        "SHOP_DATABASE": str(tmp_path_factory.mktemp("shop") / "shop.sqlite3"),
        "DJANGO_SETTINGS_MODULE": SETTINGS,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", run_syncdb=True, verbosity=0)
        yield variables


@pytest.fixture
def web(project: dict[str, str], shop: fairq.sync.Client) -> Iterator[fairq.sync.Client]:
    """The project's own client; its tables are empty."""
    from django.db import connection

    import fairq.django
    from fairq.django.models import OutboxTask

    from .shop.models import Order

    for model in (OutboxTask, Order):
        model.objects.all().delete()
    with closing(fairq.django.client()) as client:
        yield client
    fairq.django.client.cache_clear()
    connection.close()


def order(number: str, query: str = "") -> int:
    """Post an order."""
    from django.test import Client

    return int(Client().post(f"/orders/{number}{query}").status_code)


def known(client: fairq.sync.Client, *ids: str) -> set[str]:
    """Name those of these tasks that the service has."""
    return {task.id for task in client.tasks("orders", ids) if task.state != "unknown"}


def test_on_commit_enqueues_what_was_committed_and_nothing_else(web: fairq.sync.Client) -> None:
    from .shop.models import Order

    assert order("django-1") == 202
    with pytest.raises(ValueError, match="the card was refused"):
        order("refused-1")
    assert known(web, "django-1", "refused-1") == {"django-1"}
    assert [*Order.objects.values_list("number", flat=True)] == ["django-1"]


def test_a_payload_that_cannot_be_enqueued_is_refused_inside_the_transaction(web: fairq.sync.Client) -> None:
    from django.db import transaction

    from fairq.django import enqueue_by_outbox, enqueue_on_commit

    from .shop.models import Order

    def take(enqueue: Any, payload: Any, options: Any) -> None:
        with transaction.atomic():
            Order.objects.create(number="bad")
            enqueue("orders", payload, **options)

    for enqueue in (enqueue_on_commit, enqueue_by_outbox):
        for error, payload, options in (
            (fairq.BadRequest, object(), {}),
            (fairq.TooLarge, "x" * 1_100_000, {}),
            (fairq.BadRequest, 1, {"priority": 1_000}),
            (TypeError, 1, {"prio": 1}),
        ):
            with pytest.raises(error):
                take(enqueue, payload, options)
    assert not Order.objects.exists()


def test_the_outbox_is_sent_when_it_was_committed_and_its_rows_are_deleted(web: fairq.sync.Client) -> None:
    from fairq.django.models import OutboxTask
    from fairq.django.relay import MOST_ROWS, send_due

    count = MOST_ROWS + 20
    numbers = [f"outbox-{n}" for n in range(count)]
    assert {order(number, "?outbox") for number in numbers} == {202}
    with pytest.raises(ValueError, match="the card was refused"):
        order("refused-2", "?outbox")
    assert known(web, *numbers, "refused-2") == set()
    assert [send_due(web, "default") for _ in range(3)] == [MOST_ROWS, 20, 0]
    assert known(web, *numbers, "refused-2") == set(numbers)
    assert not OutboxTask.objects.exists()


def test_options_pass_through_the_outbox_and_times_count_from_the_commit(web: fairq.sync.Client) -> None:
    from fairq.django import enqueue_by_outbox
    from fairq.django.models import OutboxTask
    from fairq.django.relay import send_due

    id = enqueue_by_outbox("orders", {"text": "ü\u0000"}, delay=3600, expires_in=7200, priority=3, name="n", group="g")
    options = OutboxTask.objects.get().options
    assert options["expires_at_ms"] - options["start_at_ms"] == 3_600_000
    send_due(web, "default")
    (task,) = web.tasks("orders", [id])
    assert task.state == "delayed"


def test_a_task_that_is_refused_is_in_no_ones_way_and_says_why(web: fairq.sync.Client) -> None:
    from django.utils import timezone

    from fairq.django import enqueue_by_outbox
    from fairq.django.models import OutboxTask
    from fairq.django.relay import send_due

    enqueue_by_outbox("orders", 1, id="no-batch", batch="unknown")
    enqueue_by_outbox("orders", 1, id="too-late", expires_at=1)
    enqueue_by_outbox("orders", 1, id="tenant", tenant="globex")
    refused = {"no-batch", "too-late", "globex/tenant", "long", "newer", "no-json", "no-id"}
    for id, payload, options in (
        ("long", '"' + "x" * 17_000_000 + '"', {}),
        ("newer", "1", {"unheard_of": 1}),
        ("no-json", "{", {}),
        ("no-id", "1", {}),
    ):
        OutboxTask.objects.create(
            queue="orders", task_id="no id" if id == "no-id" else id, payload=payload, options=options
        )
    assert order("good-1", "?outbox") == 202
    began, rows = timezone.now(), OutboxTask.objects.count()
    assert send_due(web, "default") == rows
    assert known(web, "good-1") == {"good-1"}
    found = {row.task_id: row.error for row in OutboxTask.objects.all()}
    assert found.keys() == {"no id" if id == "no-id" else id for id in refused}, found
    assert all(found.values()), found
    assert not OutboxTask.objects.filter(send_at__lt=began + timedelta(seconds=2)).exists()  # each is tried again later
    OutboxTask.objects.update(send_at=timezone.now())
    assert order("good-2", "?outbox") == 202
    send_due(web, "default")
    assert known(web, "good-2") == {"good-2"}
    assert {*OutboxTask.objects.values_list("refusals", flat=True)} == {2}


def test_a_relay_killed_before_it_deletes_makes_no_second_task(
    web: fairq.sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.db.models.query import QuerySet

    from fairq.django.models import OutboxTask
    from fairq.django.relay import send_due

    assert order("killed", "?outbox") == 202

    def kill(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(QuerySet, "delete", kill)
        with pytest.raises(KeyboardInterrupt):
            send_due(web, "default")
    assert known(web, "killed") == {"killed"}
    assert OutboxTask.objects.count() == 1
    before = len(web.peek("orders", 500))
    assert send_due(web, "default") == 1
    assert len(web.peek("orders", 500)) == before
    assert not OutboxTask.objects.exists()


def test_with_the_server_away_an_order_is_committed_and_its_task_waits(web: fairq.sync.Client) -> None:
    from fairq.django.models import OutboxTask
    from fairq.django.relay import send_due

    assert order("away", "?outbox") == 202
    with fairq.sync.open_client("ws://127.0.0.1:1", token="t", timeout=0.1) as none, pytest.raises(fairq.Unavailable):
        send_due(none, "default")
    assert [(row.task_id, row.refusals) for row in OutboxTask.objects.all()] == [("away", 0)]
    assert send_due(web, "default") == 1
    assert known(web, "away") == {"away"}


def test_a_handler_that_leaves_a_transaction_open_fails_and_the_next_one_is_outside(
    web: fairq.sync.Client, project: dict[str, str], url: str
) -> None:
    from .shop.models import Order

    Order.objects.create(number="careless")
    variables = project | {"FAIRQ_URL": url, "FAIRQ_TOKEN": "dev-worker"}
    task = web.enqueue("orders", {"order": "careless"}, name="careless", result_ttl=60)
    with started("fairq_worker", "-c", "1", extra=variables, module="django") as worker:
        read_until(worker, "TransactionLeftOpen")
        assert task.result(timeout=60) is False
    assert Order.objects.get().done == 1  # the first attempt's was rolled back


def test_async_handlers_use_the_database_too(web: fairq.sync.Client, project: dict[str, str], url: str) -> None:
    from .shop.models import Order

    Order.objects.create(number="async")
    variables = project | {"FAIRQ_URL": url, "FAIRQ_TOKEN": "dev-worker"}
    task = web.enqueue("orders", {"order": "async"}, name="async", result_ttl=60)
    with started("fairq_worker", extra=variables, module="django"):
        assert task.result(timeout=60) == 1
    assert Order.objects.get().done == 1


def test_commands_say_in_a_line_what_is_wrong(project: dict[str, str], url: str) -> None:
    for command, variables, found in (
        (["fairq_worker", "nothing:app"], {}, "cannot find module 'nothing'"),
        (["fairq_worker"], {}, "missing token"),
        (["fairq_worker"], {"FAIRQ_TOKEN": "nonsense", "FAIRQ_URL": url}, "token"),
        (["fairq_relay"], {"FAIRQ_TOKEN": "two words"}, "invalid token"),
    ):
        if command == ["fairq_relay"]:
            from fairq.django import enqueue_by_outbox

            enqueue_by_outbox("orders", 1, id="waits")
        done = python("-m", "django", *command, env=project | variables)
        assert done.code, done
        assert found in done.err, done
        assert "Traceback" not in done.err, done


def edit_until(done: Event, module: Path, text: str) -> None:
    """Write a module again and again: Django's reloader sees no change that came ahead of its first look."""
    while not done.wait(1):
        module.write_text(text)


def test_the_worker_starts_again_when_code_changes(
    shop: fairq.sync.Client, project: dict[str, str], url: str, tmp_path: Path
) -> None:
    module = tmp_path / "edited_jobs.py"
    text = "import fairq\napp = fairq.Worker()\n\n@app.task('edited')\ndef tell(task):\n    return {}\n"
    module.write_text(text.format(1))
    variables = project | {"FAIRQ_URL": url, "FAIRQ_TOKEN": "dev-worker", "PYTHONDONTWRITEBYTECODE": "1"}
    variables["PYTHONPATH"] = f"{Path.cwd()}:{tmp_path}"
    with started("fairq_worker", "edited_jobs:app", "--reload", extra=variables, module="django") as worker:
        read_until(worker, "connected")
        assert shop.enqueue("edited", 1, result_ttl=60).result(timeout=60) == 1
        connected = Event()
        editor = Thread(target=edit_until, args=(connected, module, text.format(22)))
        editor.start()
        try:
            read_until(worker, "connected")
        finally:
            connected.set()
            editor.join()
        assert shop.enqueue("edited", 1, result_ttl=60).result(timeout=60) == 22


def test_settings_are_checked(project: dict[str, str]) -> None:
    from django.core.exceptions import ImproperlyConfigured
    from django.test import override_settings

    from fairq.django.conf import setting

    assert re.match(r"tests\.", setting("APP"))
    with override_settings(FAIRQ={"TOKEM": "x"}), pytest.raises(ImproperlyConfigured, match="TOKEM"):
        setting("TOKEN")
