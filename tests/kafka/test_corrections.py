"""Rewinds in a real Kafka: whoever keeps the newest value of each key has those at the clock, whoever is killed or paused."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import random
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import confluent_kafka
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from examples.broker import Broker
from persistent_state.errors import FencedError, InvalidInputError, StoreUnavailableError
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.kafka import ledger, read_back, transactions
from persistent_state.kafka.ledger import NOTHING_READ
from persistent_state.kafka.sink import KafkaSink, as_json
from persistent_state.kafka.transactions import ClockWriter, Encode
from persistent_state.sinks.base import Origin
from persistent_state.sinks.values import LocalValues
from tests.kafka.deliverer import consume, go_back, go_back_until, newest, rows_of, watch, write_part, writer_of
from tests.kafka.pause import Pause
from tests.kafka.test_transactions import bookkeep
from tests.kafka.topics import deleted_before, producer
from tests.sentences import problem
from tests.soak import soak_or
from tests.waiting import PATIENCE

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.kafka.deliverer"])

STEPS_OF_KILLS = soak_or(ci=9, soak=1)
WHOLE: Encode = partial(as_json, 1)
ORIGIN = Origin("shop", "Totals", ("key",), rows_of(0).schema)
NO_VALUES = LocalValues(ORIGIN.schema, ())


@dataclass
class Story:
    """What was given to a topic, and what whoever keeps the newest value of each key must have by that."""

    broker: Broker
    topic: str
    timeline: int = 0
    given: dict[int, pa.Table] = field(default_factory=dict)
    last: int = BEGINNING
    encode: Encode = WHOLE
    forgets: float = 0.0
    """How often the value of a key is none: it is forgotten, and has no value at the clock."""

    @property
    def writer(self) -> ClockWriter:
        return writer_of(self.broker.address, self.topic, rows=3, timeline=self.timeline)

    def values_of(self, clock: int, timeline: int | None = None) -> pa.Table:
        """What a timeline gives at a clock: some keys of all, and some that only this clock of the timeline has."""
        timeline = self.timeline if timeline is None else timeline
        dice = random.Random(1000 * timeline + clock)
        keys = [*dice.sample([f"key {number}" for number in range(12)], 5), f"only {timeline} {clock}"]
        values = [1000 * clock + timeline + number for number in range(len(keys))]
        kept = [value if dice.random() >= self.forgets else None for value in values]
        return pa.table({"key": keys, "clock": [clock] * len(keys), "value": pa.array(kept, pa.int64())})

    def deliver(self, clock: int, parts: int = 2, parts_done: int | None = None) -> None:
        writer = self.writer
        writer.prepare()
        begun = writer.begin(clock, parts, NOTHING_READ)
        assert begun is not None
        for part in range(begun.parts)[:parts_done]:
            write_part(writer, begun, self.values_of(clock), part, self.encode)
        if parts_done is None:
            self.given[clock], self.last = self.values_of(clock), clock

    def at(self, clock: int) -> pa.Table:
        """The newest values at a clock."""
        newest = {
            row["key"]: row for each in sorted(self.given) if each <= clock for row in self.given[each].to_pylist()
        }
        rows = [{**row, "clock": clock} for row in newest.values() if row["value"] is not None]
        return pa.Table.from_pylist(rows, self.values_of(0).schema)

    def rewind(self, clock: int) -> None:
        self.timeline += 1
        go_back(self.writer, clock, self.at(clock), self.encode)
        self.void(clock)

    def void(self, clock: int) -> None:
        self.given, self.last = (
            {each: rows for each, rows in self.given.items() if each <= clock},
            min(self.last, clock),
        )

    def check(self) -> None:
        last = {message.key().decode(): message.value() for message in consume(self.broker, self.topic)}
        (batch,) = self.at(1 << 40).combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], ORIGIN.schema)]
        assert as_told(last) == as_told(dict(zip(*self.encode(batch), strict=True)))
        assert self.writer.last_clock(1) == self.last


def as_told(records: Mapping[Any, Any]) -> dict[Any, Any]:
    """What the newest records of keys tell: no key with a tombstone or without a value, whatever the clock is."""
    told = {key: value and json.loads(value)["value"] for key, value in records.items() if value is not None}
    return {key: value for key, value in told.items() if value is not None}


def with_holes(rows: pa.RecordBatch) -> tuple[list[str], list[str | bytes | None]]:
    """Some rows as tombstones, and some without a value, as of a set."""
    keys, values = as_json(1, rows)
    kinds = [value and value % 4 for value in rows["value"].to_pylist()]
    return keys, [{0: None, 1: b""}.get(kind, value) for kind, value in zip(kinds, values, strict=True)]


def told(message: Any) -> tuple[str, int, int]:
    """The task, the timeline and the clock that the headers of a record tell."""
    headers = {name: value.decode() for name, value in message.headers()}
    return headers["task"], int(headers["timeline"]), int(headers["clock"])


@pytest.fixture
def story(broker: Broker, topic: str) -> Story:
    return Story(broker, topic)


def start(function: Callable[..., None], *arguments: Any) -> Any:
    process = processes.Process(target=function, args=arguments, daemon=True)
    process.start()
    return process


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(soak_or(ci=2, soak=20)))
def test_whoever_keeps_the_newest_value_of_each_key_has_those_at_the_clock(
    story: Story, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice, clock = random.Random(seed), 0
    story.encode, story.forgets = with_holes if seed % 2 else story.encode, 0.3
    monkeypatch.setattr(read_back, "FIRST_SPAN", 4)
    for _ in range(12):
        if story.given and dice.random() < 0.4:
            if dice.random() < 0.5:
                # A driver was killed in the middle of a clock.
                story.deliver(clock + 10, 3, dice.randrange(1, 3))
            clock = dice.choice([*story.given, min(story.given) - 10, BEGINNING])
            story.rewind(clock)
            clock = max(story.given, default=0)
        else:
            clock += 10
            story.deliver(clock, dice.randint(1, 3))
        story.check()


def test_headers_tell_task_timeline_and_clock_and_a_key_that_was_not_there_gets_a_tombstone(story: Story) -> None:
    for clock in (10, 20):
        story.deliver(clock)
    before = len(consume(story.broker, story.topic))
    story.rewind(10)
    story.deliver(20)
    found = consume(story.broker, story.topic)
    assert {told(message) for message in found} == {("shop/Totals", *at) for at in ((0, 10), (0, 20), (1, 10), (1, 20))}
    corrected = {json.loads(message.key())["key"]: message for message in found if told(message)[1:] == (1, 10)}
    assert {*corrected} == {*story.values_of(20, 0)["key"].to_pylist()}
    were_there = {row["key"]: row for row in story.at(10).to_pylist()}
    assert {key for key, message in corrected.items() if message.value() is None} == corrected.keys() - were_there
    assert len(found) == before + len(corrected) + len(story.values_of(20))
    for key in corrected.keys() & were_there:
        assert json.loads(corrected[key].value()) == were_there[key]


@pytest.mark.soak
def test_a_correction_is_there_once_and_whole_whatever_step_its_driver_is_killed_at(story: Story) -> None:
    for clock in (10, 20, 30):
        story.deliver(clock)
    kills, ended = 0, set[int]()
    for step in itertools.count(1, STEPS_OF_KILLS):
        to = (20, BEGINNING)[step % 2]
        story.deliver(40, 3, 2)
        # The sink follows two rewinds, one after the other. If the first is killed, the second goes on from there.
        for clock in (30, to):
            before = newest(story.broker, story.topic)
            story.timeline += 1
            process = start(
                go_back_until, story.broker.address, story.topic, story.timeline, clock, story.at(clock), step
            )
            process.join(PATIENCE)
            assert process.exitcode in (0, -signal.SIGKILL)
            if is_dead := process.exitcode != 0:
                kills += 1
                with story.writer._producer(story.writer.owner):
                    # What was pending is settled.
                    pass
                found = newest(story.broker, story.topic)
                is_corrected = {key: row["value"] for key, row in found.items()} == values(story.at(clock))
                assert found == before or is_corrected, "a reader sees all of a correction, or nothing"
            story.void(clock)
        go_back(story.writer, to, story.at(to))
        story.check()
        count = len(consume(story.broker, story.topic))
        go_back(story.writer, to, story.at(to))
        assert len(consume(story.broker, story.topic)) == count
        if not is_dead:
            ended.add(to)
        if len(ended) == 2:
            break
        story.deliver(30)
        story.check()
    assert kills > 10 / STEPS_OF_KILLS


def values(rows: pa.Table) -> Mapping[str, int]:
    return {row["key"]: row["value"] for row in rows.to_pylist()}


@pytest.mark.soak
@pytest.mark.parametrize("step", range(1, 30, soak_or(ci=5, soak=1)))
def test_a_driver_of_a_timeline_that_has_ended_changes_nothing(
    story: Story, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    for clock in (10, 20):
        story.deliver(clock)
    back = BEGINNING if step % 2 else 10
    pause, old = Pause(step), replace(story, given={})
    monkeypatch.setattr(confluent_kafka, "Producer", watch(pause.come_to))

    def be_old() -> None:
        pause.mine.steps = itertools.count(1)
        for clock in (30, 40):
            old.deliver(clock)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(be_old)
        assert pause.waits.wait(PATIENCE)
        story.rewind(back)
        corrected = consume(story.broker, story.topic)
        story.check()
        pause.goes_on.set()
        assert isinstance(running.exception(PATIENCE), (FencedError, StoreUnavailableError))
    assert len(consume(story.broker, story.topic)) == len(corrected)
    story.deliver(30)
    story.check()


def test_a_writer_of_a_part_that_comes_in_the_middle_of_a_correction_stops(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes its id over when the correction has taken it over, and before the correction is there."""
    story.deliver(10)
    old = story.writer
    begun = old.begin(20, 2, NOTHING_READ)
    assert begun is not None
    write_part(old, begun, story.values_of(20), 0)
    found = []

    def read_late(*arguments: Any) -> Any:
        found.append(problem(lambda: write_part(old, begun, story.values_of(20, 0), 1), FencedError))
        return read_back.keys_above(*arguments)

    monkeypatch.setattr(transactions, "keys_above", read_late)
    story.rewind(10)
    story.check()
    assert "has values of timeline=1, and this writer is of timeline=0, which has ended" in found[0]
    for clock in (10, 20, 30):
        with pytest.raises(FencedError):
            old.begin(clock, 2, NOTHING_READ)
    with pytest.raises(FencedError):
        old.last_clock(2)
    with pytest.raises(FencedError):
        go_back(old, 10, story.at(10))
    story.check()


