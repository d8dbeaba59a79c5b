"""The application that the manifests of this folder run: it counts words. Put yours in its place.

Its settings are environment variables, so that one image runs everywhere:

    STORE    where the state is kept, such as s3://bucket/apps
    EVENTS   a folder of Parquet files with the columns ts and word, such as s3://bucket/events
    COUNTS   where the counts at each clock go, as Parquet files
    NAME     of the application, which is word-count unless it is said: a try on a copy has another one
"""

from __future__ import annotations

import os

import monoids
from persistent_state import (
    Application,
    FileSource,
    Message,
    NonWindowState,
    ParquetSink,
    PersistentState,
    PersistentTask,
)


class WordCount(PersistentTask):
    """The number of times that each word has come."""

    key = "word"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        state.update(message.timestamp, 1)


def app() -> Application:
    """Return the application, by the settings of the environment."""
    events = FileSource(os.environ["EVENTS"], timestamp="ts", schema="ts timestamp, word string")
    name = os.environ.get("NAME", "word-count")
    app = Application(name, os.environ["STORE"], checkpoint_interval="1 minute", allowed_delay="1 minute")
    return app.add(WordCount(), events, sink=ParquetSink(os.environ["COUNTS"]))
