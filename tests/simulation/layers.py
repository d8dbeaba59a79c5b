"""Measures which planted bugs a cheap test kills, and in which seconds. A cheap test needs no Spark, no server and no world.

pytest collects the cheap tests once. A forked process then runs them all and notes which of them call the functions that bugs
change. For each bug another fork plants it and runs the tests that call its function until one fails.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import multiprocessing
import os
import resource
import sys
import tempfile
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import monotonic, process_time
from typing import Any

import pytest
from hypothesis import Phase, settings

from tests.simulation.planted import BUGS, OF_NO_USE, Bug, replaced

ROOT = Path(__file__).parents[2]
KILLERS = Path(__file__).parent / "killers.json"
"""The cheap test that kills each bug, and its seconds; null where only worlds or Spark do."""
NOTES = ROOT / "build" / "layers.json"
"""What a measurement goes on from: the seconds of each test, which functions it calls, and what was measured already."""
SLOW_FILES = [
    "tests/test_docs.py",
    "tests/test_docstrings.py",
    "tests/test_site.py",
    "tests/monoids",
    "tests/spark",
    "tests/kafka",
    "tests/simulation",
    "tests/release",
    "tests/serve/test_browser.py",
    "tests/metrics/test_prometheus.py",
]
SLOW_FIXTURES = {"servers", "broker", "cluster"}
AT_ONCE = 1.0
"""Seconds of a processor in which a cheap test must kill a bug, so that CI plays no world for it."""
FORK = multiprocessing.get_context("fork")


def killers() -> dict[str, dict[str, Any] | None]:
    """Return what was measured last."""
    return json.loads(KILLERS.read_text()) if KILLERS.exists() else {}


def bugs_for_worlds() -> list[Bug]:
    """Return the bugs that no cheap test kills at once."""
    known = killers()
    return [bug for bug in BUGS if (killer := known.get(bug.name)) is None or killer["seconds"] > AT_ONCE]


class Plugin:
    """Plants bugs in forks of a pytest process that has collected the tests."""

    def __init__(self, work: Callable[[Plugin, dict[str, pytest.Item]], None]) -> None:
        self.work = work
        self.failed = False

    def pytest_sessionstart(self) -> None:
        # A failure is enough: to look for a smaller one takes long.
        phases = (Phase.explicit, Phase.generate)
        settings.register_profile("layers", settings.get_profile("project"), phases=phases)
        settings.load_profile("layers")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        assert not session.testsfailed, "Tests can't be collected."
        self.work(self, {item.nodeid: item for item in session.items if not SLOW_FIXTURES & {*item.fixturenames}})
        return True

    def pytest_exception_interact(self, call: pytest.CallInfo[None]) -> None:
        assert call.excinfo is not None
        self.failed |= not call.excinfo.errisinstance(OF_NO_USE)

    def run(self, items: list[pytest.Item]) -> Iterator[tuple[str, float, bool]]:
        """Run tests: yield the name of each, its seconds of a processor, and whether it failed."""
        for item, following in zip(items, [*items[1:], None], strict=True):
            self.failed, start = False, process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item.nodeid, round(process_time() - start, 2), self.failed

    def killer(self, bug: Bug, items: list[pytest.Item], seconds: int) -> dict[str, Any] | None:
        """Return the first of these tests that fails with a bug."""

        def tests() -> Iterator[tuple[str, float, bool]]:
            with bug.planted():
                yield from self.run(items)

        runs = forked(tests, seconds)
        return next(({"test": test, "seconds": used} for test, used, failed in runs if failed), None)


def forked(work: Callable[[], Iterable[Any]], seconds: int) -> Iterator[Any]:
    """Yield what work yields in a fork of this process, until it ends or has used its seconds of a processor."""
    here, there = FORK.Pipe(duplex=False)

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        for each in work():
            there.send(each)

    process = FORK.Process(target=child)
    process.start()
    there.close()
    # It may wait for ever too.
    end = monotonic() + 4 * seconds
    try:
        while here.poll(max(0, end - monotonic())):
            yield here.recv()
    except EOFError:
        pass
    finally:
        process.kill()
        process.join()


def collected(paths: Iterable[str], work: Callable[[Plugin, dict[str, pytest.Item]], None]) -> int:
    """Let pytest collect tests, and do work with them."""
    with tempfile.TemporaryDirectory() as scratch:
        options = ["-n", "0", "-s", "-p", "no:cacheprovider", "-p", "no:terminal", f"--basetemp={scratch}/tests"]
        return pytest.main([*options, *paths], plugins=[Plugin(work)])


def name_of(target: Any) -> str:
    return f"{target.__module__}.{target.__qualname__}"


def noting(target: Any) -> str:
    """Return the source of a function that first puts its name into the set `_reached`."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(target)))
    tree.body[0].body.insert(0, ast.parse(f"_reached.add({name_of(target)!r})").body[0])  # type: ignore[attr-defined]
    return ast.unparse(tree)


def note(plugin: Plugin, items: list[pytest.Item]) -> Iterator[tuple[str, float, bool, list[str]]]:
    """Run tests: yield what `run` does, and the functions of bugs that each test has called."""
    reached: set[str] = set()
    with ExitStack() as stack:
        for target in {bug.target for bug in BUGS}:
            vars(sys.modules[target.__module__])["_reached"] = reached
            stack.enter_context(replaced(target, noting(target), "noting"))
        for test, seconds, failed in plugin.run(items):
            yield test, seconds, failed, sorted(reached)
            reached.clear()


