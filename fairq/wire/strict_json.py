"""Reads JSON strictly, at a bounded cost.

Payloads are any JSON value and must be returned unchanged. `orjson` is fast but accepts duplicate keys (the last one
wins) and rounds whole numbers beyond 64 bits. So a text is encoded again after reading: if the result is the same,
nothing was lost. Our own SDK always sends this canonical text. Clients in other languages add spaces or escapes. Then
colons are counted: both texts have as many, unless a key is duplicated. And whole numbers are looked at one by one if
some may be rounded: the canonical text has an exponent, and the text has digits enough.

Reading blocks the event loop. Its cost depends on the number of values: about 10 ns for a number, more for a string, 20
times that for an array or object, almost nothing for their characters. So values are counted before the text is read.
"""

from __future__ import annotations

import re
from math import inf
from typing import Any

import orjson

from fairq.errors import BadFrame, TooLarge

MAX_DEPTH = 254  # of nested arrays and objects in one text, the outermost included
MAX_COST = 200_000  # of a text: one for each comma, colon and string, and BRACKET_COST for each array and object
BRACKET_COST = 8
_FREE_CHARS = 65_536  # a text up to this length is always cheap
_CUT_QUOTES = 40_000  # quotes, at most, of a text with strings that are cut from its cost
_SEARCHED_BYTES = 1 << 18  # bytes, at most, of a text with whole numbers that are looked at one by one
_CLASSES = bytes.maketrans(b"123456789]} \t\n\r", b"0" * 9 + b"," * 6)  # digits, and what may follow a number
_LONG = b"0" * 19 + b","  # the end of a whole number with as many digits as those just beyond 64 bits
_ROUNDED = b"0e00,", b"0e000,"  # the ends of such numbers in canonical text, without the plus of some orjson versions
_LONG_WHOLE = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}(?![0-9.eE])")


def cost_of(text: str) -> int:
    """Estimate a text's cost from its commas, colons, quotes and brackets; those inside strings count too."""
    return _cost_of_brackets(text) + text.count(",") + text.count(":") + text.count('"') // 2


def _cost_of_brackets(text: str) -> int:
    return BRACKET_COST * (text.count("[") + text.count("{"))


def _without_strings(text: str) -> str:
    """Return a JSON text without the content of its strings; for invalid JSON the result is arbitrary."""
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    return '""'.join(text.split('"')[::2])


def check_cost(text: str) -> None:
    """Check that a text can be read quickly. Raises: TooLarge."""
    if len(text) <= _FREE_CHARS or len(text) + _cost_of_brackets(text) <= MAX_COST:
        return  # the rest costs at most one for each character
    if cost_of(text) <= MAX_COST:
        return
    if text.count('"') > _CUT_QUOTES or cost_of(_without_strings(text)) > MAX_COST:
        raise TooLarge("the message has too many values; send fewer tasks per message")


def parse(text: str) -> dict[str, Any]:
    """Read one JSON object strictly. Raises: BadFrame, TooLarge."""
    check_cost(text)
    data = read(text, _SEARCHED_BYTES)
    if not isinstance(data, dict):
        raise BadFrame("a frame must be one JSON object")
    return data


def read(text: str, searched_bytes: float = inf) -> Any:
    """Read one JSON value strictly, at any cost. Raises: BadFrame; TooLarge, see _check_same."""
    try:
        data = orjson.loads(text)
        canonical = orjson.dumps(data)
    except orjson.JSONDecodeError as error:
        raise BadFrame(f"invalid JSON: {error}") from None
    except (orjson.JSONEncodeError, RecursionError):
        raise BadFrame(f"JSON is nested too deeply: at most {MAX_DEPTH} levels") from None
    if canonical != (encoded := text.encode()):
        _check_same(encoded, canonical, searched_bytes)
    return data


def _check_same(text: bytes, canonical: bytes, searched_bytes: float) -> None:
    """Check that reading a text has lost nothing. Raises: BadFrame; TooLarge if a longer one is to be searched."""
    if _count_colons(text) != canonical.count(b":"):
        raise BadFrame("an object has a duplicate key")
    if not _may_be_rounded(text, canonical):
        return
    if len(text) > searched_bytes:
        raise TooLarge("the message has long numbers among too much else; send fewer tasks per message")
    for whole in _LONG_WHOLE.findall(_without_strings(text.decode()).encode()):
        if len(whole) > 20 or not -(1 << 63) <= int(whole) < (1 << 64):
            raise BadFrame("a whole number does not fit in 64 bits; send it as a string")


def _may_be_rounded(text: bytes, canonical: bytes) -> bool:
    """True if some whole number of a text may not fit in 64 bits; numbers inside strings rarely look so."""
    if _LONG not in text.translate(_CLASSES) + b",":  # nothing follows a number that is the whole text
        return False
    numbers = canonical.translate(_CLASSES, b"+") + b","
    return any(mark in numbers for mark in _ROUNDED)


def _count_colons(text: bytes) -> int:
    """Count the colons of a JSON text, those that are escaped too."""
    if b"\\" not in text:
        return text.count(b":")
    text = text.replace(b"\\\\", b"")
    return text.count(b":") + text.count(b"\\u003a") + text.count(b"\\u003A")