def test_a_sink_that_has_nothing_above_the_clock_only_changes_its_timeline(story: Story) -> None:
    story.deliver(10)
    story.deliver(20, 3, 1)
    before = len(consume(story.broker, story.topic))
    story.rewind(20)
    assert len(consume(story.broker, story.topic)) == before
    # What was begun is finished, each row once.
    begun = story.writer.begin(20, 1, NOTHING_READ)
    assert begun is not None
    assert begun.parts == 3
    for part in range(3):
        write_part(story.writer, begun, story.values_of(20, 0), part)
    story.given[20], story.last = story.values_of(20, 0), 20
    story.check()
    assert len(consume(story.broker, story.topic)) == sum(map(len, story.given.values()))


def test_an_empty_topic_goes_back(story: Story) -> None:
    story.writer.prepare()
    story.rewind(10)
    assert consume(story.broker, story.topic) == []
    story.deliver(10)
    story.check()


def test_a_lower_clock_behind_one_that_is_written_by_half_does_not_end_the_reading(story: Story) -> None:
    """Under at-least-once delivery a task's own clock may be given before the global one, and that be another."""
    story.deliver(10, 1)
    story.deliver(40, 2, 1)
    story.deliver(20, 2)
    story.deliver(30, 2)
    story.rewind(20)
    story.check()
    # Now of a correction that gives values at a clock which its sink has not come to.
    story.deliver(50, 3, 2)
    story.timeline += 1
    then = story.at(20)
    go_back(story.writer, 30, then.set_column(2, "value", pc.add(then["value"], 7)))
    story.deliver(25)
    found = {key: row["value"] for key, row in newest(story.broker, story.topic).items()}
    assert found != values(story.at(25)), "a key has its value at 30, and no other at 25"
    story.rewind(25)
    story.check()


