"""What can be asked of a task has one table: NewTask. Whatever lists it elsewhere agrees with it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, cast, get_type_hints

import attrs
import pytest

import fairq
from fairq.model.limits import Limits
from fairq.model.option_tables import LimitOptions, SettingOptions, TaskOptions
from fairq.model.options import pack_options
from fairq.model.queues import QueueSettings
from fairq.model.rules import rules_of
from fairq.model.tasks import OPTIONS, RARE_COUNTS, RARE_OPTIONS, SCHEDULED, NewTask, ScheduledOptions
from fairq.store import library
from fairq.store.records import pack_options as pack_for_store
from tests.store.cases import case, raises_for

TRACE = f"00-{'1' * 32}-{'2' * 16}-01"
OF_TEXT = {"dedupe_key": "k", "batch": "b", "group": "g", "name": "n", "trace": TRACE}
GIVEN: dict[str, Any] = {name: OF_TEXT.get(name, 7) for name in OPTIONS} | {"events": True, "replace": True}


def task(**asked: Any) -> NewTask:
    """A task that asks for something."""
    return NewTask("a", b"1", **asked)


def test_the_store_packs_every_option() -> None:
    packed = library.formats()["OPTIONS"]
    fields = {field.name for field in (*packed.fields, *packed.later)} - {"more"}
    assert sorted(fields) == sorted(name.removesuffix("_ms") for name in OPTIONS)


def test_the_sdk_has_every_option() -> None:
    assert TaskOptions.__annotations__.keys() - {"dedupe_payload"} | {"trace"} == {
        name.removesuffix("_ms") for name in OPTIONS
    }
    assert pack_options({}) == tuple(OPTIONS.values())


def test_a_schedules_options_are_those_of_its_tasks() -> None:
    assert rules_of(ScheduledOptions) == {name: rules_of(NewTask)[name] for name in SCHEDULED}
    assert attrs.asdict(ScheduledOptions()) == {name: OPTIONS[name] for name in SCHEDULED}
    assert OPTIONS.keys() - SCHEDULED == {
        "delay_ms", "start_at_ms", "expires_at_ms", "batch", "replace", "name", "trace",
    }  # fmt: skip


def test_every_option_is_checked_by_its_name() -> None:
    for name, usual in OPTIONS.items():
        for wrong in (*((None,) if usual is not None else ()), -1, [], "\n", 1e300):
            with raises_for(name):
                task(**{name: wrong}).check()


@pytest.mark.parametrize("name", ["expires_in", "expires_at", "expires_after_start", "retry_base", "retry_cap"])
def test_a_time_without_which_there_is_none_is_never_0(name: str) -> None:
    """A deadline that has passed when it is computed is an error, and not the same as no deadline."""
    for wrong in (0, 0.0, 0.0004, -1, *(() if name == "expires_at" else (timedelta(0), timedelta(seconds=-1)))):
        with raises_for(name):
            pack_options(cast("TaskOptions", {name: wrong}))
    assert pack_options(cast("TaskOptions", {name: None})) == pack_options({})


def test_a_task_with_rare_options_counts_as_more() -> None:
    for name, given in GIVEN.items():
        assert task(**{name: given}).counts == (RARE_COUNTS if name in RARE_OPTIONS else 1), name


def test_every_option_reaches_the_store() -> None:
    usual = {name: 0 if default is None else default for name, default in OPTIONS.items()} | {"max_attempts": -1}
    for name in usual:
        packed = pack_for_store(task(**{name: GIVEN[name]}))
        values, end = library.formats()["OPTIONS"].unpack(packed)
        expected = usual | {name: GIVEN[name]}
        assert values == {"more": b""} | {each.removesuffix("_ms"): value for each, value in expected.items()}
        assert end == len(packed)
    assert pack_for_store(task()) == b""


def test_what_is_no_traceparent_is_refused() -> None:
    wrong: tuple[Any, ...] = (
        "x", "00", TRACE + "-0", TRACE.upper().replace("1", "A"), TRACE + "\n", "ff" + TRACE[2:],
        TRACE.replace("1", "0", 32), TRACE.replace("2", "0"), "\x1f" + TRACE[1:], TRACE.encode(),
    )  # fmt: skip
    for trace in wrong:
        with case(trace), raises_for("trace"):
            task(trace=trace).check()


def test_limits_and_settings_have_tables_for_type_checkers() -> None:
    limits, settings = get_type_hints(LimitOptions), get_type_hints(SettingOptions)
    assert limits == get_type_hints(Limits)
    assert settings == get_type_hints(QueueSettings) | {"share": Literal["time", "count"]}


def test_the_guide_tells_of_every_option() -> None:
    guide = (Path(fairq.__file__).parent / "docs" / "tasks.md").read_text(encoding="utf-8")
    assert [name for name in TaskOptions.__annotations__ if f"\n| `{name}` |" not in guide] == []
