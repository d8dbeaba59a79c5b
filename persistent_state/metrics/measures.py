"""Name every metric, with its meaning, its unit and its labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

PREFIX = "persistent_state_"

GAUGE = "gauge"
COUNTER = "counter"
HISTOGRAM = "histogram"

SECONDS = "seconds"
BYTES = "bytes"

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800)
"""The upper bounds of a histogram's buckets, in seconds."""


@dataclass(frozen=True)
class Measure:
    """One metric: its name in OpenMetrics, and what it means.

    A counter's samples have the name with `_total`, and a histogram's with `_bucket`, `_count` and `_sum`.
    """

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ("application",)
    unit: str = ""

    def at(self, value: float, *labels: str) -> Sample:
        """Return a sample with these values of the labels, in their order."""
        assert len(labels) == len(self.labels), self
        return Sample(self, labels, value)

    @property
    def in_queries(self) -> str:
        """The name that a query uses."""
        return f"{self.name}_total" if self.kind == COUNTER else self.name


@dataclass(frozen=True)
class Sample:
    """One value of a metric."""

    of: Measure
    labels: tuple[str, ...]
    value: float

    @property
    def by_name(self) -> Mapping[str, str]:
        """The values of the labels, by the names of these."""
        return dict(zip(self.of.labels, self.labels, strict=True))


def _measure(name: str, help: str, *labels: str, kind: str = GAUGE) -> Measure:
    unit = next((unit for unit in (SECONDS, BYTES) if name.endswith(f"_{unit}")), "")
    return Measure(PREFIX + name, kind, help, ("application", *labels), unit)


READABLE = _measure("readable", "1 if the newest log entry and its lists of files can be read, else 0.")
WRITTEN = _measure("written_timestamp_seconds", "When the newest log entry was written, by the wall clock.")
ENTRIES = _measure("log_entries", "Log entries so far: each is a commit.", kind=COUNTER)
STARTS = _measure(
    "starts", "Starts so far; restarts after failures and rewinds count. A branch counts on.", kind=COUNTER
)
TIMELINE = _measure(
    "timeline",
    "The epoch of the rewind, or branch, that began the present timeline; 0 if there was none. It changes with each rewind.",
)
KEPT = _measure("kept_clocks", "The number of kept clocks, to which the application can go back.")
OLDEST_KEPT = _measure(
    "oldest_kept_clock_seconds", "The oldest kept clock, in event time; missing if no clock is kept."
)
GLOBAL_CLOCK = _measure("global_clock_seconds", "The global clock, in event time; missing until there is a checkpoint.")
NEXT_CLOCK = _measure(
    "next_clock_seconds",
    "The clock to which derived tasks have yet to step, in event time; missing if they have taken all steps.",
)
INTERVAL = _measure("checkpoint_interval_seconds", "The time between two checkpoints, in event time.")
WAITS_FOR = _measure(
    "waits_for",
    "1 for the task, the input and the channel that the global clock waits for, and why; missing if it waits for nothing.",
    "task",
    "input",
    "channel",
    "why",
)
STORE_BYTES = _measure("store_bytes", "The bytes of all files that the newest log entry names.")
STORE_FILES = _measure("store_files", "The number of these files.")

ACTIVE = _measure("task_active", "1 if the task is part of the newest start, 0 if it is left out.", "task", "flow")
CLOCK = _measure(
    "task_clock_seconds", "The task's own clock, in event time; missing until there is a checkpoint.", "task"
)
TASK_BYTES = _measure("task_bytes", "The bytes of a task's files. Tasks of a flow share some.", "task")
TASK_FILES = _measure("task_files", "The number of these files.", "task")
LATE_AND_BAD = _measure(
    "late_and_bad_rows",
    "Rows that did not count. It falls when a start takes some back, to judge them again.",
    "task",
    "reason",
)

OUTPUT_CLOCK = _measure(
    "output_clock_seconds", "The last clock that the sink has, in event time; missing if it has none.", "task", "output"
)
OUTPUT_LAG = _measure(
    "output_lag_seconds",
    "How far the sink's clock is behind the newest one that it may have, in event time; missing if it has none.",
    "task",
    "output",
)
OUTPUT_BEHIND = _measure("output_behind_clocks", "The clocks that the sink has yet to be given.", "task", "output")
OUTPUT_OWES = _measure(
    "output_has_yet_to_go_back",
    "1 for an output whose sink has yet to follow a rewind, and is given no clock until it has; missing for all others.",
    "task",
    "output",
)

