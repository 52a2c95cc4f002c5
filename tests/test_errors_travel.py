"""Every exception of fairq passes a process: it can be pickled and copied, and says the same afterwards."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from functools import partial
from inspect import Parameter, signature
from multiprocessing import get_context
from typing import Any

import pytest

import fairq
from fairq.errors import BadRequest, FairqError, TenantsRefused

GIVEN: dict[str, Any] = {  # arguments of their constructors
    "message": "it is wrong", "reason": "later", "delay": 2.5, "field": "id", "retry_in_ms": 7, "status": 404,
    "refusals": {"ada": BadRequest("no", field="id")}, "taken": [None, "t1"], "code": 4001, "kind": "private",
    "text": "MOVED 7 127.0.0.1:6379", "headers": {"Retry-After": "1"},
}  # fmt: skip
WAYS: list[Callable[[Any], Any]] = [
    *(partial(lambda protocol, error: pickle.loads(pickle.dumps(error, protocol)), n) for n in range(6)),
    copy.copy, copy.deepcopy,
]  # fmt: skip


def _below(kind: type[BaseException]) -> Iterator[type[BaseException]]:
    for narrower in kind.__subclasses__():
        yield narrower
        yield from _below(narrower)


def exceptions() -> list[type[BaseException]]:
    """Find all exceptions that fairq's modules define."""
    for module in pkgutil.walk_packages(fairq.__path__, "fairq."):
        with suppress(ImportError):  # of a framework that is not installed
            if module.name != "fairq.__main__" and not module.name.startswith(("fairq.django", "fairq.otel")):
                importlib.import_module(module.name)
    return sorted({kind for kind in _below(BaseException) if kind.__module__.split(".")[0] == "fairq"}, key=str)


def make(kind: type[BaseException]) -> BaseException:
    """Make one with something in all that its constructor takes."""
    words = [each for each in signature(kind.__init__).parameters.values() if each.name != "self"]
    args = [GIVEN[each.name] for each in words if each.kind is Parameter.POSITIONAL_OR_KEYWORD]
    named = {each.name: GIVEN[each.name] for each in words if each.kind is Parameter.KEYWORD_ONLY}
    return kind(*(args or ["it is wrong"]), **named)


def parts_of(error: Any) -> Any:
    """Return all that an exception says."""
    if not isinstance(error, BaseException):
        return error
    state = {
        name: {key: parts_of(each) for key, each in value.items()} if isinstance(value, dict) else parts_of(value)
        for name, value in vars(error).items()
    }
    return type(error), error.args, str(error), state


@pytest.mark.parametrize("kind", exceptions(), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_an_exception_can_be_pickled_and_copied(kind: type[BaseException]) -> None:
    error = make(kind)
    error.add_note("seen at noon")
    for way in WAYS:
        assert parts_of(way(error)) == parts_of(error)


def fail() -> None:
    """Raise errors whose constructors take more than a message."""
    raise ExceptionGroup("both", [fairq.Postpone("busy", delay=3), TenantsRefused({"ada": BadRequest("no")}, [None])])


def test_they_come_out_of_a_process_pool() -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as pool, pytest.raises(ExceptionGroup) as raised:
        pool.submit(fail).result(timeout=60)
    postponed, refused = raised.value.exceptions
    assert isinstance(postponed, fairq.Postpone)
    assert postponed.delay_ms == 3_000
    assert isinstance(refused, FairqError)
    assert (refused.code, str(refused)) == ("tenants_refused", "tenants were refused, 1 in all: ada (bad_request)")