def test_at_a_rewind_to_the_beginning_every_key_gets_a_tombstone_once(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_back, "FIRST_SPAN", 4)

    def corrected() -> list[Any]:
        found = consume(story.broker, story.topic, **{"auto.offset.reset": "earliest"})
        return [message for message in found if told(message)[1:] == (story.timeline, BEGINNING)]

    for clock in (10, 20, 30):
        story.deliver(clock)
    story.rewind(10)
    story.deliver(20)
    # A driver was killed in the middle of a clock.
    story.deliver(40, 3, 2)
    keys = {message.key() for message in consume(story.broker, story.topic)}
    assert story.writer.count_above(BEGINNING) == len(keys)
    story.rewind(BEGINNING)
    story.check()
    assert sorted(message.key() for message in corrected()) == sorted(keys)
    assert {message.value() for message in corrected()} == {None}
    # Asked again, it writes nothing. Then all comes, at whatever clock.
    sink = KafkaSink(story.topic, story.broker.address)
    assert sink.open(replace(ORIGIN, timeline=2)) is None
    sink.rewind(BEGINNING, NO_VALUES)
    assert (len(corrected()), sink.rows_above(BEGINNING, ORIGIN)) == (len(keys), 0)
    for clock in (-10, 20):
        story.deliver(clock)
    story.check()
    # The reading ends at the correction.
    since = {key for clock in (-10, 20) for key in story.values_of(clock)["key"].to_pylist()}
    assert story.writer.count_above(BEGINNING) == len(since)
    # Retention has deleted even that.
    for partition in (0, 1):
        deleted_before(story.broker, story.topic, partition, -1)
    story.deliver(30)
    assert (story.writer.count_above(20), story.writer.count_above(BEGINNING)) == (None, 6)
    story.rewind(BEGINNING)
    assert {json.loads(message.key())["key"] for message in corrected()} == {*story.values_of(30, 2)["key"].to_pylist()}
    assert story.writer.last_clock(1) == BEGINNING


