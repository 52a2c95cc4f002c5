"""Payloads that commands are given: read as strictly as servers read them, so that none is altered."""

from __future__ import annotations

import sys
from typing import Any

from fairq.errors import BadFrame, BadRequest
from fairq.wire import strict_json


def read_json(text: str | bytes) -> Any:
    """Read one JSON value as it is. Raises: ValueError if it is not JSON, not UTF-8, or would be altered."""
    try:
        return strict_json.read(text.decode() if isinstance(text, bytes) else text)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8: {error}") from None
    except BadFrame as error:
        raise ValueError(error.message.replace("invalid JSON", "not JSON")) from None


def read_payload(argument: str) -> Any:
    """Read a payload that is an argument; `-`: standard input. Raises: BadRequest."""
    try:
        return read_json(sys.stdin.buffer.read() if argument == "-" else argument)
    except ValueError as error:
        quotes = "; text needs quotes: '\"text\"'" if str(error).startswith("not JSON") else ""
        raise BadRequest(f"invalid payload: {error}{quotes}", field="payload") from None
