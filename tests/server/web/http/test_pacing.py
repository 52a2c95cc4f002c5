"""What a request costs its server: nobody's requests may hold up the others."""

from __future__ import annotations

import pytest

from fairq.errors import TooLarge
from fairq.model.checks import MAX_BATCH
from fairq.server.web.http import bodies
from fairq.server.web.http.bodies import MAX_LINES, read_lines


@pytest.mark.parametrize("line", [b"\n", b" \n", b"\r\n"])
def test_lines_without_a_task_cost_as_well(line: bytes) -> None:
    assert list(read_lines(line * MAX_LINES)) == []
    with pytest.raises(TooLarge, match="lines"):
        next(read_lines(line * (MAX_LINES + 1) + b'{"payload": 1}'))


def test_no_more_lines_are_read_than_show_that_they_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    monkeypatch.setattr(bodies, "parse", texts.append)
    assert len(list(read_lines(b'\n{"payload": 1}' * 2 * MAX_BATCH))) == len(texts) == MAX_BATCH + 1
