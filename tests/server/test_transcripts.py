"""The transcripts of TRANSCRIPTS.md, each played against servers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairq.wire import messages as wire

from .transcripts import open_stage, transcripts

TEXT = (Path(wire.__file__).parent / "TRANSCRIPTS.md").read_text(encoding="utf-8")
PLAYED = transcripts(TEXT)


def test_no_transcript_is_left_out() -> None:
    frames = re.findall(r"^(?:[a-z0-9-]+ +)?[<>] .*\}$", TEXT, re.MULTILINE)
    assert len(frames) == sum(line.frame != {} for lines in PLAYED.values() for line in lines) > 80
    assert len(PLAYED) == 16


@pytest.mark.parametrize("heading", PLAYED)
async def test_a_transcript_is_what_happens(heading: str, server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_stage(server_store, monkeypatch) as stage:
        for line in PLAYED[heading]:
            await stage.play(line)
