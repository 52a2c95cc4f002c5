"""Reads JSON strictly, at a bounded cost.

Payloads are any JSON value and must be returned unchanged. `orjson` is fast but accepts duplicate keys (the last one
wins) and rounds whole numbers beyond 64 bits. So a text is encoded again after reading: if the result is the same,
nothing was lost. Our own SDK always sends this canonical text. Clients in other languages add spaces or escapes. Then
two checks remain: outside strings, the text has as many colons as the canonical one unless a key is duplicated, and a
rounded number has an exponent in the canonical one. If either check fails, the standard library's slow parser reads the
text and decides.

Reading blocks the event loop. Its cost depends on the number of values: about 10 ns for a number, 20 times that for an
array or object, almost nothing for the characters of strings. So values are counted before the text is read.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson

from fairq.errors import BadFrame, TooLarge

MAX_DEPTH = 254  # of nested arrays and objects in one text, the outermost included
MAX_COST = 200_000  # of a text: one for each comma and colon, and BRACKET_COST for each array and object
BRACKET_COST = 8
_FREE_CHARS = 65_536  # a text up to this length is cheap, whatever it contains


def _refuse_constant(name: str) -> NoReturn:
    raise BadFrame(f"{name} is not JSON")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadFrame("an object has a duplicate key")
    return found


def _parse_whole(digits: str) -> int:
    if len(digits) > 20 or not -(1 << 63) <= (number := int(digits)) < (1 << 64):
        raise BadFrame("a whole number does not fit in 64 bits; send it as a string")
    return number


def _without_strings(text: str) -> str:
    """Return a JSON text without its strings; for invalid JSON the result is arbitrary."""
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    return "".join(text.split('"')[::2])


def cost_of(text: str) -> int:
    """Estimate a text's cost from its commas, colons and brackets; those inside strings count too."""
    return text.count(",") + text.count(":") + BRACKET_COST * (text.count("[") + text.count("{"))


def check_cost(text: str) -> None:
    """Check that a text can be read quickly. Raises: TooLarge."""
    if len(text) > _FREE_CHARS and cost_of(text) > MAX_COST and cost_of(_without_strings(text)) > MAX_COST:
        raise TooLarge("the message has too many values; send fewer tasks per message, or long tables as one string")


def parse(text: str) -> dict[str, Any]:
    """Read one JSON object strictly. Raises: BadFrame, TooLarge."""
    check_cost(text)
    try:
        data = orjson.loads(text)
        canonical = orjson.dumps(data)
    except orjson.JSONDecodeError as error:
        raise BadFrame(f"invalid JSON: {error}") from None
    except (orjson.JSONEncodeError, RecursionError):
        raise BadFrame(f"JSON is nested too deeply: at most {MAX_DEPTH} levels") from None
    if canonical != text.encode() and _may_be_forgiven(text, canonical.decode()):
        try:
            json.loads(
                text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant, parse_int=_parse_whole
            )
        except (ValueError, RecursionError) as error:
            raise BadFrame(f"invalid JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadFrame("a frame must be one JSON object")
    return data


def _may_be_forgiven(text: str, canonical: str) -> bool:
    """Whether a text may differ in value from its canonical form."""
    bare = _without_strings(canonical)
    letters = bare.count("e")
    has_exponents = letters > 0 and letters > bare.count("true") + bare.count("false")
    return has_exponents or bare.count(":") != _without_strings(text).count(":")
