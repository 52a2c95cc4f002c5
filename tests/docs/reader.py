"""A reader of a guide: pastes what it shows into terminals, saves its files, and compares what it says comes out.

What it knows of a block is what a person sees: the fence's language, the first line, and the paragraph above. `sh` is
pasted, line by line as the prompt comes back; where the paragraph says "second terminal" it goes into that one, which
opens in the same folder; where it says "leave it running", the prompt does not come back, and the shown output is what
says that it runs. `python` is saved under the name that its first line tells.
`text` right after `sh` is its output. "Press ctrl-C in the second terminal" in a paragraph is done when it is reached.
All other blocks are looked at only.

As a program it reads one guide in namespaces of its own: `python -m tests.docs.reader CLONE GUIDE`.
"""

from __future__ import annotations

import codecs
import fcntl
import json
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.processes import commands

COMMAND_S, START_S, END_S, HANG_UP_S = 300.0, 60.0, 60.0, 5.0  # installing takes longest
_READ_BYTES = 65_536
MAX_OUTPUT = 4_000_000  # bytes that a terminal remembers
ROWS, COLUMNS = 60, 130
PROMPT = "\x01ready %s\x02"  # with the exit code
_PROMPT = re.compile(r"\x01ready (\d+|more)\x02")
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07|\x1b[=>]")
_KEPT = {"PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "SSL_CERT_FILE"}  # of the variables
_BLOCKED = ("is_paused", "is_closed", "is_deleting", "is_repairing")
_ORDINALS = {"first": 0, "second": 1, "third": 2, "fourth": 3, "fifth": 4}
_TERMINAL = re.compile(rf"\b({'|'.join(_ORDINALS)}) terminal\b", re.IGNORECASE)
_INTERRUPT = re.compile(rf"[Pp]ress ctrl-C in the ({'|'.join(_ORDINALS)}) terminal")
_FILE = re.compile(r"# ((?:\w+/)?[\w-]+\.py)$", re.MULTILINE)
_SETUP = re.compile(r"\[[^]]*\]\(([^)#]*README\.md)#(set-up)\)")
_DEMO = " && fairq demo --stay\n```"  # at the end of the setup; guides do without


class Paragraph(NamedTuple):
    """Prose, with line breaks as spaces."""

    line: int
    text: str


class Block(NamedTuple):
    """A fenced block, and the paragraph above it."""

    line: int
    language: str
    text: str
    lead: str


class Failed(Exception):
    """What a guide says does not happen."""


def parts_of(text: str) -> Iterator[Paragraph | Block]:
    """Split Markdown into paragraphs (headings, tables and lists too) and blocks, in order."""
    prose: list[str] = []
    lead, begin, lines = "", 1, enumerate(text.splitlines(), 1)
    for number, line in lines:
        if line.startswith("```"):
            if prose:
                lead = " ".join(prose)
                yield Paragraph(begin, lead)
                prose = []
            body = []
            for _, inner in lines:
                if inner.startswith("```"):
                    break
                body.append(inner)
            yield Block(number, line[3:].strip(), "\n".join(body), lead)
            lead = ""
        elif line.strip():
            begin = begin if prose else number
            prose.append(line.strip())
        elif prose:
            lead = " ".join(prose)
            yield Paragraph(begin, lead)
            prose = []
    if prose:
        yield Paragraph(begin, " ".join(prose))


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def section_of(text: str, anchor: str) -> str:
    """Return the part of a document below the heading with an anchor, up to the next heading of its level."""
    kept: list[str] = []
    level, in_block = 0, False
    for line in text.splitlines():
        in_block ^= line.startswith("```")
        if not in_block and (heading := re.match(r"(#+) (.*)", line)):
            if level and len(heading[1]) <= level:
                break
            if anchor_of(heading[2]) == anchor:
                level = len(heading[1])
        if level:
            kept.append(line)
    if not kept:
        raise Failed(f"there is no heading #{anchor}")
    return "\n".join(kept)


def pattern_of(line: str) -> re.Pattern[str]:
    """Make the pattern of a shown line: any numbers, ids and spacing will do, and `…` stands for anything."""
    pattern = ""
    for word in re.findall(
        r"\s*…\s*|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d+(?:[.,:]\d+)*|\s+|[─━]+|.", line.strip()
    ):
        if "…" in word:
            pattern += ".*"
        elif word[0].isdigit() and len(word) < 36:
            pattern += r"\d+(?:[.,:]\d+)*"
        elif len(word) == 36:
            pattern += "[0-9a-f-]{36}"
        elif word.isspace():
            pattern += r"\s+"
        elif word[0] in "─━":
            pattern += "[─━]+"
        else:
            pattern += re.escape(word)
    return re.compile(pattern)


def missing_from(output: str, shown: str) -> str | None:
    """Return the first shown line that is not in the output, in order; None if all are."""
    lines = iter(output.splitlines())
    for wanted in shown.splitlines():
        if wanted.strip() and not any(pattern_of(wanted).search(line) for line in lines):
            return wanted
    return None


class Terminal:
    """A bash on a terminal of its own."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._seen, self.is_running = name, "", False
        us, them = pty.openpty()
        fcntl.ioctl(them, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        attributes = termios.tcgetattr(them)
        attributes[3] &= ~termios.ECHO
        termios.tcsetattr(them, termios.TCSANOW, attributes)
        environment = {name: os.environ[name] for name in os.environ if name in _KEPT or name.startswith("PIP_")}
        environment |= {"TERM": "xterm", "VIRTUAL_ENV_DISABLE_PROMPT": "1"}
        environment |= {"PS1": PROMPT % "$?", "PS2": PROMPT % "more"}
        self._us = us
        self._came = threading.Condition()
        self._is_open = True
        self._bash = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "--noediting", "-i"],
            stdin=them, stdout=them, stderr=them, cwd=folder, env=environment,
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(them)
        threading.Thread(target=self._show, name=f"the {self.name} terminal", daemon=True).start()
        self._read_prompt(START_S, "bash")

    @property
    def folder(self) -> Path:
        return Path(os.readlink(f"/proc/{self._bash.pid}/cwd"))

    def _show(self) -> None:
        """Take all that comes, at all times: a program that writes to a terminal which nothing reads would stop."""
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode  # a character may come in two parts
        while data := _read_some(self._us):
            with self._came:
                self._seen = (self._seen + decode(data))[-MAX_OUTPUT:]
                self._came.notify_all()
        with self._came:
            self._is_open = False
            self._came.notify_all()

    def _wait(self, is_there: Callable[[], object], seconds: float, line: str) -> None:
        """Wait until what the terminal shows has something. Raises: Failed."""
        with self._came:
            if not self._came.wait_for(lambda: is_there() or not self._is_open, seconds) or not is_there():
                raise Failed(f"`{line}` in the {self.name} terminal: nothing more comes in time\n{self._shown()}")

    def _shown(self) -> str:
        return _ESCAPE.sub("", self._seen).replace("\r", "\n")

    def _read_prompt(self, seconds: float, line: str) -> str:
        """Wait for the prompt; returns the exit code it tells, or `more`, and forgets all that came until then."""
        self._wait(lambda: _PROMPT.search(self._seen), seconds, line)
        with self._came:
            found = _PROMPT.search(self._seen)
            assert found
            self._output = _ESCAPE.sub("", self._seen[: found.start()]).replace("\r\n", "\n")
            self._seen = self._seen[found.end() :]
            return found[1]

    def paste(self, text: str) -> str:
        """Paste commands, each when the prompt is back; returns their output. Raises: Failed, if one fails."""
        if self.is_running:
            raise Failed(f"something runs in the {self.name} terminal, so no command can be given there")
        output = ""
        for line in text.splitlines():
            os.write(self._us, line.encode() + b"\n")
            code = self._read_prompt(COMMAND_S, line)
            output += self._output
            if code not in ("0", "more") and not line.rstrip().endswith(f"# exit code {code}"):
                raise Failed(f"`{line}` ended with {code}:\n{output}")
        return output

    def start(self, text: str, shown: str) -> None:
        """Paste commands, the last of them a lasting one; wait until its output shows that it runs."""
        *first, last = [line for line in text.splitlines() if line.strip()]
        self.paste("\n".join(first))
        os.write(self._us, last.encode() + b"\n")
        self.is_running = True
        self._wait(lambda: _PROMPT.search(self._seen) or not missing_from(self._shown(), shown), START_S, last)
        if _PROMPT.search(self._seen):
            raise Failed(f"`{last}` has ended, and showed\n{self._shown()}\nbut not: {shown}")

    def interrupt(self) -> None:
        """Press ctrl-C, and wait for the prompt."""
        os.write(self._us, b"\x03")
        self._read_prompt(END_S, "ctrl-C")
        self.is_running = False

    def close(self) -> None:
        """End what runs there, if it has not ended by itself, and the shell."""
        if self.is_running and not _PROMPT.search(self._seen):
            self.interrupt()
        os.write(self._us, b"\nexit\n")  # after a ctrl-C that came too late, the first key is lost
        try:
            self._bash.wait(END_S)
        except subprocess.TimeoutExpired:
            raise Failed(f"the {self.name} terminal does not close: {self._shown()}") from None

    def kill(self) -> None:
        """End the shell and what runs in it, as when a terminal's window is closed."""
        for number in (signal.SIGHUP, signal.SIGKILL):
            if self._bash.poll() is None:
                self._bash.send_signal(number)
                with suppress(subprocess.TimeoutExpired):
                    self._bash.wait(HANG_UP_S)


def _read_some(terminal: int) -> bytes:
    try:
        return os.read(terminal, _READ_BYTES)
    except OSError:  # its last program has ended
        return b""


def _take_terminal() -> None:
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Reader:
    """Reads guides in a copy of the repository."""

    def __init__(self, clone: Path) -> None:
        self._clone = clone
        self._terminals: list[Terminal] = []

    def _terminal(self, ordinal: str) -> Terminal:
        """Find a terminal; a new one opens in the folder of the first."""
        number = _ORDINALS[ordinal.lower()]
        if number > len(self._terminals):
            raise Failed(f"there is a {ordinal} terminal and not the one before")
        if number == len(self._terminals):
            folder = self._terminals[0].folder if self._terminals else self._clone
            self._terminals.append(Terminal(ordinal.lower(), folder))
        return self._terminals[number]

    def read(self, guide: Path) -> None:
        """Do what a guide says, from its beginning to its end; then see what it leaves. Raises: Failed."""
        self._read(guide, guide.read_text())
        while self._terminals:
            self._terminals.pop().close()  # the last one first; it sees that nothing goes on

    def _read(self, guide: Path, text: str) -> None:
        parts = list(parts_of(text))
        last = max(n for n, part in enumerate(parts) if isinstance(part, Block) and part.language == "sh")
        for n, part in enumerate(parts):
            following = parts[n + 1] if n + 1 < len(parts) else None
            shown = following.text if isinstance(following, Block) and following.language == "text" else ""
            try:
                if isinstance(part, Paragraph):
                    self._follow(guide, part.text)
                else:
                    self._do(part, shown)
                if n == last:
                    self._check_all_is_open()
            except Failed as failed:
                raise Failed(f"{guide.name}:{part.line}: {failed}") from None

    def _follow(self, guide: Path, prose: str) -> None:
        if setup := _SETUP.search(prose):
            document = (guide.parent / setup[1]).resolve()
            installed, _, _ = section_of(document.read_text(), setup[2]).partition(_DEMO)
            self._read(document, f"{installed}\n```")
        for key in _INTERRUPT.finditer(prose):
            self._terminal(key[1]).interrupt()

    def _do(self, block: Block, shown: str) -> None:
        name = _FILE.match(block.text)
        if block.language == "python":
            if not name:
                raise Failed("the guide does not say under which name to save this")
            (self._terminal("first").folder / name[1]).write_text(block.text + "\n")
        elif block.language == "sh":
            ordinal = _TERMINAL.search(block.lead)
            terminal = self._terminal(ordinal[1] if ordinal else "first")
            print(f"-- {terminal.name}\n{block.text}", flush=True)
            if "leave it running" in block.lead.lower():
                if not shown:
                    raise Failed("the guide does not say what shows that it runs")
                terminal.start(block.text, shown)
            else:
                output = terminal.paste(block.text)
                print(output, flush=True)
                if missing := missing_from(output, shown):
                    raise Failed(f"{missing!r} is not in the output:\n{output}")

    def _check_all_is_open(self) -> None:
        """See that no queue or tenant is left paused, closed or under way. Raises: Failed."""
        if not any(terminal.is_running for terminal in self._terminals):
            return
        operator = Terminal("operator's", self._terminals[0].folder)
        operator.paste(". .venv/bin/activate; export FAIRQ_TOKEN=dev-operator")
        for queue in json.loads(operator.paste("fairq queues list --json > queues && cat queues")):
            name = queue["queue"]
            command = f"fairq tenants list {name} --json > tenants && cat tenants"
            tenants = json.loads(operator.paste(command)) if queue["enqueued"] else []  # else a worker made it
            for of_whom, state in [("", queue), *((f" of {each['tenant']}", each) for each in tenants)]:
                if left := [word for word in _BLOCKED if state.get(word)]:
                    raise Failed(f"the guide leaves queue {name}{of_whom}: {', '.join(left)}")
        operator.close()

    def kill(self) -> None:
        """End all that was started, after a failure."""
        for terminal in self._terminals:
            terminal.kill()


def raise_loopback() -> None:
    """Switch on the loopback of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        up_and_running = struct.pack("16sh14x", b"lo", 0x1 | 0x40)
        fcntl.ioctl(any_socket, 0x8914, up_and_running)  # SIOCSIFFLAGS


def _reap() -> None:
    """Wait for ended processes: those without a parent are the first process's, which this one is."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def others() -> list[str]:
    """Name all processes of this process namespace but this one."""
    _reap()
    return [" ".join(words) or str(pid) for pid, words in commands() if pid not in (os.getpid(), os.getppid())]


def main(argv: Sequence[str]) -> int:
    """Read one guide in namespaces that the caller made; returns the exit code."""
    clone, guide = Path(argv[0]), Path(argv[1])
    raise_loopback()
    reader = Reader(clone)
    try:
        reader.read(guide)
    except Failed as failed:
        print(failed, file=sys.stderr)
        reader.kill()
        return 1
    deadline = time.monotonic() + END_S
    while others() and time.monotonic() < deadline:
        time.sleep(0.05)
    if left := others():
        print(f"{guide.name}: left running: {left}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
