"""Write what a run logs as lines of JSON: its progress after each micro-batch, and what it says to people."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from datetime import datetime, timezone
from typing import TextIO

from persistent_state.formatting import to_json

LOGGER = logging.getLogger("persistent_state")
PROGRESS = "persistent_state.progress"
"""The logger whose messages are JSON already."""

FIELDS = "json_fields"
"""The attribute of a record whose line has fields of its own."""


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        fields = getattr(record, FIELDS, None)
        if fields is None:
            text = record.getMessage()
            fields = (
                {"event": "progress", **json.loads(text)} if record.name == PROGRESS else {"event": "log", "text": text}
            )
        return to_json({"at": at.replace("+00:00", "Z"), "level": record.levelname, **fields})


class _Handler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing: a run does not end because its lines are not read any more."""


@contextmanager
def stdout_for_lines() -> Iterator[TextIO]:
    """Return a file that writes to stdout, and let all else that writes there in this block write to stderr.

    This holds for the user's code, and for what this process starts: Spark's JVM may warn there.
    """
    lines = sys.stdout
    lines.flush()
    with redirect_stdout(sys.stderr):
        try:
            number, other = lines.fileno(), sys.stderr.fileno()
        except OSError:
            # Something of Python's stands in its place, which no other process writes to.
            yield lines
            return
        kept = os.dup(number)
        os.dup2(other, number)
        file = os.fdopen(kept, "w", encoding="utf-8")
        try:
            yield file
        finally:
            os.dup2(kept, number)
            # What is not read any more can't be written. That changes nothing about how the run has ended.
            with suppress(OSError):
                file.close()


@contextmanager
def written_to(file: TextIO) -> Iterator[None]:
    """Write to a file what the library logs in this block, from level INFO on.

    A record may have a mapping as `FIELDS`, which is then the line's.
    """
    handler = _Handler(file)
    handler.setFormatter(_Line())
    level = LOGGER.level
    LOGGER.addHandler(handler)
    # The user's module may have set one, which then holds.
    if level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    try:
        yield
    finally:
        LOGGER.setLevel(level)
        LOGGER.removeHandler(handler)
