"""Count words in a persistent task. Gearpump's MessageCount, which has one count of all messages, is in docs/from-gearpump.md.

    python -m examples.message_count [--json]

It writes a small stream of files, prints the counts at each checkpoint clock (of the words that came since the one
before), and exits 0 only if the last ones are those of a plain `Counter`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa

from examples.driven import folder_for, local_spark, write_stream
from monoids import Sum
from persistent_state import (
    Application,
    ConsoleSink,
    FileSource,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    read_state,
)

TEXT = """
    to be or not to be that is the question whether tis nobler in the mind to suffer the slings and arrows of outrageous
    fortune or to take arms against a sea of troubles and by opposing end them
"""


class MessageCount(PersistentTask):
    key = "word"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        state.update(message.timestamp, 1)


def application(folder: Path) -> Application:
    app = Application("message-count", store=str(folder / "store"), checkpoint_interval="10 seconds")
    return app.add(
        MessageCount(), FileSource(folder / "stream", timestamp="ts", max_files_per_batch=1), sink=ConsoleSink()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print the figures as a line of JSON in the end")
    arguments = parser.parse_args()
    with folder_for("message-count") as folder:
        words, begin = TEXT.split(), datetime(2025, 1, 1, tzinfo=timezone.utc)
        times = [begin + timedelta(seconds=second) for second in range(len(words))]
        write_stream(folder / "stream", pa.table({"word": words, "ts": times}), files=3)

        application(folder).run(local_spark("message-count"), drain=True)

        counts = read_state(str(folder / "store"), "message-count", MessageCount()).to_pylist()
    actual = {row["word"]: row["value"] for row in counts}
    is_right = actual == Counter(words)
    print(
        f"{sum(actual.values())} messages, {len(actual)} words, {'as' if is_right else 'NOT AS'} a Counter counts them"
    )
    if arguments.json:
        print(json.dumps({"messages": sum(actual.values()), "words": len(actual), "right": is_right}))
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
