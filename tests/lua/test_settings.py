"""Settings of a queue: the library has the defaults and ranges that the server tells, and keeps unknown ones."""

from __future__ import annotations

from attrs import asdict

from fairq.model.queues import SETTING_RANGES, QueueSettings, stored_setting

from .calls import FORMATS, Queue, refused

RANGES = SETTING_RANGES | {"share": (0, 1), "queue_weight": (1, 10_000_000)}
DEFAULTS = {name: stored_setting(name, value) for name, value in asdict(QueueSettings()).items()}


def stored(queue: Queue) -> bytes:
    """Read the queue's record as it is kept."""
    packed = queue.client.get(queue.key("queue"))
    assert isinstance(packed, bytes)
    return packed


def test_a_setting_begins_with_its_default_and_takes_its_range_and_no_more(queue: Queue) -> None:
    state = queue.queue_state()
    assert {name: state[name] for name in DEFAULTS} == DEFAULTS
    for name, (lowest, highest) in RANGES.items():
        for value in (lowest, highest):
            queue.configure(**{name: value})
            assert queue.queue_state()[name] == value, name
        for wrong in (lowest - 1, highest + 1, lowest + 0.5, "nan", "", "much"):
            refused(queue, f"bad_request {name}", "configure", name, wrong)
    queue.configure(**DEFAULTS)
    state = queue.queue_state()
    assert {name: state[name] for name in DEFAULTS} == DEFAULTS


def test_a_setting_of_a_later_version_is_kept_as_it_is(queue: Queue) -> None:
    queue.configure(lease_ms=1000)
    record, end = FORMATS["QUEUE"].unpack(stored(queue))
    record["settings"] = b"\x82\xa5ready\x07\xa8lease_ms\xcd\x03\xe8"
    queue.client.set(queue.key("queue"), FORMATS["QUEUE"].pack(record) + stored(queue)[end:])
    queue.configure(lease_ms=30_000, max_attempts=7)
    record, _ = FORMATS["QUEUE"].unpack(stored(queue))
    assert record["settings"] in (b"\x82\xa5ready\x07\xacmax_attempts\x07", b"\x82\xacmax_attempts\x07\xa5ready\x07")
    state = queue.queue_state()
    assert (state["lease_ms"], state["max_attempts"], state["ready"]) == (30_000, 7, 0), "it is no field of the record"