def calling(bug: Bug, tests: dict[str, tuple[float, list[str]]]) -> list[str]:
    """Return the tests that call a bug's function, those first that are likely to kill it soon.

    These are the quick tests of its module, then those that killed other bugs, then those of its folder; and the fastest of
    each. Of a test with parameters the other ones come last.
    """
    folder, _, module = bug.target.__module__.replace("persistent_state.", "tests.").replace(".", "/").rpartition("/")
    proven = {killer["test"] for killer in killers().values() if killer}
    callers = sorted((test for test in tests if name_of(bug.target) in tests[test][1]), key=lambda test: tests[test][0])
    first = {test.partition("[")[0]: test for test in reversed(callers)}

    def place(test: str) -> tuple[bool, ...]:
        is_own = test.startswith(f"{folder}/test_{module}.py::") and tests[test][0] <= AT_ONCE
        is_near = test.startswith(f"{folder}/")
        return not is_own, test not in proven, first[test.partition("[")[0]] != test, not is_near

    return sorted(callers, key=place)


def measure(plugin: Plugin, items: dict[str, pytest.Item], names: list[str], seconds: int) -> None:
    """Measure these bugs, or all whose texts, functions or tests have changed. Keep what is known after each."""
    notes = json.loads(NOTES.read_text()) if NOTES.exists() else {"tests": {}, "measured": {}}
    tests = notes["tests"] = {test: noted for test, noted in notes["tests"].items() if test in items}
    new = [item for test, item in items.items() if test not in tests]
    for count, (test, used, failed, reached) in enumerate(forked(lambda: note(plugin, new), 7200), 1):
        # What fails without a bug proves nothing with one.
        tests[test] = [used, [] if failed else reached]
        if count % 20 == 0 or count == len(new):
            print(f"{count} of {len(new)} tests noted", flush=True)
            write(NOTES, notes)
    known = killers()
    for bug in named(names):
        callers, killer, start = calling(bug, tests), known.get(bug.name), monotonic()
        # What was killed is killed by more tests too.
        if not names and notes["measured"].get(bug.name) == digest(bug, killer or [*sorted(callers), seconds]):
            continue
        if killer and killer["test"] in items:
            callers = [killer["test"], *(test for test in callers if test != killer["test"])]
        killer = known[bug.name] = plugin.killer(bug, [items[test] for test in callers], seconds)
        print(f"{bug.name}: {killer} of {len(callers)} tests, {monotonic() - start:.1f} s", flush=True)
        notes["measured"][bug.name] = digest(bug, killer or [*sorted(callers), seconds])
        write(NOTES, notes)
        write(KILLERS, {bug.name: known[bug.name] for bug in BUGS if bug.name in known})


def digest(bug: Bug, by: Any) -> str:
    """Return what changes with a bug's texts, its function, and what it was measured by."""
    return hashlib.sha256(repr([bug.changes, inspect.getsource(bug.target), by]).encode()).hexdigest()


def named(names: Collection[str]) -> list[Bug]:
    """Return the bugs with these names, or all."""
    return [bug for bug in BUGS if not names or bug.name in names]


def write(path: Path, values: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    lines = (f" {json.dumps(name)}: {json.dumps(values[name])}" for name in sorted(values))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def survivors(bugs: Iterable[Bug]) -> list[str]:
    """Return the names of bugs that the test which is kept for them does not kill, each with its test."""
    known = {bug: killer["test"] for bug in bugs if (killer := killers()[bug.name])}
    alive = []

    def work(plugin: Plugin, items: dict[str, pytest.Item]) -> None:
        nonlocal alive
        for bug, test in known.items():
            is_killed = test in items and plugin.killer(bug, [items[test]], 60)
            alive += [] if is_killed else [f"{bug.name}: {test}"]
            print(f"{bug.name}: {'killed' if is_killed else 'ALIVE'}", flush=True)

    assert collected(sorted({test.partition("::")[0] for test in known.values()}), work) == 0
    return alive


def table() -> str:
    """Return what kills the bugs of each package, in Markdown, and the bugs that only worlds kill."""
    known = killers()
    layers = ("cheap test within a second", "cheap test", "worlds alone")
    counts: dict[str, Counter[str]] = {}
    for bug in BUGS:
        killer = known.get(bug.name)
        layer = layers[2] if killer is None else layers[killer["seconds"] > AT_ONCE]
        for row in (".".join(bug.target.__module__.split(".")[:2]), "in all"):
            counts.setdefault(row, Counter())[layer] += 1
    rows = [(name, sum(counts[name].values()), *(counts[name][layer] for layer in layers)) for name in sorted(counts)]
    lines = [("bugs in", "bugs", *layers), ("---",) * 5, *rows]
    left = [f"- {bug.name}: {bug.says}" for bug in BUGS if known.get(bug.name) is None]
    return "\n".join([*("| " + " | ".join(map(str, line)) + " |" for line in lines), "", *left])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.layers", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("bug", nargs="*", help="the names of bugs; without any, all whose texts or tests have changed")
    parser.add_argument("--seconds", type=int, default=60, help="of a processor for the tests of each bug")
    parser.add_argument("--table", action="store_true", help="only print what was measured, as a table")
    parser.add_argument(
        "--prove", action="store_true", help="only run the tests in killers.json, and see each kill its bug"
    )
    asked = parser.parse_args()
    if asked.table:
        print(table())
    elif asked.prove:
        sys.exit("\n".join(survivors(named(asked.bug))) or 0)
    else:
        paths = ["tests", *(f"--ignore={path}" for path in SLOW_FILES)]
        sys.exit(collected(paths, lambda plugin, items: measure(plugin, items, asked.bug, asked.seconds)))


if __name__ == "__main__":
    main()
