"""The journal of a file source: a line of JSON for each file that was read, by ordinal."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

import pyarrow as pa

from persistent_state.errors import InvalidInputError
from persistent_state.sources.casts import plain_schema
from persistent_state.sources.listing import File

WHOLE = '{"finite": true}'
"""The line behind the last file of a finite source."""

_NO_TIME = 253_402_300_800_000_000
"""The year 10000. Older versions took the milliseconds of WebHDFS for seconds."""


def line_of_file(file: File, ordinal: int, schema: pa.Schema | None = None) -> str:
    """Return the line of a file. That of the first file has the schema of the source, if a file gave it."""
    record = {"file": ordinal, "path": file.path, "size": file.size, "modified": file.modified}
    if schema is not None:
        record["schema"] = base64.b64encode(schema.serialize()).decode()
    return json.dumps(record)


def files_in(journal: Sequence[str]) -> list[File]:
    """Return the files of a journal, by ordinal.

    Raises:
        InvalidInputError: The journal is another source's.
    """
    lines = (line for line in journal if line != WHOLE)
    return [_file_of_line(line, ordinal) for ordinal, line in enumerate(lines)]


def _file_of_line(line: str, ordinal: int) -> File:
    try:
        record = json.loads(line)
        if record["file"] == ordinal:
            modified = record["modified"]
            if modified is not None and modified > _NO_TIME:
                modified //= 1000
            return File(record["path"], record["size"], modified)
    except (ValueError, TypeError, KeyError):
        pass
    raise InvalidInputError(
        f"line {ordinal} of the journal was not written by a FileSource: {line[:200]!r}; "
        "the task had another source: give it another name, or reset it."
    )


def schema_in(journal: Sequence[str]) -> pa.Schema | None:
    """Return the schema that a file gave at the first start; None if the journal has none."""
    try:
        text = json.loads(journal[0])["schema"] if journal else None
        # Older versions wrote it with categories, of which a first file may have had few.
        return None if text is None else plain_schema(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text))))
    except (ValueError, TypeError, KeyError, OSError):
        return None
