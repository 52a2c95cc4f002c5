"""JSON read strictly, and for a bounded price.

Payloads are any JSON value and must come out as they went in. `orjson` is fast but forgives duplicate keys (the last
one wins) and rounds whole numbers beyond 64 bits. So a text is written again after reading: if it is the same, nothing
was forgiven. Our own SDK always writes that canonical text. Clients in other languages put spaces into it, or escape
what they need not; but without its strings it has as many colons as the canonical one unless a key stood twice, and
what was rounded has an exponent in the canonical one. What is odd then is read by the standard library's parser, which
is slow, and says what must be refused.

Reading holds the event loop, and what it costs is what there is to make: a number some 10 ns, an array or object 20
times that, the characters of strings nearly nothing. So values are counted before they are read.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

import orjson

from fairq.errors import BadFrame, TooLarge

MAX_DEPTH = 254  # of nested arrays and objects in one text, the outermost included
MAX_COST = 200_000  # of a text: one for each comma and colon, and BRACKET_COST for each array and object
BRACKET_COST = 8
_FREE_CHARS = 65_536  # a text so short costs little, whatever is in it


def _refuse_constant(name: str) -> NoReturn:
    raise BadFrame(f"{name} is not JSON")


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadFrame("an object has the same key twice")
    return found


def _parse_whole(digits: str) -> int:
    if len(digits) > 20 or not -(1 << 63) <= (number := int(digits)) < (1 << 64):
        raise BadFrame("a whole number does not fit into 64 bits; send it as a string")
    return number


def _without_strings(text: str) -> str:
    """Leave out what stands between quotes; of a text that is no JSON anything may be left."""
    if "\\" in text:
        text = text.replace("\\\\", "").replace('\\"', "")
    return "".join(text.split('"')[::2])


def cost_of(text: str) -> int:
    """Count what there is to make of a text, or more where its strings hold such characters."""
    return text.count(",") + text.count(":") + BRACKET_COST * (text.count("[") + text.count("{"))


def check_cost(text: str) -> None:
    """Refuse a text that would take long to read. Raises: TooLarge."""
    if len(text) > _FREE_CHARS and cost_of(text) > MAX_COST and cost_of(_without_strings(text)) > MAX_COST:
        raise TooLarge("the message holds too many values; send fewer tasks in it, or long tables as one string")


def parse(text: str) -> dict[str, Any]:
    """Read one JSON object strictly. Raises: BadFrame, TooLarge."""
    check_cost(text)
    try:
        data = orjson.loads(text)
        canonical = orjson.dumps(data)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, RecursionError) as error:
        raise BadFrame(f"not JSON, or nested too deep: {error}") from None
    if canonical != text.encode() and _may_be_forgiven(text, canonical.decode()):
        try:
            json.loads(
                text, object_pairs_hook=_refuse_duplicates, parse_constant=_refuse_constant, parse_int=_parse_whole
            )
        except (ValueError, RecursionError) as error:
            raise BadFrame(f"not JSON: {error}") from None
    if not isinstance(data, dict):
        raise BadFrame("a frame is one JSON object")
    return data


def _may_be_forgiven(text: str, canonical: str) -> bool:
    """Whether something may have been lost between a text and its canonical form."""
    bare = _without_strings(canonical)
    letters = bare.count("e")
    has_exponents = letters > 0 and letters > bare.count("true") + bare.count("false")
    return has_exponents or bare.count(":") != _without_strings(text).count(":")
