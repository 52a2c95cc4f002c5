"""The file of a backup: gzip of lines of JSON, the first one a header, the last one a sum of all before it.

The header has `fairq_backup` (1), `made_at`, `fairq`, `data_version` and `store`; the end has `kind` (`end`), `lines`
and `sum` (BLAKE2b, 16 bytes). fairq/store/backup_lines.py says what stands between them.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from functools import partial
from hashlib import blake2b
from typing import Any, BinaryIO

import orjson
from attrs import asdict, define, field, frozen

from fairq.errors import BadRequest

VERSION = 1
MAX_LINE = 64 << 20  # bytes
_SUM = 16
_LEVEL = 1  # of gzip's nine
_GZIP = 31  # for zlib: with gzip's header, and the largest window


@frozen
class Header:
    """The header of a backup."""

    data_version: int = field(converter=int)
    made_at: str  # ISO 8601, UTC
    fairq: str
    store: str  # its kind and version
    nodes: int


@define(eq=False)
class Writer:
    """Writes a backup."""

    file: BinaryIO
    lines: int = field(default=0, init=False)
    _packing: Any = field(factory=partial(zlib.compressobj, _LEVEL, wbits=_GZIP), init=False)
    _sum: Any = field(factory=lambda: blake2b(digest_size=_SUM), init=False)

    def begin(self, header: Header) -> None:
        """Write the header."""
        self.add(orjson.dumps({"fairq_backup": VERSION} | asdict(header)))

    def add(self, line: bytes) -> None:
        """Write a line."""
        line += b"\n"
        self._sum.update(line)
        self.file.write(self._packing.compress(line))
        self.lines += 1

    def end(self) -> None:
        """Write the end, which says that the backup is whole."""
        end = {"kind": "end", "lines": self.lines, "sum": self._sum.hexdigest()}
        self.file.write(self._packing.compress(orjson.dumps(end) + b"\n") + self._packing.flush())
        self.file.flush()


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Read a backup from its beginning: the header, then the lines. Raises: BadRequest if it is invalid."""
    file.seek(0)
    total, count = blake2b(digest_size=_SUM), 0
    with gzip.GzipFile(fileobj=file, mode="rb") as packed:
        try:
            while not (line := packed.readline(MAX_LINE)).startswith(b'{"kind":"end"'):
                if not line.endswith(b"\n"):
                    raise _bad("it was cut off, or a line is too long")
                total.update(line)
                count += 1
                yield line[:-1]
            rest = packed.read(1)
        except (OSError, EOFError, zlib.error) as error:
            raise _bad(f"it is damaged or was cut off after line {count}: {error}") from None
    if rest or line != orjson.dumps({"kind": "end", "lines": count, "sum": total.hexdigest()}) + b"\n":
        raise _bad("lines were changed or are missing, or something follows its end")


def read_header(line: bytes) -> Header:
    """Read the first line of a backup. Raises: BadRequest."""
    try:
        header = orjson.loads(line)
        if header["fairq_backup"] != VERSION:
            raise _bad(f"it is of version {header['fairq_backup']}, but this fairq reads {VERSION}")
        return Header(**{name: header[name] for name in Header.__annotations__})
    except (ValueError, KeyError, TypeError):
        raise _bad("it has no header") from None


def _bad(why: str) -> BadRequest:
    return BadRequest(f"the backup cannot be used: {why}", field="file")
