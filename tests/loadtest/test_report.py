"""What a run writes down."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

import loadtest.__main__ as program
from loadtest.figures import judge
from loadtest.pictures import new_figure, save
from loadtest.report import Table
from loadtest.scenarios import Scenario


async def scenario(*_: object, **__: object) -> dict[str, object]:
    return {"rate": 7, "verdicts": {"drain": judge(["a"], ["a"])}}


async def test_out_writes_report_tables_and_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
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


async def test_a_run_that_cannot_draw_says_so_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def draw(part: object, directory: Path) -> list[Path]:
        return [save(new_figure("rates", "s", "1/s")[0], directory / "rates.png")]

    monkeypatch.setattr(program, "SCENARIOS", {"throughput": Scenario(scenario, lambda _: [], draw)})
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert await program.main(program.arguments_of(["throughput", "--out", str(tmp_path)])) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "pictures" in line]
    assert said == ["no pictures: matplotlib is missing; remedy: pip install -e '.[loadtest]'"]
    assert (tmp_path / "report.md").is_file()
