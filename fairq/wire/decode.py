"""Frames of servers -> what they say; lenient, as later servers may add fields. (Clients' frames: codec.py.)"""

from __future__ import annotations

from typing import Any

import orjson
from cattrs import Converter

from fairq.errors import BadFrame
from fairq.wire.beside import Message, Payloads, Unreadable, decode_payload, split
from fairq.wire.frames import SERVER_FRAMES, Push, PushedTask, Reply

SERVER_TYPES: dict[str, type[Any]] = {frame.type: frame for frame in SERVER_FRAMES}
_lenient = Converter(forbid_extra_keys=False)
_loads = orjson.loads


def _pushed(task: dict[str, Any], payloads: Payloads) -> PushedTask:
    get = task.get
    if "payload_bytes" in task:
        task["payload"] = decode_payload(payloads.take(task["payload_bytes"]))
    id, lease = task["id"], task["lease"]
    if type(id) is not str or type(lease) is not int:
        raise ValueError("a pushed task has no lease")
    return PushedTask(
        id, lease, task["attempt"], task["max_attempts"], task["tenant"], task["enqueued_at_ms"], task["payload"],
        get("start_at_ms"), get("expires_at_ms"), get("wants_result", False), get("name", ""),
        get("webhook", ""),
    )  # fmt: skip


def _put_beside(body: dict[str, Any], payloads: Payloads) -> None:
    """Put the payloads beside a reply into its objects; text that is not JSON is shown as text."""
    for value in body.values():
        for row in value if type(value) is list else (value,):
            if type(row) is dict and "payload_bytes" in row:
                text = payloads.take(row.pop("payload_bytes"))
                payload = decode_payload(text)
                row["payload"] = text.decode(errors="replace") if isinstance(payload, Unreadable) else payload


def decode_server(message: Message) -> Any:
    """Read a server's frame; unknown fields are ignored, unknown frame types give None. Raises: BadFrame."""
    try:
        text, payloads = split(message)
        data: dict[str, Any] = _loads(text)
        kind = SERVER_TYPES.get(data.pop("type"))
        if kind is None:
            return None
        if kind is Push:
            tasks = [_pushed(task, payloads) for task in data["tasks"]]
            return Push(data["queue"], int(data["lease_ms"]), tasks, int(data.get("run_timeout_ms", 0)))
        if kind is Reply and type(message) is bytes:
            _put_beside(data["body"], payloads)
        return _lenient.structure(data, kind)
    except Exception as error:
        raise BadFrame(f"invalid frame from the server: {error!r:.200}") from None
