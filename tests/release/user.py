"""A user's program, as it stands outside of this repository: it is run and type-checked where only the wheel is installed."""

import sys
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession

import monoids
from persistent_state import (
    Application,
    FileSource,
    Message,
    NonWindowState,
    PersistentState,
    PersistentTask,
    read_state,
    run_local,
)


class WordCount(PersistentTask):
    key = "word"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(monoids.Sum())

    def process_message(self, state: PersistentState[int], message: Message) -> None:
        state.update(message.timestamp, 1)


def main(folder: Path) -> None:
    words = ["to", "be", "or", "not", "to", "be"]
    local = run_local(WordCount(), [Message(second * 1_000_000, {"word": word}) for second, word in enumerate(words)])
    assert local.state == {"to": 2, "be": 2, "or": 1, "not": 1}

    (folder / "events").mkdir()
    times = pd.date_range("2026-01-01", periods=len(words), freq="s")
    pd.DataFrame({"ts": times, "word": words}).to_parquet(folder / "events" / "0.parquet")
    builder = SparkSession.builder.master("local[2]").config("spark.ui.showConsoleProgress", "false")
    spark = builder.config("spark.ui.enabled", "false").config("spark.log.level", "ERROR").getOrCreate()
    store = str(folder / "apps")
    app = Application("word-count", store=store, checkpoint_interval="10 seconds")
    app.add(WordCount(), source=FileSource(folder / "events", timestamp="ts"))
    app.run(spark, drain=True)
    assert sorted(read_state(store, "word-count", WordCount())["value"].to_pylist()) == [1, 1, 2, 2]

    # Found by its name, without registering.
    rows = spark.read.format("persistent-state").options(application="word-count", task="WordCount").load(store)
    print(sorted((row["word"], row["value"]) for row in rows.collect()))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
