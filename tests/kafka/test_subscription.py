"""What the Kafka source makes of what brokers say of topics: answers of a moment pass, and each record is read or told as lost.

No broker runs here: its answers are those of a `World`, or what brokers say in a failover.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import confluent_kafka.admin
import pyarrow as pa
import pytest
from confluent_kafka import IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import OffsetSpec
from hypothesis import given, settings
from hypothesis import strategies as st

from monoids import Sum
from persistent_state import (
    Application,
    InvalidInputError,
    KafkaSource,
    Local,
    NonWindowState,
    PersistentTask,
    StoreUnavailableError,
)
from persistent_state.batch.advance import advance
from persistent_state.inputs import Inputs
from persistent_state.kafka import Json, subscription, topics
from persistent_state.kafka.consumer import OffsetRange
from persistent_state.kafka.subscription import merge_journals
from persistent_state.protocol import commits
from persistent_state.run import running
from persistent_state.run.feeds import Feed, pending
from persistent_state.run.progress import progress_of
from persistent_state.sources.base import Reach
from persistent_state.store.log import Log as Journal
from tests import core
from tests.core import combine

SCHEMA = pa.schema([("n", pa.int64())])

PASSING = (
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
)
OFFSET_INVALID = -1001
"""What the library gives for an offset, with no error, where a leader has just gone."""


class Total(PersistentTask):
    value = "n"

    def __init__(self, name: str) -> None:
        self.name = name

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


@dataclass
class Log:
    """A topic: its id, and [first, end) of each partition."""

    id: str
    partitions: list[list[int]]
    stable: dict[int, int] = field(default_factory=dict)
    """By partition: where the first open transaction begins."""


@dataclass
class World:
    """Topics by name. `faults` says what the next requests are answered with instead: an error's code, or an offset."""

    logs: dict[str, Log] = field(default_factory=dict)
    faults: list[int] = field(default_factory=list)
    ids: Iterator[int] = field(default_factory=count)
    clients: int = 0
    passes: Callable[[float], None] = lambda seconds: None

    def make(self, name: str, partitions: int = 1, records: int = 0) -> Log:
        self.logs[name] = Log(f"id{next(self.ids)}", [[0, records] for _ in range(partitions)])
        return self.logs[name]


class Admin:
    """An admin client of a world."""

    def __init__(self, world: World) -> None:
        self.world = world
        world.clients += 1

    def list_topics(self, timeout: float) -> Any:
        return SimpleNamespace(topics=dict.fromkeys(self.world.logs))

    def describe_topics(self, names: Any, request_timeout: float) -> dict[str, Future[Any]]:
        def described(name: str) -> Any:
            if name not in self.world.logs:
                raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
            log = self.world.logs[name]
            partitions = [SimpleNamespace(id=i) for i in range(len(log.partitions))]
            return SimpleNamespace(topic_id=log.id, partitions=partitions)

        return {name: future(lambda name=name: described(name)) for name in names.topic_names}

    def list_offsets(self, asked: Mapping[Any, Any], isolation_level: Any, request_timeout: float) -> Any:
        def offset(place: Any, spec: Any) -> Any:
            found: int = -1
            if spec._value < 0:
                log = self.world.logs[place.topic]
                first, end = log.partitions[place.partition]
                if isolation_level == IsolationLevel.READ_COMMITTED:
                    end = min(end, log.stable.get(place.partition, end))
                found = first if type(spec) is type(OffsetSpec.earliest()) else end
            if self.world.faults and (fault := self.world.faults.pop()) != 0:
                if fault != OFFSET_INVALID:
                    raise KafkaException(KafkaError(fault))
                found = fault
            return SimpleNamespace(offset=found)

        return {place: future(lambda place=place, spec=spec: offset(place, spec)) for place, spec in asked.items()}


def future(ask: Callable[[], Any]) -> Future[Any]:
    made: Future[Any] = Future()
    try:
        made.set_result(ask())
    except KafkaException as error:
        made.set_exception(error)
    return made


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    arrange(monkeypatch, made)
    return made