@pytest.mark.parametrize("back", [10, BEGINNING])
def test_records_of_others_in_the_topic_stay(story: Story, back: int) -> None:
    other = [
        writer_of(story.broker.address, story.topic, task="Others"),
        replace(story.writer, bookkeeping=f"{story.topic}.more"),
    ]
    story.deliver(10)
    for number, writer in enumerate(other):
        writer.prepare()
        for clock in (10, 20):
            begun = writer.begin(clock, 1, NOTHING_READ)
            assert begun is not None
            rows = story.values_of(clock)
            keys = [f"of {number} {key}" for key in rows["key"].to_pylist()]
            write_part(writer, begun, rows.set_column(0, "key", pa.array(keys)), 0)
    stranger = producer(story.broker)
    stranger.produce(
        story.topic, json.dumps({"value": 7}), json.dumps({"key": "of a stranger"}), headers=[("clock", "x")]
    )
    assert stranger.flush(PATIENCE) == 0
    before = newest(story.broker, story.topic)
    own = story.values_of(10)["key"].to_pylist()
    story.deliver(20)
    story.rewind(back)
    after = newest(story.broker, story.topic)
    assert after == {key: value for key, value in before.items() if back == 10 or key not in own}
    assert {"of 0 key 1", "of 1 only 0 20", "of a stranger"} < after.keys()


