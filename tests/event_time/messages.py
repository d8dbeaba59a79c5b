"""Messages that are no more than their timestamps, and a task that counts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from monoids import Count
from persistent_state import Message, NonWindowState, PersistentState, PersistentTask

ROW = pa.schema([("ts", pa.int64())])

STAMPS = st.integers(-300, 300)


class Counts(PersistentTask):
    def persistent_state(self) -> NonWindowState[Any]:
        return NonWindowState(Count())

    def process_message(self, state: PersistentState[Any], message: Message) -> None:
        state.update(message.timestamp, 1)


def rows(stamps: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(stamps, pa.int64())], schema=ROW)


def array(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)