def arrange(patch: pytest.MonkeyPatch, world: World) -> None:
    """Let clients be those of this world, and time pass by itself."""
    now = [0.0]

    def passes(seconds: float) -> None:
        now[0] += seconds

    patch.setattr(confluent_kafka.admin, "AdminClient", lambda options: Admin(world))
    for module in (topics, subscription):
        patch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=passes))
    world.passes = passes


def ends(source: KafkaSource, start: Mapping[str, int] | None = None) -> dict[str, int]:
    return dict(source.reach(start or {}, everything=True).ends)


@given(
    st.lists(st.sampled_from([0, OFFSET_INVALID, *PASSING]), max_size=30),
    st.sampled_from(["earliest", "latest"]),
)
def test_what_is_said_for_a_moment_is_asked_again_and_never_an_offset(faults: list[int], start: str) -> None:
    world = World(faults=faults)
    with pytest.MonkeyPatch.context() as patch:
        arrange(patch, world)
        world.make("t", 3, records=100)
        source = KafkaSource("t", "nowhere:9", starting_offsets=start)
        source.open([], {})
        reach = source.reach({}, everything=True)
        assert reach.ends == {f"t-{p}": 100 for p in range(3)}
        (line,) = reach.journal
        assert json.loads(line)["begins"] == dict.fromkeys("012", 100 if start == "latest" else 0)
        # Goes on, as each restart does.
        known = dict.fromkeys(reach.ends, 70)
        faults[:] = [OFFSET_INVALID, *PASSING]
        again = KafkaSource("t", "nowhere:9")
        again.open([line], known)
        assert ends(again, known) == reach.ends
        assert world.clients > 4, "each time by another client"


def test_a_start_at_a_time_before_1970_is_one_at_1970() -> None:
    # Kafka takes -1 for the end, and -2 for the beginning.
    asked = []
    for millis in (-1, -2, -(10**12), 0, 1):
        when = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=millis)
        asked.append(KafkaSource("t", "nowhere:9", starting_offsets=when)._starts)
    assert asked == [0, 0, 0, 0, 1]


def test_brokers_that_never_answer_are_unavailable(world: World) -> None:
    world.make("t")
    world.faults = [KafkaError._TIMED_OUT] * 1000
    with pytest.raises(StoreUnavailableError, match="Timed out"):
        KafkaSource("t", "nowhere:9").open([], {})
    assert 5 < world.clients < 100


def test_a_refusal_is_told_at_once(world: World) -> None:
    world.make("t")
    world.faults = [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(InvalidInputError, match="the user may not DESCRIBE topic='t'"):
        KafkaSource("t", "nowhere:9").open([], {})
    assert world.clients == 1


def test_what_a_broker_that_was_cut_off_says_is_asked_again_and_ends_a_run_only_if_it_stays(world: World) -> None:
    log = world.make("t", records=100)
    source = KafkaSource("t", "nowhere:9")
    source.open([], {})
    (line,) = source.reach({}, everything=False).journal

    class Stale(Admin):
        """Says how it was at first, as long as few have asked."""

        def __init__(self, world: World) -> None:
            super().__init__(world)
            if world.clients < most:
                self.world = World({} if is_gone else {"t": Log(log.id, [[0, 40]])})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confluent_kafka.admin, "AdminClient", lambda options: Stale(world))
        for is_gone in (False, True):
            most, world.clients = 4, 0
            again = KafkaSource("t", "nowhere:9")
            again.open([line], {"t-0": 90})
            assert ends(again, {"t-0": 80}) == {"t-0": 100}
            most = 10**6
            with pytest.raises(
                InvalidInputError, match="is not there" if is_gone else "ends at offset 40 and was read up to 90"
            ):
                KafkaSource("t", "nowhere:9").open([line], {"t-0": 90})