def test_all_keys_are_given_where_the_last_trace_of_one_may_be_gone(story: Story) -> None:
    def encode(rows: pa.RecordBatch) -> Any:
        keys, values = as_json(1, rows)
        return keys, [None if row["value"] % 2 else value for row, value in zip(rows.to_pylist(), values, strict=True)]

    story.deliver(10)
    begun = story.writer.begin(20, 1, NOTHING_READ)
    assert begun is not None
    write_part(story.writer, begun, story.values_of(20), 0, encode)
    assert story.writer.count_above(10) is None
    story.rewind(10)
    story.check()
    given = [message for message in consume(story.broker, story.topic) if told(message)[1:] == (1, 10)]
    assert {json.loads(message.key())["key"] for message in given if message.value()} == {*values(story.at(10))}
    # The correction has tombstones itself, at its clock: nothing below it is known of the keys.
    story.deliver(20)
    assert story.writer.count_above(10) == len(story.values_of(20))
    assert story.writer.count_above(9) is None
    # Retention has deleted the oldest records, or even all.
    for partition in (0, 1):
        deleted_before(story.broker, story.topic, partition, -1)
    assert story.writer.count_above(10) is None
    story.rewind(10)
    found = consume(story.broker, story.topic, **{"auto.offset.reset": "earliest"})
    given = [message for message in found if told(message)[1:] == (2, 10)]
    assert {json.loads(message.key())["key"]: json.loads(message.value()) for message in given} == {
        row["key"]: row for row in story.at(10).to_pylist()
    }


def test_what_a_rewind_would_change_is_counted_and_nothing_is_changed(story: Story) -> None:
    assert story.writer.count_above(10) == 0
    for clock in (10, 20, 30):
        story.deliver(clock)
    before, record = consume(story.broker, story.topic), story.writer.last_clock(1)
    keys = {key for clock in (20, 30) for key in story.values_of(clock)["key"].to_pylist()}
    assert [story.writer.count_above(clock) for clock in (40, 30, 20, 10)] == [0, 0, 6, len(keys)]
    assert (len(consume(story.broker, story.topic)), story.writer.last_clock(1)) == (len(before), record)
    sink = KafkaSink(story.topic, story.broker.address)
    assert sink.rows_above(10, ORIGIN) == len(keys)
    assert sink.rows_above(10, replace(ORIGIN, task="Others")) == 0
    assert (sink.last_clock(ORIGIN), sink.last_clock(replace(ORIGIN, task="Others"))) == (30, BEGINNING)
    # Half a clock is one that a sink may have.
    story.deliver(40, 3, 2)
    assert sink.last_clock(ORIGIN) == 40
    story.rewind(10)
    assert sink.last_clock(replace(ORIGIN, timeline=story.timeline)) == 10
    with pytest.raises(FencedError, match="which has ended"):
        sink.last_clock(ORIGIN)


def test_a_plan_refuses_what_a_start_would_and_makes_no_topic(broker: Broker, topic: str) -> None:
    bookkeeping = f"{topic}.clocks"
    assert KafkaSink(topic, broker.address).rows_above(10, ORIGIN) == 0
    assert bookkeeping not in broker.admin().list_topics(timeout=PATIENCE).topics
    said = problem(lambda: KafkaSink(f"{topic}-none", broker.address).rows_above(10, ORIGIN))
    assert said.startswith(f"topic='{topic}-none' is not at bootstrap_servers=")
    sink = KafkaSink(topic, broker.address, bookkeeping=topic + "-deleting")
    broker.make(topic + "-deleting", cleanup_policy="delete")
    assert "has cleanup.policy=delete, and would lose" in problem(lambda: sink.rows_above(10, ORIGIN))


