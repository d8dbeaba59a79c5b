"""From Kafka to Kafka on this machine alone: each record counts once, over starts and deaths of workers."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from examples.broker import Broker
from monoids import Sum
from persistent_state import Application, KafkaSink, KafkaSource, Local, NonWindowState, PersistentTask
from persistent_state.kafka import Decoded, Decoder
from persistent_state.kafka.sink import as_json
from tests.kafka.deliverer import consume, newest
from tests.kafka.topics import new_topic, produce


class PerDigit(PersistentTask):
    """The sum of the numbers with the same last digit."""

    key, value = "digit", "n"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class Digits(Decoder):
    """Numbers with their last digit. A worker dies of its first records, until a file is there."""

    schema = pa.schema([("n", pa.int64()), ("digit", pa.int64())])

    def __init__(self, died: Path) -> None:
        self.died = str(died)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        if not Path(self.died).exists():
            Path(self.died).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        numbers = [json.loads(value or b"{}")["n"] for value in values]
        return Decoded(pa.record_batch({"n": numbers, "digit": [n % 10 for n in numbers]}, self.schema))


class Encoded:
    """The records of values. A worker dies of those of its second transaction, until a file is there."""

    def __init__(self, died: Path) -> None:
        self.died = str(died)
        self.calls = 0

    def __call__(self, rows: pa.RecordBatch) -> tuple[list[str], list[str]]:
        self.calls += 1
        if self.calls == 2 and not Path(self.died).exists():
            Path(self.died).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return as_json(1, rows)


def test_records_count_once_from_topic_to_topic(broker: Broker, tmp_path: Path) -> None:
    read, written = new_topic(broker, 2), new_topic(broker, 2)

    def application(start: int) -> Application:
        source = KafkaSource(read, broker.address, value=Digits(tmp_path / f"died {start}"))
        app = Application("digits", str(tmp_path / "store"), checkpoint_interval="1 second", allowed_delay="1 minute")
        encode = Encoded(tmp_path / f"died of a part {start}")
        sink = KafkaSink(written, broker.address, partitions=2, rows_per_transaction=2, encode=encode)
        return app.add(PerDigit(), source, sink)

    for start in range(3):
        produce(broker, read, range(100 * start, 100 * start + 100), 2, millis=lambda n: 1_700_000_000_000 + 1000 * n)
        assert application(start).run(Local(2), drain=True).restarts == 0
        assert (tmp_path / f"died {start}").exists()
        assert (tmp_path / f"died of a part {start}").exists()
        total = sum(row["value"] for row in newest(broker, written).values())
        assert total == sum(range(100 * start + 100))
    given = [(message.key(), json.loads(message.value())["clock"]) for message in consume(broker, written)]
    assert len(given) == len({*given}), "no value is seen twice"