def test_a_rewind_is_refused_if_kafka_has_deleted_what_is_to_be_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaSource, "_oldest", lambda self, topic, begins: "offset 7")

    def source() -> KafkaSource:
        return KafkaSource(re.compile("t.*"), "nowhere:9")

    then = world.make("t1", records=100)
    opened = source()
    opened.open([], {})
    journal = opened.reach({}, everything=True).journal
    # A topic that comes after the clock.
    later = world.make("t2", records=50)
    opened.open(journal, {"t1-0": 100})
    newest = (*journal, *opened.reach({"t1-0": 100}, everything=True).journal)
    source().check_again({"t1-0": 40}, journal, newest)
    later.partitions[0][0] = 7
    with pytest.raises(InvalidInputError, match=r"topic='t2' partition=0 of .* has lost offsets 0 to 6"):
        source().check_again({"t1-0": 40}, journal, newest)
    # By the journal of then it would be a new topic, which begins with the record that there is.
    opened.open(journal, {"t1-0": 100})
    assert ends(opened, {"t1-0": 40}) == {"t1-0": 100, "t2-0": 50}
    del world.logs["t2"]
    with pytest.raises(InvalidInputError, match=r"topic='t2' of .* is gone"):
        source().check_again({"t1-0": 40}, journal, newest)
    # A topic of then is checked by `reach`, as at any start.
    opened.open(journal, {"t1-0": 100})
    then.partitions[0][0] = 60
    with pytest.raises(InvalidInputError, match=r"topic='t1' partition=0 of .* has lost offsets 40 to 59"):
        ends(opened, {"t1-0": 40})


@dataclass
class Reader:
    """Reads all topics as an application does that accepts losses: what it has read, and what it was told."""

    world: World
    journal: list[str] = field(default_factory=list)
    positions: dict[str, int] = field(default_factory=dict)
    read: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    lost: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    gaps: int = 0
    most: int = 10**6
    begin: str = "earliest"
    began: dict[str, int] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    """By partition: the offset at which reading it began, and the id of its topic."""

    def start(self) -> Reader:
        self.source = KafkaSource(
            re.compile("t.*"),
            "nowhere:9",
            fail_on_data_loss=False,
            max_offsets_per_batch=self.most,
            starting_offsets=self.begin,
        )
        self.source.open(self.journal, self.positions)
        return self

    def batch(self) -> bool:
        """Read a micro-batch; whether there was one."""
        reach = self.source.reach(self.positions, everything=False)
        if reach.ends == self.positions:
            return False
        for part in (part for split in self.source.splits(self.positions, reach.ends, 3) for part in split):
            id = self.world.logs[part.topic].id
            self.began.setdefault(part.partition_name, part.begin)
            self.ids.setdefault(part.partition_name, id)
            self.read.update((id, part.partition, i) for i in range(max(part.begin, part.first), part.end))
            if part.gap is not None and "first" in part.gap:
                self.gaps += 1
                self.lost.update((id, part.partition, i) for i in range(part.gap["from"], part.gap["first"]))
        self.positions, self.journal = dict(reach.ends), [*self.journal, *reach.journal]
        return True

    def reads_on(self, journal: Sequence[str], start: Mapping[str, int]) -> tuple[Counter[Any], Counter[Any]]:
        """What one with this journal reads from there on, and is told as lost."""
        other = Reader(self.world, [*journal], {**start}, most=self.most, begin=self.begin).start()
        while other.batch():
            pass
        return other.read, other.lost


@given(st.randoms(use_true_random=False))
def test_topics_come_and_go_and_all_that_they_hold_is_read_once_or_told_as_lost_once(chance: random.Random) -> None:
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        arrange(patch, world)
        reader = Reader(world, most=chance.choice([5, 10**6])).start()
        for _ in range(chance.randrange(40)):
            name = chance.choice(["t1", "t2"])
            log = world.logs.get(name)
            step = chance.choice(["look", "look", "restart", "write", "write", "delete", "make", "retention", "grow"])
            if step == "look":
                reader.batch()
            elif step == "restart":
                reader.start()
            elif log is None:
                if step == "make":
                    world.make(name, chance.randint(1, 2), chance.randrange(20))
            elif step == "write":
                chance.choice(log.partitions)[1] += chance.randrange(30)
            elif step == "delete":
                del world.logs[name]
            elif step == "make":
                world.make(name, 1, chance.randrange(20))
            elif step == "grow":
                log.partitions.append([0, 0])
            else:
                place = chance.choice(log.partitions)
                place[0] = chance.randint(*place)
        while reader.batch():
            pass
        assert max(reader.read.values(), default=0) <= 1
        assert max(reader.lost.values(), default=0) <= 1
        assert not reader.read.keys() & reader.lost.keys()
        for log in world.logs.values():
            for p, (first, end) in enumerate(log.partitions):
                seen = sorted(i for id, part, i in (*reader.read, *reader.lost) if (id, part) == (log.id, p))
                # What was gone before the topic was met is nobody's loss.
                assert seen == list(range(seen[0] if seen else end, end))
                assert not seen or seen[0] <= first


