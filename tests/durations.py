"""Print how long the tests took: `python -m tests.durations [FILE ...]`, of the files that `make test` and the lanes write.

For each lane the number of tests and the sum of their seconds; then the longest tests.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.etree import ElementTree

REPORTS = Path(__file__).parents[1] / "build" / "tests"
"""Where pytest writes its reports, by `--junitxml`."""


@dataclass(frozen=True)
class Duration:
    """The seconds of a test, with those of the fixtures that were made for it."""

    lane: str
    test: str
    seconds: float


def newest_durations(files: Iterable[Path]) -> list[Duration]:
    """Return the tests of reports, each once: as its newest report has it."""
    by_time = sorted(files, key=lambda file: file.stat().st_mtime)
    return list({each.test: each for each in durations_in(by_time)}.values())


def durations_in(files: Iterable[Path]) -> Iterator[Duration]:
    """Yield the tests of reports that pytest wrote as JUnit's XML."""
    for file in files:
        for case in ElementTree.parse(file).iter("testcase"):
            lanes = (each.get("value") for each in case.iter("property") if each.get("name") == "lane")
            # A file that can't be collected has none.
            lane = next(lanes, None) or "no lane"
            yield Duration(lane, f"{case.get('classname')}::{case.get('name')}", float(case.get("time") or 0))


def table(durations: Sequence[Duration], longest: int) -> str:
    """Return the lanes and the longest tests as tables of Markdown."""
    tests, seconds = Counter[str](), Counter[str]()
    for each in durations:
        tests[each.lane] += 1
        seconds[each.lane] += each.seconds
    lines = ["| lane | tests | seconds |", "| --- | ---: | ---: |"]
    lines += [f"| {lane} | {tests[lane]:,} | {total:,.0f} |" for lane, total in seconds.most_common()]
    lines += ["", "| seconds | test |", "| ---: | --- |"]
    slowest = sorted(durations, key=lambda each: each.seconds, reverse=True)[:longest]
    return "\n".join([*lines, *(f"| {each.seconds:,.0f} | `{each.test}` |" for each in slowest)])


def main(arguments: Sequence[str]) -> int:
    """Print the tables, or all durations as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="reports (default: all in build/tests)")
    parser.add_argument("--longest", type=int, default=20, metavar="N", help="how many tests to show (default: 20)")
    parser.add_argument("--json", action="store_true", help="print each test, the longest first, as JSON")
    given = parser.parse_args(arguments)
    files = given.files or sorted(REPORTS.glob("*.xml"))
    if not files:
        print(f"there are no reports in {REPORTS}; run `make test`.", file=sys.stderr)
        return 2
    durations = sorted(newest_durations(files), key=lambda each: each.seconds, reverse=True)
    print(json.dumps([asdict(each) for each in durations]) if given.json else table(durations, given.longest))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
