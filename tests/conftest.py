"""How tests run: hypothesis with the same examples each time but under `make soak`, real Spark in two processes, and first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from examples.broker import Broker
from persistent_state.batch import shard
from tests.lanes import LANES, lane_of, left_out
from tests.processes import start_guarded
from tests.soak import IS_SOAK, is_run
from tests.store.servers import Servers, needed

if TYPE_CHECKING:
    from tests.kafka.cluster import Cluster

# How long it takes to make an example, or to run it, depends on the machine.
settings.register_profile(
    "project",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
    derandomize=not IS_SOAK,
    print_blob=True,
)
settings.load_profile("project")


@pytest.fixture(autouse=True)
def few_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are in files, too, for a test of `rows_in_files`, which counts, damages or names files of rows."""
    if request.node.get_closest_marker("rows_in_files") is not None:
        monkeypatch.setattr(shard, "FEW", 0)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """What shares a Spark, drivers or servers stays in one process of pytest-xdist; what takes longest begins."""
    from xdist.scheduler import LoadScopeScheduling

    class Scopes(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    config.option.loadscopereorder = False
    return Scopes(config, log)


TOGETHER = (
    ("drivers", tuple(f"/spark/test_{name}.py" for name in ("kills", "failures", "drivers", "cluster", "deliveries"))),
    ("kafka", ("/kafka/", "test_kafka")),
    ("servers", ("test_conformance.py", "test_object_stores.py", "/spark/test_stores.py")),
    ("release", ("/release/",)),
)
"""Tests that run in one process, the longest first: a name, and what marks their files."""


def scope_of(nodeid: str) -> str:
    """The name of what a test shares its process with: a group, of the other tests on Spark its file, else nothing."""
    for name, marks in TOGETHER:
        if any(mark in nodeid for mark in marks):
            return name
    return nodeid.partition("::")[0] if "/spark/" in nodeid else nodeid


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--lane",
        action="append",
        choices=[*LANES],
        default=[],
        help="run the tests of this lane only (may be repeated)",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs behind it, as `make test &`, with these ignored, and the programs of tests would inherit that.
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGQUIT, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    for lane, needs in LANES.items():
        config.addinivalue_line("markers", f"{lane}: the lane of a test (tests/lanes.py). It needs {needs}.")
    config.addinivalue_line("markers", "rows_in_files: a test that counts, damages or names files of few rows.")
    config.addinivalue_line("markers", "one_in(n): a test that one commit in n runs, as its hash says (tests/soak.py).")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--lane") or [*LANES]
    chosen, others = list[pytest.Item](), list[pytest.Item]()
    for item in items:
        lane = lane_of([mark.name for mark in item.iter_markers()], getattr(item, "fixturenames", ()))
        item.user_properties.append(("lane", lane))
        if not is_run(item.nodeid, mark.args[0] if (mark := item.get_closest_marker("one_in")) else 1):
            item.add_marker(pytest.mark.skip(reason="another commit's turn; SOAK=1 runs it"))
        (chosen if lane in wanted else others).append(item)
    if others:
        config.hook.pytest_deselected(items=others)
    items[:] = in_order(chosen)


def in_order(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests in the order in which they are given to processes: those that share most come first."""
    groups = [name for name, _ in TOGETHER]

    def place(item: pytest.Item) -> int:
        scope = scope_of(item.nodeid)
        if scope in groups:
            return groups.index(scope)
        return len(groups) if "/spark/" in scope else len(groups) + 1

    return sorted(items, key=place)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Servers of stores by the name of their extra, started when first asked for."""
    started = Servers()
    yield started
    started.close()


@pytest.fixture(scope="session")
def _broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    # What takes too long is looked for more often than each ten seconds.
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    broker = Broker(tmp_path_factory.mktemp("broker"), settings, launch=start_guarded)
    with needed():
        broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def broker(_broker: Broker) -> Broker:
    """A real broker of Kafka, in which each test makes topics of its own; it runs, also after a test that killed it."""
    if not _broker.is_running:
        _broker.start()
    return _broker


@pytest.fixture(scope="session")
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    from tests.kafka.cluster import Cluster

    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), settings)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(_cluster: Cluster) -> Cluster:
    """Three real brokers of Kafka, in which each test makes topics of its own; all run, also after a test that killed some."""
    with needed():
        return _cluster.start()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests have recorded as worth telling."""
    for report in terminalreporter.getreports("passed"):
        for name, text in report.user_properties:
            if name == "told":
                terminalreporter.write_line(str(text))
    if lanes := terminalreporter.config.getoption("--lane"):
        for line in left_out(lanes):
            terminalreporter.write_line(line)