@settings(max_examples=300)
@given(st.randoms(use_true_random=False))
def test_journals_become_one_only_if_offsets_mean_the_same_and_either_reads_on_as_before(
    chance: random.Random,
) -> None:
    world = World()
    with pytest.MonkeyPatch.context() as patch:
        arrange(patch, world)
        world.make("t1", 1, 20)
        readers = [Reader(world).start(), Reader(world, begin=chance.choice(["earliest", "latest"]))]
        readers[0].batch()
        for last in (chance.randint(0, 6), chance.randint(0, 6)):
            for _ in range(last):
                log = world.logs.get(name := chance.choice(["t1", "t1", "t1", "t2"]))
                step = chance.choice(["look", "restart", "write", "write", "retention", "grow", "make", "delete"])
                if step == "look":
                    readers[0].batch()
                elif step == "restart":
                    readers[0].start()
                elif step == "make":
                    world.make(name, 1, chance.randrange(40))
                elif log is None:
                    pass
                elif step == "delete":
                    del world.logs[name]
                elif step == "write":
                    chance.choice(log.partitions)[1] += chance.randrange(30)
                elif step == "grow":
                    log.partitions.append([0, 0])
                else:
                    place = chance.choice(log.partitions)
                    place[0] = chance.randint(*place)
            readers.reverse()
            readers[0].start().batch()
        # Each replays from an offset that it has read.
        starts = [
            {
                name: chance.choice([end, chance.randint(reader.began.get(name, end), end)])
                for name, end in reader.positions.items()
            }
            for reader in readers
        ]
        one, other = readers
        replay = {name: min(each.get(name, 0) for each in starts) for each in starts for name in each}
        merged = merge_journals(one.journal, other.journal, replay)
        if merged is None:
            return
        for name in one.ids.keys() & other.ids.keys():
            assert one.ids[name] == other.ids[name]
            if one.began[name] != other.began[name]:
                assert replay[name] >= max(one.began[name], other.began[name])
        for reader, start in zip(readers, starts, strict=True):
            assert reader.reads_on(merged, start) == reader.reads_on(reader.journal, start)
        assert set(merged) >= {line for line in (*one.journal, *other.journal) if "gap" in line}


def journals(*readers: Reader) -> list[list[str]]:
    """What readers have written who have read all there is."""
    for reader in readers:
        while reader.batch():
            pass
    return [reader.journal for reader in readers]


def test_a_journal_that_began_later_as_records_were_deleted_becomes_one_with_another_behind_that(world: World) -> None:
    log = world.make("t", 2, records=100)
    (one,) = journals(Reader(world).start())
    log.partitions[0][0] = 60
    (other,) = journals(Reader(world).start())
    for first, second in ((one, other), (other, one)):
        merged = merge_journals(first, second, {"t-0": 60, "t-1": 0})
        assert merged is not None
        assert [json.loads(line)["begins"] for line in merged] == [{"0": 60, "1": 0}]
        # It goes on as it did, and is one with both.
        assert merge_journals(merged, first, {"t-0": 60}) == merge_journals(first, merged, {"t-0": 60}) == merged
        # One that has yet to read what the other never had stays alone.
        assert merge_journals(first, second, {"t-0": 59, "t-1": 0}) is None
        assert merge_journals(first, second, {"t-1": 70}) is None
    log.partitions.append([10, 20])
    (third,) = journals(Reader(world).start())
    # A partition that a journal does not name began at 0.
    assert merge_journals(one, third, {"t-0": 100, "t-1": 100, "t-2": 9}) is None
    merged = merge_journals(one, third, {"t-0": 100, "t-1": 100, "t-2": 10})
    assert merged is not None
    assert json.loads(merged[0])["begins"] == {"0": 60, "1": 0, "2": 10}


