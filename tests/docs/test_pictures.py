"""The guides' pictures are those that the code draws."""

from __future__ import annotations

import re

import pytest
import redis

from tests.docs.pictures import FOLDER, PICTURES, draw
from tests.docs.test_documents import DOCUMENTS

PROGRAM = re.compile(r"<dc:title>(Matplotlib v[\d.]+)")


@pytest.mark.deep("guides")
@pytest.mark.one_store("valkey")
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_the_code_draws(name: str, redis_client: redis.Redis) -> None:
    kept, drawn = (FOLDER / f"{name}.svg").read_text(), draw(name, redis_client)
    drawer = PROGRAM.findall(kept)
    assert drawer
    if drawer == PROGRAM.findall(drawn):  # other versions place texts and ticks elsewhere
        assert drawn == kept, "python -m tests.docs.pictures"
    else:
        assert drawn.count("<use ") == kept.count("<use ")


def test_all_pictures_are_shown() -> None:
    texts = "".join(path.read_text() for path in DOCUMENTS)
    pictures = {path.stem: path for path in FOLDER.glob("*.svg")}
    assert pictures.keys() > PICTURES.keys()
    assert all(f"pictures/{name}.svg" in texts for name in pictures)
    assert all(path.stat().st_size < 80_000 for path in pictures.values())
