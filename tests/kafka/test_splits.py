"""Offsets are cut into pieces of equal size, each offset in one of them. No broker is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from persistent_state import KafkaSource
from persistent_state.kafka.topics import Partition


@dataclass(frozen=True)
class Planned:
    """How a partition stands: where reading goes on (None: it is new), the first offset that is there, and the end."""

    start: int | None
    first: int
    more: int

    @property
    def begin(self) -> int:
        return self.start or 0

    @property
    def end(self) -> int:
        return self.begin + self.more

    @property
    def readable(self) -> range:
        """The offsets that are to be read and not lost."""
        return range(min(max(self.begin, self.first), self.end), self.end)


PARTITIONS = st.dictionaries(
    st.integers(0, 9), st.builds(Planned, st.none() | st.integers(0, 6), st.integers(0, 8), st.integers(0, 20))
)


def pieces_of(planned: Mapping[int, Planned], parts: int) -> list[list[tuple[int, int, int, bool]]]:
    """The pieces as (partition, begin, end, whether it tells of a gap)."""
    source = KafkaSource("t", "nowhere:9092")
    names = {number: f"t-{number}" for number in planned}
    there = {names[n]: Partition("t", n, 0, one.first, one.end, None, one.end) for n, one in planned.items()}
    start = {names[n]: one.start for n, one in planned.items() if one.start is not None}
    ends = {names[n]: one.end for n, one in planned.items()}
    with mock.patch.object(KafkaSource, "partitions", there):
        splits = source.splits(start, ends, parts)
    return [[(one.partition, one.begin, one.end, one.gap is not None) for one in split] for split in splits]


@given(PARTITIONS, st.integers(1, 7))
def test_each_offset_is_in_one_piece_and_pieces_are_equal(planned: dict[int, Planned], parts: int) -> None:
    pieces = pieces_of(planned, parts)
    assert len(pieces) <= parts
    read = [(n, offset) for piece in pieces for n, begin, end, _ in piece for offset in range(begin, end)]
    wanted = [(n, offset) for n, one in planned.items() for offset in range(one.begin, one.end)]
    assert sorted(read) == sorted(wanted)
    # What is lost takes no time to read, and is told of once.
    total = sum(len(one.readable) for one in planned.values())
    sizes = [sum(offset in planned[n].readable for n, b, e, _ in piece for offset in range(b, e)) for piece in pieces]
    assert max(sizes, default=0) <= -(-total // parts)
    gaps = [n for piece in pieces for n, _, _, tells in piece if tells]
    assert sorted(gaps) == sorted(n for n, one in planned.items() if one.more and one.begin < one.first)


def test_many_pieces_of_many_partitions_are_as_many_as_both_together() -> None:
    pieces = pieces_of({n: Planned(0, 0, 7) for n in range(300)}, 100)
    assert len(pieces) == 100
    assert sum(map(len, pieces)) <= 300 + 100