def test_rows_with_empty_values_are_taken_back_too(story: Story) -> None:
    """A client takes a record without a value, or with an empty one, for false."""
    story.deliver(10)
    begun = story.writer.begin(20, 1, NOTHING_READ)
    assert begun is not None
    write_part(story.writer, begun, story.values_of(20), 0, lambda rows: (as_json(1, rows)[0], [b""] * len(rows)))
    assert story.writer.count_above(10) == len(story.values_of(20))
    story.rewind(10)
    last = {json.loads(message.key())["key"]: message.value() for message in consume(story.broker, story.topic)}
    found = {key: json.loads(value)["value"] for key, value in last.items() if value is not None}
    assert found == values(story.at(10))


def test_rows_without_keys_are_refused(story: Story) -> None:
    story.deliver(10)
    begun = story.writer.begin(20, 1, NOTHING_READ)
    assert begun is not None
    write_part(story.writer, begun, story.values_of(20), 0, lambda rows: ([None] * len(rows), [b"1"] * len(rows)))
    for refused in (lambda: story.writer.count_above(10), lambda: story.rewind(10)):
        assert "has rows above the clock without keys, which can't be taken back" in problem(refused)


def test_emitted_rows_are_refused(broker: Broker, topic: str) -> None:
    sink, emitted = KafkaSink(topic, broker.address), replace(ORIGIN, is_unique=False, timeline=1)
    assert (sink.can_rewind(ORIGIN), sink.can_rewind(emitted)) == (True, False)
    sink.open(emitted)
    said = problem(lambda: sink.rewind(10, NO_VALUES))
    assert "has rows that a task emits, which have no unique key and can't be taken back" in said


def test_a_sink_is_open_for_one_timeline(broker: Broker, topic: str) -> None:
    new, old = KafkaSink(topic, broker.address), KafkaSink(topic, broker.address)
    assert old.open(ORIGIN) is None
    assert new.open(replace(ORIGIN, timeline=3)) is None
    new.rewind(10, NO_VALUES)
    for refused in (lambda: old.open(ORIGIN), lambda: old.rewind(10, NO_VALUES)):
        assert "was rewound. Stop it, and start it again." in problem(refused, FencedError)
    assert new.open(replace(ORIGIN, timeline=4)) is None


def test_a_topic_of_an_older_version_goes_back_to_what_it_was_then(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as then:
        then.setattr(ClockWriter, "_headers", lambda *_: [])
        for clock in (10, 20):
            story.deliver(clock)
    last = story.writer.begin(20, 1, NOTHING_READ)
    assert last is None
    fields = {"format": 1, "begun": begun_last(story), "clock": 20, "previous": 10, "parts": 2}
    bookkeep(story.broker, story.topic, story.writer.owner, fields)
    assert story.writer.last_clock(1) == 20
    story.deliver(30)
    for refused in (lambda: story.writer.count_above(10), lambda: story.rewind(10)):
        said = problem(refused, InvalidInputError)
        assert "has rows of an older version up to clock=1970-01-01T00:00:00.000020Z (20), without headers" in said
        story.timeline = 0
    assert story.writer.count_above(20) == 6
    story.rewind(20)
    story.check()


def begun_last(story: Story) -> int:
    """The number of the beginning that the bookkeeping has."""
    records = {m.key().decode(): json.loads(m.value()) for m in consume(story.broker, f"{story.topic}.clocks")}
    number: int = records[story.writer.owner]["begun"]
    return number


def test_an_older_version_does_not_go_on_in_a_later_timeline(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    story.deliver(10)
    story.rewind(0)
    monkeypatch.setattr(ledger, "FORMATS", (1,))
    assert "has format=2, not one of (1,); upgrade" in problem(lambda: story.writer.last_clock(1))


@pytest.fixture(autouse=True, scope="module")
def _forkserver() -> Iterator[None]:
    yield
    from multiprocessing import forkserver

    forkserver._forkserver._stop()  # type: ignore[attr-defined]
