"""Frames as messages, and messages as frames, written and read as PROTOCOL.md says and by nothing of fairq's."""

from __future__ import annotations

from typing import Any

import orjson

INLINE_BYTES = 65_536


def write_frame(frame: dict[str, Any]) -> str | bytes:
    """Write a client's frame; long payloads of its tasks go beside it."""
    tasks, beside = [], b""
    given = frame.get("tasks")
    for task in given if isinstance(given, list) else ():
        text = orjson.dumps(task["payload"]) if isinstance(task, dict) and "payload" in task else b""
        if len(text) > INLINE_BYTES:
            task = {name: value for name, value in task.items() if name != "payload"} | {"payload_bytes": len(text)}
            beside += text
        tasks.append(task)
    if not beside:
        return orjson.dumps(frame).decode()
    return orjson.dumps({**frame, "tasks": tasks}) + b"\n" + beside


def read_frame(message: str | bytes) -> dict[str, Any]:
    """Read a frame, with the payloads beside it."""
    if isinstance(message, str):
        frame: dict[str, Any] = orjson.loads(message)
        return frame
    text, _, rest = message.partition(b"\n")
    frame = orjson.loads(text)
    for value in frame.get("body", frame).values():
        for row in value if type(value) is list else [value]:
            if type(row) is dict and "payload_bytes" in row:
                size = row.pop("payload_bytes")
                assert size > INLINE_BYTES
                row["payload"], rest = orjson.loads(rest[:size]), rest[size:]
    assert rest == b""
    return frame
