"""The reader of the guides notices what a person would: a command that fails, other output, a question."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs import reader
from tests.docs.reader import Failed, Reader, missing_from, section_of

GUIDE = """# Guide

Save a program
and run it:

```python
# hello.py
print("hello", 41 + 1)
```

```sh
python3 hello.py
```

```text
hello 7
```
"""


def read(folder: Path, text: str) -> None:
    guide = folder / "guide.md"
    guide.write_text(text)
    person = Reader(folder)
    try:
        person.read(guide)
    finally:
        person.kill()


def test_a_section_ends_at_the_next_of_its_level() -> None:
    text = "# A\n\n## See it, then\n\none\n\n### Deeper\n\n```sh\n# no heading\n```\n\n## Next\n\ntwo\n"
    assert section_of(text, "see-it-then").splitlines()[2] == "one"
    assert section_of(text, "see-it-then").endswith("```\n")
    with pytest.raises(Failed, match="#nowhere"):
        section_of(text, "nowhere")


def test_a_character_may_come_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_READ_BYTES", 1)
    read(tmp_path, "# Guide\n\n```sh\necho ┏━┓\n```\n\n```text\n┏━┓\n```\n")


@pytest.mark.parametrize(
    ("shown", "is_there"),
    [
        ("hello 7", True),
        ("… 12:30", True),
        ("hello", True),
        ("good-bye", False),
        ("hello 1\nhello 2", False),  # there is one
        ("done in 3 s\nhello 1", False),  # the other way round
        ("hello 1\n\ndone … s", True),
    ],
)
def test_output_is_compared_loosely_and_in_order(shown: str, is_there: bool) -> None:
    assert (missing_from("hello   42 at 03:15\ndone in 0.5 s\n", shown) is None) is is_there


@pytest.mark.deep("guides")
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (GUIDE.replace("hello 7", "good-bye"), "guide.md:11: 'good-bye' is not in the output"),
        (GUIDE.replace("41 + 1", "1 / 0"), "`python3 hello.py` ended with 1"),
        (GUIDE.replace("# hello.py\n", ""), "does not say under which name"),
        ("Start it and leave it running:\n\n```sh\nsleep 60\n```\n", "does not say what shows that it runs"),
        ("Leave it running:\n\n```sh\necho gone\n```\n\n```text\nserving\n```\n", "`echo gone` has ended"),
        ("In a third terminal:\n\n```sh\ntrue\n```\n", "there is a third terminal and not the one before"),
    ],
)
def test_what_a_person_would_notice_is_reported(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(Failed, match=re.escape(why)):
        read(tmp_path, text)


@pytest.mark.deep("guides")
def test_a_command_that_waits_for_an_answer_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "COMMAND_S", 5.0)
    with pytest.raises(Failed, match=r"`read .* in the first terminal: nothing more comes in time\nSure\? "):
        read(tmp_path, "```sh\nread -p 'Sure? ' answer\n```\n")
