"""Read the text of a file in blocks of whole lines, also where it is compressed, or cut off."""

from __future__ import annotations

import bz2
import codecs
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Literal, TypeAlias

import pyarrow as pa

from persistent_state.sources.casts import Unfit

Codec: TypeAlias = Literal["gzip", "bz2", "zstd"]

UNDECODABLE = (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError, OSError)
"""The errors that pyarrow raises for damaged content."""

BLOCK_BYTES = 1 << 24
_STEP_BYTES = 1 << 16
_CUT_OFF = "Truncated compressed stream"
_SOMETHING_BEHIND = (
    "incorrect header check",
    "unknown compression method",
    "no magic header",
    "Unknown frame descriptor",
)
_EMPTY_PART = "wrong sequence of calls"
"""Words of pyarrow, zlib, bzip2 and zstd: a file ends too early, what stands behind a whole text is not compressed, or
pyarrow can't read on behind an empty part."""


def parts_of(file: pa.NativeFile, size: int | None = None) -> Iterator[bytes]:
    """Yield what a file has from where it stands, in parts."""
    while data := file.read(size or BLOCK_BYTES):
        yield data


def decompressed(file: pa.NativeFile, codec: Codec) -> Iterator[bytes]:
    """Yield the text of a compressed file in parts. What comes before a sudden end is read.

    Other damage is noticed too late: what was decompressed since the part before it may be wrong.
    """
    if not file.size():
        raise Unfit(f"it has no bytes, and is not {codec}")
    passed = 0
    # A stream that is let go closes its file.
    streams = [pa.CompressedInputStream(file, codec)]
    try:
        for data in parts_of(streams[0]):
            yield data
            passed += len(data)
    except (OSError, pa.ArrowException) as error:
        # To pyarrow it is no OSError behind an empty part of bzip2.
        why = str(error)
        if _EMPTY_PART in why:
            file.seek(0)
            yield from _behind(passed, _bzip2(file))
            return
        if not any(words in why for words in (_CUT_OFF, *_SOMETHING_BEHIND)):
            raise
        found = b""
        for step in (_STEP_BYTES, 1):
            file.seek(0)
            streams.append(pa.CompressedInputStream(file, codec))
            _skip(streams[-1], passed + len(found))
            with suppress(OSError, pa.ArrowException):
                for data in parts_of(streams[-1], step):
                    found += data
        # A line without its end belongs to the rest, which can't be read: it may go on there.
        yield found
        raise OSError(why) from error


def _bzip2(file: pa.NativeFile) -> Iterator[bytes]:
    """Yield the text of a bzip2 file in parts, by Python. The parts before any damage are right: bzip2 checks each block."""
    part = bz2.BZ2Decompressor()
    for data in parts_of(file, _STEP_BYTES):
        while data or not (part.eof or part.needs_input):
            if part.eof:
                part = bz2.BZ2Decompressor()
            yield part.decompress(data, BLOCK_BYTES)
            data = part.unused_data if part.eof else b""
    if not part.eof:
        raise OSError(_CUT_OFF)


def _behind(count: int, parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield what comes behind the first bytes of a text."""
    for data in parts:
        # Without bytes it would be the end to a decoder.
        if rest := data[count:]:
            yield rest
        count = max(0, count - len(data))


def _skip(stream: pa.NativeFile, count: int) -> None:
    while count:
        passed = len(stream.read(min(count, BLOCK_BYTES)))
        if not passed:
            # It was longer when it was read before.
            raise OSError(_CUT_OFF)
        count -= passed


def line_blocks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a text in blocks of whole lines, each with its line end."""
    rest, mark = b"", codecs.BOM_UTF8
    for data in parts:
        if data:
            data, mark = data.removeprefix(mark), b""
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = b""
        rest += data[end:]
    if rest:
        yield rest + b"\n"


def filled(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield blocks, a small one joined to that before it, such as a last line without its end.

    What no record of a block has is judged by the block. So it should not be one of few records.
    """
    held: list[bytes] = []
    size = 0
    try:
        for block in blocks:
            if held and (len(block) >= BLOCK_BYTES // 2 or size >= 2 * BLOCK_BYTES):
                yield b"".join(held)
                held, size = [], 0
            held.append(block)
            size += len(block)
    except UNDECODABLE:
        # What came before the damage is whole.
        if held:
            yield b"".join(held)
        raise
    if held:
        yield b"".join(held)
