"""The transcripts of PROTOCOL.md and TRANSCRIPTS.md, each played against servers."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from fairq.wire import messages as wire

from .transcripts import open_stage, transcripts

FOLDER = Path(wire.__file__).parent
PLAYED = {
    heading: lines
    for name in ("PROTOCOL.md", "TRANSCRIPTS.md")
    for heading, lines in transcripts((FOLDER / name).read_text(encoding="utf-8")).items()
}


@pytest.mark.parametrize("heading", PLAYED)
async def test_a_transcript_is_what_happens(heading: str, server_store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with trio.fail_after(60):
        async with open_stage(server_store, monkeypatch) as stage:
            for line in PLAYED[heading]:
                await stage.play(line)