def test_journals_of_other_topics_stay_apart(world: World) -> None:
    replay = {"t-0": 50, "t-0#1": 50}
    log = world.make("t", records=100)
    old = Reader(world).start()
    (one,) = journals(old)
    log.partitions[0][0] = 10
    (later,) = journals(Reader(world).start())
    assert merge_journals(one, later, replay) is None, "nobody has recorded a second topic of the name"
    assert merge_journals(one, later, {"t-0": 50}) is not None
    # The same offsets of another topic.
    world.make("t", records=100)
    (new,) = journals(Reader(world).start())
    (both,) = journals(old.start())
    world.logs["t"].partitions[0][0] = 10
    (new_later,) = journals(Reader(world).start())
    for some in ((one, new), (one, new_later), (both, new_later), (both, later), (new_later, later)):
        assert merge_journals(*some, replay) is merge_journals(*some[::-1], {"t-0": 50}) is None
    assert merge_journals(new, new_later, {"t-0": 50}) is not None
    # A topic that only one of them knows.
    world.make("t2")
    (more,) = journals(Reader(world).start())
    assert merge_journals(new, more, {"t-0": 50}) is None
    # A broker gave no ids, or gives them by now.
    without = [json.dumps({**json.loads(line), "id": None}) for (line,) in (new, new_later)]
    for lines in ((without[0], without[1]), (without[0], new_later[0]), (new[0], without[1])):
        assert merge_journals([lines[0]], [lines[1]], {"t-0": 50}) is None
    # Other sources.
    for foreign in (["a/file.parquet 7"], ['{"path": "a"}'], ["7"], []):
        assert merge_journals(new, foreign, {"t-0": 50}) is merge_journals(foreign, new, {"t-0": 50}) is None
        assert merge_journals(foreign, foreign, {"": 50}) is None


def test_one_journal_records_the_losses_of_both(world: World) -> None:
    log = world.make("t", records=100)
    lost = [json.dumps({"gap": {"topic": "t", "partition": 0, "from": i, "first": 9}}) for i in range(3)]
    (one,) = journals(Reader(world).start())
    log.partitions[0][0] = 10
    (other,) = journals(Reader(world).start())
    merged = merge_journals([lost[0], *one, lost[1]], [*other, lost[1], lost[2]], {"t-0": 50})
    assert merged == [*other, *lost]


def test_a_lost_region_is_told_once_however_small_the_micro_batches(world: World) -> None:
    log = world.make("t", records=10)
    reader = Reader(world, most=3).start()
    while reader.batch():
        pass
    log.partitions[0] = [1000, 1010]
    while reader.batch():
        pass
    assert (reader.gaps, reader.lost.total(), reader.read.total()) == (1, 990, 20)
    log.partitions[0] = [2000, 2000]
    assert reader.batch()
    assert not reader.batch()
    assert (reader.gaps, reader.lost.total(), reader.read.total()) == (2, 990 + 990, 20)


def test_a_topic_that_is_seen_gone_and_then_made_anew_is_another(world: World) -> None:
    """Whether a look fell between or not."""
    for is_seen_gone in (False, True):
        world.make("t1", records=1000)
        reader = Reader(world).start()
        assert reader.batch()
        del world.logs["t1"]
        if is_seen_gone:
            reader.batch()
            reader.batch()
        log = world.make("t1", records=400)
        while reader.batch():
            pass
        assert reader.positions["t1-0#1"] == 400
        assert sum(id == log.id for id, _, _ in reader.read) == 400
        told = [json.loads(line) for line in reader.journal]
        assert [line["gap"]["topic"] for line in told if "gap" in line] == ["t1"] * is_seen_gone


def test_a_refusal_names_the_first_offset_of_the_replay_and_that_some_were_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = world.make("t", records=9000)
    source = KafkaSource("t", "nowhere:9")
    source.open([], {})
    (line,) = source.reach({}, everything=False).journal
    log.partitions[0][0] = 8900
    monkeypatch.setattr(KafkaSource, "_oldest", lambda *args: "somewhere")
    source.open([line], {"t-0": 8611})
    with pytest.raises(
        InvalidInputError, match=r"lost offsets 8013 to 8899, .* \(8013 to 8610 again, as the global clock"
    ):
        source.reach({"t-0": 8013}, everything=False)


