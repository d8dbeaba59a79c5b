"""A task that counts words in files, or adds to them what does not fit: for the tests of what a run says of its rows."""

from __future__ import annotations

import pyarrow as pa

from monoids import Sum
from persistent_state import Message, NonWindowState, PersistentState, PersistentTask

SCHEMA = pa.schema([("ts", pa.int64()), ("word", pa.string())])


class Words(PersistentTask):
    key = "word"

    def __init__(self, name: str = "Words", update: object = 1) -> None:
        self.name = name
        self._update = update

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        state.update(message.timestamp, self._update)  # type: ignore[arg-type]