POSITION = _measure(
    "source_position",
    "The position that is read next, such as Kafka's offset. It falls when a start reads again.",
    "flow",
    "input",
    "partition",
)
CHANNELS = _measure(
    "channels",
    "The channels of an input: delivering, silent since the last start, never heard, or ended.",
    "flow",
    "input",
    "state",
)
NEWEST = _measure(
    "newest_message_timestamp_seconds",
    "The newest timestamp that the input has delivered since the last start, in event time.",
    "flow",
    "input",
)
SLOW_LAG = _measure(
    "slow_channel_lag_seconds",
    "How far a slow channel's newest message is behind that of the flow, in event time, and why the clock waits for it; "
    "missing if no message of it is known.",
    "flow",
    "input",
    "channel",
    "why",
)
SLOW_SILENCE = _measure(
    "slow_channel_silence_seconds",
    "How long a slow channel had delivered nothing when the newest log entry was written: since its last message, or since "
    "the last start.",
    "flow",
    "input",
    "channel",
    "why",
)

OF_STORE: Sequence[Measure] = (
    READABLE,
    WRITTEN,
    ENTRIES,
    STARTS,
    TIMELINE,
    KEPT,
    OLDEST_KEPT,
    GLOBAL_CLOCK,
    NEXT_CLOCK,
    INTERVAL,
    WAITS_FOR,
    STORE_BYTES,
    STORE_FILES,
    ACTIVE,
    CLOCK,
    TASK_BYTES,
    TASK_FILES,
    LATE_AND_BAD,
    OUTPUT_CLOCK,
    OUTPUT_LAG,
    OUTPUT_BEHIND,
    OUTPUT_OWES,
    POSITION,
    CHANNELS,
    NEWEST,
    SLOW_LAG,
    SLOW_SILENCE,
)
"""The metrics that are known of an application by its store alone."""

MICRO_BATCH_SECONDS = _measure(
    "micro_batch_seconds", "The time of a micro-batch, from when it is planned to its commit.", "flow", kind=HISTOGRAM
)
STEP_SECONDS = _measure(
    "step_seconds", "The time of a step, from when it is planned to its commit.", "flow", kind=HISTOGRAM
)
COMMIT_SECONDS = _measure(
    "commit_seconds",
    "The time of a commit: how much of a micro-batch or step the driver takes for the log entry.",
    "flow",
    kind=HISTOGRAM,
)
DELIVERY_SECONDS = _measure(
    "delivery_seconds",
    "The time of a delivery: to read the values at a clock, to give them to the sink, and to note in the log that the sink has "
    "them. One that failed is not counted.",
    "task",
    "output",
    kind=HISTOGRAM,
)
RECOVERY_SECONDS = _measure(
    "recovery_seconds",
    "The time from the beginning of the run, or from a failure, to the next commit.",
    kind=HISTOGRAM,
)
RESTARTS = _measure("restarts", "The starts after failures.", kind=COUNTER)
MESSAGES = _measure("messages", "The messages that micro-batches and steps have read.", "flow", kind=COUNTER)
REPLAYED = _measure("replayed_messages", "How many of these messages an earlier start had read.", "flow", kind=COUNTER)
UNREAD = _measure(
    "source_unread",
    "How many positions there were beyond the newest micro-batch when it was planned: of Kafka the lag in records, "
    "with those of open transactions. Missing if the source does not know.",
    "flow",
    "input",
    "partition",
)

IDLE = _measure(
    "idle",
    "1 if the flow waits for messages, or for its trigger; 0 if it asks its source, reads or commits, or if the "
    "run has yet to start again.",
    "flow",
)

OF_RUN: Sequence[Measure] = (
    MICRO_BATCH_SECONDS,
    STEP_SECONDS,
    COMMIT_SECONDS,
    DELIVERY_SECONDS,
    RECOVERY_SECONDS,
    RESTARTS,
    MESSAGES,
    REPLAYED,
    UNREAD,
    IDLE,
)
"""The metrics that only the run itself knows, all since it began."""

REQUESTS = _measure(
    "store_requests",
    "The requests of the driver's process to the store: PUT, GET, LIST, HEAD or DELETE. Those of workers, and of Spark's "
    "process that plans micro-batches, are not counted.",
    "kind",
    kind=COUNTER,
)

OF_PROCESS: Sequence[Measure] = (REQUESTS,)
"""The metrics of the process of a run, since it began."""