def test_brokers_know_a_reader_by_its_application_and_topics_or_as_the_user_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(running, "start", lambda setup, *others: started.append(setup))
    app = Application("shops", str(tmp_path), shards=1)
    app.add(Total("a"), KafkaSource("orders", "nowhere:9", value=Json(SCHEMA)))
    app.add(Total("b"), KafkaSource(re.compile("o.*"), "nowhere:9", value=Json(SCHEMA), group="mine"))
    app.start(Local())
    (setup,) = started
    sources = [cloudpickle.loads(cloudpickle.dumps(part.source)) for part in setup.parts]
    assert [source._consumer_options()["group.id"] for source in sources] == ["shops orders", "mine"]


def test_a_partition_that_waits_stays_where_it_is_and_leaves_its_share_to_the_others(world: World) -> None:
    world.make("t", 2, records=50)
    source = KafkaSource("t", "nowhere:9", max_offsets_per_batch=40)
    source.open([], {})
    first = source.reach({}, everything=False)
    assert first.ends == {"t-0": 20, "t-1": 20}
    source.hold({"t-0"})
    waits = source.reach(first.ends, everything=False)
    assert waits.ends == {"t-0": 20, "t-1": 50}
    # What is written of the topic is committed, whoever waits.
    assert (first.journal != (), waits.journal) == (True, ())
    assert waits.unread == 30
    source.hold(())
    assert source.reach(waits.ends, everything=False).ends == {"t-0": 50, "t-1": 50}


def test_a_source_that_is_to_stay_within_offsets_neither_passes_them_nor_begins_another_partition(world: World) -> None:
    world.make("t", 3, records=50)
    source = KafkaSource("t", "nowhere:9", max_offsets_per_batch=1000)
    source.open([], {})
    source.stay_within({"t-0": 7, "t-1": 30})
    assert source.reach({"t-1": 40}, everything=False).ends == {"t-0": 7, "t-1": 40}
    assert source.reach({"t-1": 40}, everything=True).ends == {"t-0": 7, "t-1": 40}
    # Offsets that are lost beyond it are not stepped over.
    source = KafkaSource("t", "nowhere:9", fail_on_data_loss=False)
    source.open([], {})
    source.reach({}, everything=False)
    world.logs["t"].partitions[0][0] = 20
    source.stay_within({"t-0": 7})
    assert source.reach({"t-0": 5}, everything=False).ends == {"t-0": 7}


def test_progress_tells_how_many_offsets_there_were_beyond_the_micro_batch(world: World) -> None:
    world.make("t", 2, records=50)
    source = KafkaSource("t", "nowhere:9", max_offsets_per_batch=40)
    source.open([], {})
    reach, left = source.reach({}, everything=False), []
    while reach.ends != (before := source.reach(reach.ends, everything=False)).ends:
        left.append(reach.unread)
        reach = before
    assert [*left, reach.unread] == [60, 20, 0]
    plan = core.plan_of(Total("a"), pa.schema([("ts", pa.int64()), *SCHEMA]))
    log = Journal(plan.files, plan.application)
    entry, flow = core.start(log, [plan]), core.alone(plan)
    for unread in (None, 7):
        reach = Reach({"": 1}, unread=unread)
        basis = commits.plan_batch(entry, flow, reach, 0)
        made = core.merged(plan, [combine(flow, basis, 0, 1, [])])
        after = advance(entry.flow_of(plan.name), None, made.reports, plan.settings)
        entry = core.commit(log, plan, made)
        assert progress_of(entry, after, made.descriptors[0].task, "").unread == unread


def test_what_a_group_is_refused_keeps_no_record_back_and_what_a_topic_is_names_the_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    told: list[Any] = [[message(None, refused)], [message("t", None, 0), message("t", None, 1)]]

    class Consumer:
        def __init__(self, options: Any) -> None:
            self.assign = self.pause = lambda places: None
            self.close = lambda: None

        def consume(self, count: int, timeout: float) -> Any:
            return told.pop(0)

    monkeypatch.setattr(confluent_kafka, "Consumer", Consumer)
    source = KafkaSource("t", "nowhere:9")
    part = OffsetRange("t-0", "t", 0, 0, 2, 0, None)
    assert [row for chunk in source.read([part]) for row in chunk.positions.tolist()] == [0, 1]
    told.append([message("t", KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))])
    with pytest.raises(InvalidInputError, match="the user may not READ topic='t'"):
        list(source.read([part]))


