"""The lanes of the tests: each test is in one of them, and a command runs one or several.

The fast lane needs nothing but Python and Java, and is what people run: `make test`. Each other lane needs more, or takes
longer: `make test-spark`, and so on. What a test needs follows from the fixtures that it asks for. A test or a file that starts
something itself has a mark with the name of its lane.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

FAST = "fast"

LANES = {
    FAST: "no JVM, but for one smoke test",
    "spark": "a JVM",
    "kills": "a JVM and PostgreSQL: drivers, workers and JVMs are killed",
    "kafka": "Kafka's broker, which Maven brings",
    "stores": "servers of S3, Azure, GCS and HDFS, and PostgreSQL",
    "browser": "Chromium and Prometheus",
    "worlds": "nothing more: worlds of the simulation, and the bugs that only worlds show",
    "release": "a package registry: what is released is built and installed",
}
"""What the tests of each lane need beside Python and Java."""

OTHERS = tuple(lane for lane in LANES if lane != FAST)

OF_FIXTURES = (
    ("kafka", {"broker", "cluster", "secured"}),
    ("stores", {"servers"}),
    ("spark", {"spark", "launch", "jvms", "rehearsal"}),
)
"""The lane of a test without a mark that asks for one of these fixtures."""


def lane_of(marks: Collection[str], fixtures: Collection[str]) -> str:
    """Return the lane of a test.

    Args:
        marks: The names of the marks of the test, its class and its file, the nearest first.
        fixtures: The names of the fixtures that the test asks for, and those that these ask for.
    """
    for mark in marks:
        if mark in LANES:
            return mark
    return next((lane for lane, names in OF_FIXTURES if names & {*fixtures}), FAST)


def left_out(lanes: Sequence[str]) -> list[str]:
    """Return the lines that say which lanes did not run, what each needs, and which command runs it."""
    missing = [lane for lane in LANES if lane not in lanes]
    if not missing:
        return []
    commands = {lane: f"make test-{lane}" if lane != FAST else "make test" for lane in missing}
    width = max(map(len, commands.values()))
    lines = [f"  {command:<{width}}  needs {LANES[lane]}" for lane, command in commands.items()]
    more = {
        "make test-all": "runs all of them",
        "make soak": "repeats more, for hours, and lets worlds look for every planted bug",
    }
    return ["Not run here:", *lines, *(f"  {command:<{width}}  {text}" for command, text in more.items())]
