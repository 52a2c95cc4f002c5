"""The known name that a mistyped one may stand for."""

from __future__ import annotations

import pytest

from fairq.model.suggestions import MAX_COMPARED, did_you_mean, nearest


@pytest.mark.parametrize(
    ("name", "found"),
    [("emials", "emails"), ("mails", "emails"), ("email", "emails"), ("emails2", "emails"), ("x", ""), ("", "")],
)
def test_the_nearest_name_is_found(name: str, found: str) -> None:
    assert nearest(name, ["reports", "emails", "images"]) == found
    assert did_you_mean(name, ["emails"]) == (f"; did you mean {found}?" if found else "")


def test_no_more_names_are_compared_than_some() -> None:
    others = [f"em-{n:03}" for n in range(MAX_COMPARED)]
    assert nearest("emials", [*others, "emails"]) == ""
    assert nearest("emials", [*others[1:], "emails"]) == "emails"
