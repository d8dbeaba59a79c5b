"""A driver of an application that counts words of a folder, with a channel for each word, until it is killed.

python -m tests.spark.silent_driver FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from persistent_state import Application, FileSource
from tests.spark.sessions import new_session
from tests.words import SCHEMA, Words


def main(folder: Path) -> None:
    app = Application("words", str(folder / "store"), checkpoint_interval="10 seconds", shards=1)
    app.add(Words(), FileSource(folder / "in", timestamp="ts", channel="word", schema=SCHEMA))
    app.start(new_session("silent")).await_termination()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
