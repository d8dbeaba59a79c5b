"""Count words from one Kafka topic to another, each count there once, although the driver and the broker are killed.

    python -m examples.topic_to_topic [--folder DIR] [--json] [--messages N]

It starts a broker on this machine (Maven brings its jars, once), writes words to the topic "words", and counts them
to the topic "counts": at each checkpoint clock the counts of the words that came since the one before.
It kills the driver with SIGKILL when some clocks are there, then the broker, starts both again, writes the other half of the
words, and exits 0 only if a consumer that reads what is committed finds each count once, right at its clock, and at the end
those of a plain `Counter`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from examples.broker import Broker, Unavailable
from examples.driven import driver, folder_for, last_words, local_spark
from examples.message_count import MessageCount
from persistent_state import Application, KafkaSink, KafkaSource
from persistent_state.errors import InvalidInputError
from persistent_state.formatting import show_clock
from persistent_state.kafka import Json
from persistent_state.kafka.client import library


def application(folder: Path, servers: str, partitions: int) -> Application:
    app = Application("words", store=str(folder / "store"), checkpoint_interval="10 seconds")
    words = KafkaSource("words", servers, value=Json(pa.schema([("word", pa.string())])), max_offsets_per_batch=2_000)
    return app.add(MessageCount(), words, sink=KafkaSink("counts", servers, partitions=partitions))


# That was the application. What follows writes words, kills, and checks.

WORDS = [f"word-{number:02d}" for number in range(40)]
PARTITIONS = 3
BEGIN = 1_735_689_600_000
"""Milliseconds."""
STEP = 5
KILL_AT = 3
"""The driver is killed when this number of clocks is in the topic."""


def produce(servers: str, words: Sequence[str], first: int) -> None:
    """Write words with their event times, the first of them that of the message number `first`."""
    # Without it a broker that has just started may be sent again what it did not take, after what came later.
    options = {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0}
    producer = library().Producer(options)
    for number, word in enumerate(words, first):
        value = json.dumps({"word": word})
        producer.produce("words", value, partition=number % PARTITIONS, timestamp=BEGIN + number * STEP)
    if producer.flush(60):
        sys.exit("The broker did not take the words.")


def committed(servers: str) -> Iterator[dict[str, Any]]:
    """The values of all records of the topic "counts" that are committed."""
    kafka = library()
    options = {
        "bootstrap.servers": servers,
        "group.id": "check",
        "enable.partition.eof": True,
        "log_level": 0,
    }
    consumer = kafka.Consumer(options)
    try:
        consumer.assign([kafka.TopicPartition("counts", partition, 0) for partition in range(PARTITIONS)])
        ended = set[int]()
        while len(ended) < PARTITIONS:
            message = consumer.poll(30)
            if message is None:
                sys.exit("The broker does not answer.")
            if message.error() is None:
                yield json.loads(message.value())
            else:
                ended.add(message.partition())
    finally:
        consumer.close()


def run_twice(folder: Path, broker: Broker, words: Sequence[str]) -> tuple[int, list[str]]:
    """The last clock that the first driver wrote, and what went wrong, a sentence each."""
    half = len(words) // 2
    produce(broker.address, words[:half], 0)
    with driver("examples.topic_to_topic", folder, "--drive", broker.address, "1") as process:
        while len(clocks := {record["clock"] for record in committed(broker.address)}) < KILL_AT:
            if process.poll() is not None:
                return 0, [f"the first driver ended before it could be killed, and said: {last_words(folder)}"]
            time.sleep(0.2)
        process.kill()
        process.wait()
    killed_at = max(clocks)
    print(f"Killed the driver when the topic was at {show_clock(killed_at)}, and then the broker.", flush=True)
    broker.kill()
    broker.start()
    produce(broker.address, words[half:], half)
    print("Both start again, the sink with 2 output partitions.", flush=True)
    with driver("examples.topic_to_topic", folder, "--drive", broker.address, "2") as process:
        if process.wait() != 0:
            return killed_at, [f"the second driver did not come to the end, and said: {last_words(folder)}"]
    return killed_at, []


def differences(actual: Sequence[dict[str, Any]], words: Sequence[str]) -> list[str]:
    """What is wrong with the counts, a sentence each."""
    by_clock = defaultdict[int, list[dict[str, Any]]](list)
    for record in actual:
        by_clock[record["clock"]].append(record)
    problems, last = list[str](), Counter[str]()
    for clock, records in sorted(by_clock.items()):
        below = Counter(words[: -(-(clock // 1000 - BEGIN) // STEP)])
        counts = {record["word"]: record["value"] for record in records}
        if len(counts) < len(records):
            problems.append(f"{len(records) - len(counts)} counts at {show_clock(clock)} are there twice")
        if wrong := [word for word, count in counts.items() if below[word] != count]:
            problems.append(f"{len(wrong)} counts at {show_clock(clock)} are wrong, such as that of {wrong[0]}")
        last.update({word: count - last[word] for word, count in counts.items()})
    if last != Counter(words):
        problems.append("the last counts are not those of a Counter")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="a folder for all that is kept, which stays (default: none)")
    parser.add_argument("--json", action="store_true", help="print the figures as a line of JSON in the end")
    parser.add_argument("--messages", type=int, default=40_000)
    parser.add_argument("--drive", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.drive is not None:
        servers, partitions = arguments.drive
        application(arguments.folder, servers, int(partitions)).run(local_spark("words"), drain=True)
        return 0
    if arguments.messages < 20_000:
        parser.error(f"messages={arguments.messages}; give 20,000 or more, so that there is something left to kill.")
    try:
        library()
    except InvalidInputError as error:
        sys.exit(str(error))
    chance = random.Random(7)
    words = [chance.choice(WORDS) for _ in range(arguments.messages)]
    with folder_for("topic-to-topic", arguments.folder) as folder:
        try:
            with Broker(folder / "broker") as broker:
                for topic in ("words", "counts"):
                    broker.make(topic, PARTITIONS)
                killed_at, problems = run_twice(folder, broker, words)
                actual = [] if problems else list(committed(broker.address))
        except Unavailable as error:
            sys.exit(f"No broker can be had here: {error}")
    problems = problems or differences(actual, words)
    clocks = {record["clock"] for record in actual}
    for problem in problems:
        print(f"WRONG: {problem}.")
    if not problems:
        print(
            f"{len(words):,} words, {len(actual):,} counts at {len(clocks)} clocks in the topic: each once, and right."
        )
    if arguments.json:
        figures = {"messages": len(words), "counts": len(actual), "clocks": len(clocks), "killed_at": killed_at}
        print(json.dumps({**figures, "right": not problems}))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