class Held:
    """What a consumer is handed."""

    def __init__(self, topic: str | None, error: KafkaError | None, offset: int, partition: int, value: bytes) -> None:
        self._value = value
        self.topic, self.error, self.value = lambda: topic, lambda: error, lambda: value
        self.offset, self.partition, self.timestamp = lambda: offset, lambda: partition, lambda: (0, 0)
        self.key = self.headers = lambda: None

    def __len__(self) -> int:
        return len(self._value)


def message(
    topic: str | None, error: KafkaError | None, offset: int = 0, partition: int = 0, value: bytes = b""
) -> Any:
    return Held(topic, error, offset, partition, value)


def test_records_behind_an_open_transaction_are_unread_and_pending_since_they_were_first_seen(world: World) -> None:
    log = world.make("t", 2, records=50)
    log.stable[1] = 20
    source = KafkaSource("t", "nowhere:9")
    source.open([], {})
    reach = source.reach({}, everything=False)
    assert (reach.ends, reach.lag, reach.unread) == ({"t-0": 50, "t-1": 20}, {"t-0": 0, "t-1": 30}, 30)
    assert reach.pending == {"t-1": 0}
    world.passes(7)
    assert source.reach(reach.ends, everything=False).pending == {"t-1": 7}
    # Another transaction of the same partition is another one.
    log.stable[1] = 30
    assert source.reach(reach.ends, everything=False).pending == {"t-1": 0}
    log.stable.clear()
    reach = source.reach(reach.ends, everything=False)
    assert (reach.ends["t-1"], reach.lag["t-1"], reach.pending) == (50, 0, {})
    # Who reads what is not committed waits for nothing.
    log.stable[1] = 20
    source = KafkaSource("t", "nowhere:9", options={"isolation.level": "read_uncommitted"})
    source.open([], {})
    reach = source.reach({}, everything=False)
    assert (reach.ends["t-1"], reach.pending) == (50, {})


def test_a_feed_says_what_its_topic_holds_back_now(world: World) -> None:
    cluster = world.make("t", 2, records=50)
    plan = core.plan_of(Total("a"), pa.schema([("ts", pa.int64()), *SCHEMA]))
    entry, source = core.start(Journal(plan.files, plan.application), [plan]), KafkaSource("t", "nowhere:9")
    for one in (source, Inputs({"": source})):
        feed = Feed(core.alone(plan), one)
        assert pending(feed, entry, plan.files) == {}
        cluster.stable[1] = 20
        assert pending(feed, entry, plan.files) == {"t-1": 0}
        cluster.stable.clear()
    # The source itself is as it was: the one that is read is another copy.
    assert source._opened_state is None


@pytest.mark.parametrize("ends", [True, False])
def test_a_run_to_the_end_waits_a_little_for_transactions_that_are_open(world: World, ends: bool) -> None:
    log = world.make("t", 1, records=50)
    log.stable[0] = 20
    passes, waited = subscription.time.sleep, 0.0

    def sleep(seconds: float) -> None:
        nonlocal waited
        passes(seconds)
        waited += seconds
        if ends and waited > 2:
            # The transaction ends, and another begins behind it.
            log.partitions[0][1], log.stable[0] = 90, 60

    subscription.time.sleep = sleep
    source = KafkaSource("t", "nowhere:9")
    source.open([], {})
    source.freeze()
    reach = source.reach({}, everything=False)
    assert waited == pytest.approx(2 if ends else subscription.SETTLING, abs=0.2)
    assert reach.ends == {"t-0": 60 if ends else 20}
    assert (reach.pending.keys(), reach.unread) == (set() if ends else {"t-0"}, 0 if ends else 30)
    before = waited
    assert source.reach(reach.ends, everything=False).ends == reach.ends
    assert waited == before
