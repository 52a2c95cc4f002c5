"""What a run writes down."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

import loadtest.__main__ as program
from loadtest.figures import judge
from loadtest.report import Table
from loadtest.scenarios import Scenario


async def test_out_writes_report_tables_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def scenario(*_: object, **__: object) -> dict[str, object]:
        return {"rate": 7, "verdicts": {"drain": judge(["a"], ["a"])}}

    def draw(part: object, directory: Path) -> list[Path]:
        path = directory / "picture.png"
        path.write_bytes(b"PNG")
        return [path]

    shown = Scenario(scenario, lambda part: [Table("rates", ["rate"], [[part["rate"]]])], draw)
    monkeypatch.setattr(program, "SCENARIOS", {"throughput": shown})
    out = tmp_path / "new" / "directory"
    assert await program.main(program.arguments_of(["throughput", "--out", str(out)])) == 0
    assert orjson.loads((out / "report.json").read_bytes())["throughput"]["rate"] == 7
    assert "| 7 |" in (out / "report.md").read_text()
    assert f"wrote {out / 'picture.png'}" in capsys.readouterr().err
