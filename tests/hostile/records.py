"""Kafka records as anybody may write them, with the interface of `confluent_kafka.Message`.

`tests/kafka/test_foreign_records.py` compares them with what the client itself makes of the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from tests.hostile.texts import BYTES, JSON_TEXTS, NUMBERS_OF_JSON

Header = tuple[bytes, bytes | None]

_NOT_SET: Any = object()


@dataclass
class Record:
    """A record that a client of another language has written."""

    written_key: bytes | None
    written_value: bytes | None
    written_headers: Sequence[Header]
    millis: int
    at: int = 0
    _headers: Any = field(default=_NOT_SET, repr=False)

    def __len__(self) -> int:
        return len(self.written_value or b"")

    def key(self) -> bytes | None:
        return self.written_key

    def value(self) -> bytes | None:
        return self.written_value

    def timestamp(self) -> tuple[int, int]:
        return 1, self.millis

    def offset(self) -> int:
        return self.at

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return 0

    def error(self) -> None:
        return None

    def headers(self) -> Any:
        if self._headers is not _NOT_SET:
            # The client would return a tuple with a null pointer.
            assert self._headers is not None, "a look at these headers ends the process"
            return self._headers
        if (headers := self.readable_headers) is None:
            self._headers = None
            error = SystemError("<built-in method headers> returned a result with an exception set")
            raise error from UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
        return headers or None

    def set_headers(self, headers: Any) -> None:
        self._headers = headers

    @property
    def readable_headers(self) -> list[tuple[str, bytes | None]] | None:
        """The headers as the client returns them, by names that end at a NUL; None if it can't."""
        try:
            return [(name.partition(b"\0")[0].decode(), value) for name, value in self.written_headers]
        except UnicodeDecodeError:
            return None


@dataclass
class Log:
    """A consumer of a partition of these records."""

    records: Sequence[Record]
    at: int = 0

    def assign(self, places: Sequence[Any]) -> None:
        self.at = places[0].offset

    def poll(self, timeout: float) -> Record | None:
        return next(iter(self.consume(1, timeout)), None)

    def consume(self, count: int, timeout: float) -> Sequence[Record]:
        came = self.records[self.at : self.at + count]
        self.at += len(came)
        return came

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        return 0, len(self.records)

    def close(self) -> None:
        pass


MARK, CLOCK = "app/Totals", 50
"""The task that the headers of a sink's rows name, and the clock to which it goes back."""

OWN_NAMES = st.sampled_from([b"task", b"clock", b"highest", b"timeline"])
HEADERS = st.lists(
    st.tuples(
        OWN_NAMES | BYTES, st.none() | st.sampled_from([MARK.encode(), b"49", b"51", b"9" * 5_000, b"1.5"]) | BYTES
    ),
    max_size=4,
)
CLOCKS = st.lists(st.tuples(st.just(b"clock"), st.none() | BYTES), max_size=1)
OWN_HEADERS = st.builds(lambda clocks, others: [(b"task", MARK.encode()), *clocks, *others], CLOCKS, HEADERS)
MILLIS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [-1, 0, 1_732_600_000_000, 1_732_600_000_000_000_000, 2**62 // 1000, 2**62 // 1000 + 1, 2**63 // 1000, 2**62 + 1_732_600_000_000]
)  # fmt: skip
KEYS = (
    st.none()
    | st.sampled_from([b"", b"app/Totals/t/t.clocks/0", b"app/Totals/t/t.clocks", b"app/Totals/t/t.clocks/\xff"])
    | BYTES
)
VALUES = st.none() | BYTES | (NUMBERS_OF_JSON | JSON_TEXTS).map(lambda text: text.encode("utf-8", "surrogatepass"))
RECORDS = st.lists(st.builds(Record, KEYS, VALUES, HEADERS | OWN_HEADERS, MILLIS), min_size=1, max_size=5)
