"""Tasks on one topic of a real broker: one that is rebuilt joins the others though Kafka has deleted records."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import pyarrow as pa
import pytest

from examples.broker import Broker
from persistent_state import KafkaSource
from persistent_state.kafka import Json, topics
from persistent_state.outputs import outputs_of
from persistent_state.protocol import flows
from persistent_state.run.feeds import FedTask, feeds_of
from persistent_state.store.entry import Entry
from tests import core
from tests.kafka.test_subscription import Total
from tests.kafka.topics import deleted_before, made_anew, new_topic, produce
from tests.local_application import LocalApplication

SCHEMA = pa.schema([("n", pa.int64())])


@pytest.fixture(autouse=True)
def _impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a single broker says is so."""
    monkeypatch.setattr(topics, "PATIENCE", 0.5)


class Shops(LocalApplication):
    """An application of tasks that are given one source object."""

    def __init__(self, broker: Broker, topic: str, *names: str) -> None:
        source = KafkaSource(topic, broker.address, value=Json(SCHEMA), fail_on_data_loss=False)
        files, schema = core.memory(), source.schema
        plans = [core.plan_of(Total(n), schema, files=files, timestamp="kafka_timestamp") for n in names]
        (feed,) = feeds_of([FedTask(plan, source, outputs_of(plan.name, None)) for plan in plans])
        self.together = feed.plan
        # Each flow reads a copy of its own.
        super().__init__({plan.name: plan for plan in plans}, {name: copy(source) for name in names})

    def begin(self, rebuild: Sequence[str] = ()) -> Entry:
        return self.start(self.together, rebuild=rebuild)

    def read(self) -> None:
        """Read all there is in each flow."""
        for flow in self.flows:
            while self.turn(flow.id) is not None:
                pass

    def totals(self) -> list[int]:
        return [core.state_at(self.newest, plan, None)[()] for plan in self.plans.values()]


def test_a_task_that_is_built_again_on_a_topic_with_deleted_records_joins(broker: Broker) -> None:
    topic = new_topic(broker, 2)
    shops = Shops(broker, topic, "a", "b")
    produce(broker, topic, range(100), 2)
    shops.begin()
    shops.read()
    deleted_before(broker, topic, 0, 30)
    entry = shops.begin(rebuild=["b"])
    assert list(entry.flows) == ["a", "b"]
    produce(broker, topic, range(100, 140), 2)
    shops.read()
    entry = shops.begin()
    assert (list(entry.flows), entry.tasks["b"].flow) == (["a"], "a")
    produce(broker, topic, range(140, 150), 2)
    shops.read()
    assert shops.totals() == [sum(range(150)), sum(range(150)) - sum(range(0, 60, 2))]
    assert list(shops.begin().flows) == ["a"]


def test_a_task_that_is_built_again_on_a_topic_that_was_made_again_stays_apart(broker: Broker) -> None:
    topic = new_topic(broker, 1)
    shops = Shops(broker, topic, "a", "b")
    produce(broker, topic, range(10), 1)
    shops.begin()
    shops.read()
    made_anew(broker, topic)
    produce(broker, topic, range(100, 110), 1)
    entry = shops.begin(rebuild=["b"])
    shops.read()
    entry = shops.begin()
    assert list(entry.flows) == ["a", "b"]
    # As many records of each were read, but the offsets are those of two topics.
    known = [{*flow.source.positions} for flow in entry.flows.values()]
    assert known == [{f"{topic}-0", f"{topic}-0#1"}, {f"{topic}-0"}]
    assert flows.meeting_positions(entry, ["a", "b"]) == {}
    produce(broker, topic, range(110, 120), 1)
    shops.read()
    # The last record of the old topic was above the clock, and was to be read again.
    assert shops.totals() == [sum(range(9)) + sum(range(100, 120)), sum(range(100, 120))]
