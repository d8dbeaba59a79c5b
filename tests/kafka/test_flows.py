"""Tasks on one topic of a real broker: one that is rebuilt joins the others though Kafka has deleted records."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from examples.broker import Broker
from persistent_state import Json, KafkaSource
from persistent_state.engine.feeds import FedTask, feeds_of
from persistent_state.kafka import topics
from persistent_state.outputs import outputs_of
from persistent_state.protocol import flows
from persistent_state.store import lists
from persistent_state.store.entry import Entry
from persistent_state.store.log import Log
from tests import core
from tests.kafka.test_subscription import Total
from tests.kafka.topics import deleted_before, made_anew, new_topic, produce

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a single broker says is so."""
    monkeypatch.setattr(topics, "PATIENCE", 0.5)


class Shops:
    """An application of tasks that are given one source object."""

    def __init__(self, broker: Broker, topic: str, *names: str) -> None:
        self.source = KafkaSource(topic, broker.address, value=Json(SCHEMA), fail_on_data_loss=False)
        files, schema = core.memory(), self.source.schema
        self.plans = [core.plan_of(Total(n), schema, files=files, timestamp="kafka_timestamp") for n in names]
        self.log = Log(files, "app")
        (feed,) = feeds_of([FedTask(plan, self.source, outputs_of(plan.name, None)) for plan in self.plans])
        self.flow = feed.plan

    def start(self, rebuild: Sequence[str] = ()) -> Entry:
        return core.start(self.log, [self.flow], rebuild=rebuild)

    def play(self, entry: Entry) -> None:
        """Read all there is in each flow of a start."""
        for id, flow in entry.flows.items():
            record = flow.source
            self.source.open(lists.read(self.log.files, record.journal), record.known_positions)
            plan = self.flow.of(entry.tasks_of(id))
            while core.play_source(self.log, plan, self.source) is not None:
                pass

    def totals(self) -> list[int]:
        newest = self.log.newest()
        assert newest is not None
        return [core.state_at(newest, plan, None)[()] for plan in self.plans]


def test_a_task_that_is_built_again_on_a_topic_with_deleted_records_joins(broker: Broker) -> None:
    topic = new_topic(broker, 2)
    shops = Shops(broker, topic, "a", "b")
    produce(broker, topic, range(100), 2)
    shops.play(shops.start())
    deleted_before(broker, topic, 0, 30)
    entry = shops.start(rebuild=["b"])
    assert list(entry.flows) == ["a", "b"]
    produce(broker, topic, range(100, 140), 2)
    shops.play(entry)
    entry = shops.start()
    assert (list(entry.flows), entry.tasks["b"].flow) == (["a"], "a")
    produce(broker, topic, range(140, 150), 2)
    shops.play(entry)
    assert shops.totals() == [sum(range(150)), sum(range(150)) - sum(range(0, 60, 2))]
    assert list(shops.start().flows) == ["a"]


def test_a_task_that_is_built_again_on_a_topic_that_was_made_again_stays_apart(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    shops = Shops(broker, topic, "a", "b")
    produce(broker, topic, range(10), 1)
    shops.play(shops.start())
    made_anew(broker, topic)
    produce(broker, topic, range(100, 110), 1)
    entry = shops.start(rebuild=["b"])
    shops.play(entry)
    entry = shops.start()
    assert list(entry.flows) == ["a", "b"]
    # As many records of each were read, but the offsets are those of two topics.
    known = [{*flow.source.positions} for flow in entry.flows.values()]
    assert known == [{f"{topic}-0", f"{topic}-0#1"}, {f"{topic}-0"}]
    assert flows.meeting_positions(entry, ["a", "b"]) == {}
    produce(broker, topic, range(110, 120), 1)
    shops.play(entry)
    # The last record of the old topic was above the clock, and was to be read again.
    assert shops.totals() == [sum(range(9)) + sum(range(100, 120)), sum(range(100, 120))]
