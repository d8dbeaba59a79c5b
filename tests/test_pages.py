"""The Python of a page runs as it stands, to what the page says: here of the pages that need no Spark."""

from __future__ import annotations

import ast
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import monoids
from persistent_state import Application, Message, NonWindowState, PersistentTask, run_local
from persistent_state.store.files import open_files
from persistent_state.store.log import Log
from tests import core, page_code
from tests.test_public import public

SECOND = 1_000_000

RUN_BY = {
    "README.md": "tests/spark/test_readme.py::test_the_code_of_readme_gives_what_readme_says",
    "docs/blue-green.md": "tests/spark/test_readme.py::test_the_code_of_a_page_gives_what_the_page_says",
    "docs/choosing-a-state.md": "tests/spark/test_pages.py::test_choosing_a_state",
    "docs/command-line.md": "tests/spark/test_pages.py::test_command_line",
    "docs/delivery.md": "tests/spark/test_readme.py::test_the_code_of_a_page_gives_what_the_page_says",
    "docs/files.md": "tests/spark/test_readme.py::test_the_code_of_a_page_gives_what_the_page_says",
    "docs/first-task.md": "tests/spark/test_readme.py::test_the_code_of_a_page_gives_what_the_page_says",
    "docs/flows.md": "tests/test_pages.py::test_flows",
    "docs/from-gearpump.md": "tests/test_pages.py::test_coming_from_gearpump",
    "docs/going-back.md": "tests/spark/test_pages.py::test_going_back",
    "docs/joins.md": "tests/spark/test_readme.py::test_the_code_of_a_page_gives_what_the_page_says",
    "docs/kafka.md": "tests/spark/test_pages.py::test_kafka",
    "docs/local.md": "tests/local/test_engine.py::test_the_code_of_the_page",
    "docs/metrics.md": "tests/spark/test_pages.py::test_metrics",
    "docs/monoids.md": "tests/test_pages.py::test_monoids",
    "docs/open-state.md": "tests/test_open_state.py::test_the_code_of_the_page_does_what_it_says",
    "docs/ordered.md": "tests/spark/test_readme.py::test_the_code_of_a_page_gives_what_the_page_says",
    "docs/outputs.md": "tests/spark/test_pages.py::test_outputs",
    "docs/pipelines.md": "tests/spark/test_readme.py::test_the_code_of_a_page_gives_what_the_page_says",
    "docs/platforms.md": "tests/spark/test_doctor.py::test_the_job_that_runs_an_application",
    "docs/running.md": "tests/spark/test_pages.py::test_running",
    "docs/sources.md": "tests/spark/test_pages.py::test_sources",
    "docs/spark-connect.md": "tests/spark/test_connect.py::test_a_graph_with_outputs_of_each_kind_is_exact_after_a_stop",
    "docs/spark-source.md": "tests/spark/test_store_source.py::test_the_code_of_the_page_does_what_it_says",
    "docs/stores.md": "tests/sources/test_object_stores.py::test_the_code_of_the_page_on_stores",
    "docs/windows.md": "tests/test_pages.py::test_windows",
    "docs/write-a-sink.md": "tests/spark/test_outputs.py::test_the_sink_of_the_guide_works",
    "docs/write-a-source.md": "tests/spark/test_readme.py::test_the_code_of_a_page_gives_what_the_page_says",
}
"""The test that runs the Python of a page, and names the page."""


def names(**more: Any) -> dict[str, Any]:
    """What every page takes for granted, and more that one does."""
    every = {name.rpartition(".")[2]: value for name, value in public("persistent_state").items()}
    return {**every, "monoids": monoids, **more}


def test_the_python_of_each_page_is_run() -> None:
    pages = ["README.md", "CONTRIBUTING.md", "benchmarks/README.md"]
    pages += [f"docs/{page.name}" for page in (page_code.ROOT / "docs").glob("*.md")]
    assert {page for page in pages if page_code.blocks_of(page_code.text_of(page))} == {*RUN_BY}
    for page, test in RUN_BY.items():
        file, _, name = test.partition("::")
        assert names_page(page_code.text_of(file), name, page), f"{test} is gone, or does not name {page}"


def test_a_page_whose_test_is_gone_or_leaves_it_out_is_found() -> None:
    for page, test in RUN_BY.items():
        file, _, name = test.partition("::")
        text = page_code.text_of(file)
        assert not names_page(text.replace(source_of(text, name), ""), name, page)
        assert not names_page(text.replace(page, "").replace(f'"{Path(page).stem}"', "None"), name, page)


def names_page(text: str, test: str, page: str) -> bool:
    """Whether a test of a file with this text is there and names a page: by its path, or as a parameter."""
    source = source_of(text, test)
    return page in source or f'"{Path(page).stem}"' in source


def source_of(text: str, test: str) -> str:
    """The source of a test of a file with this text, with its decorators; empty if there is none."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == test:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            return "".join(text.splitlines(keepends=True)[first - 1 : node.end_lineno])
    return ""


def test_a_page_that_says_another_value_and_a_set_up_that_is_not_called_are_found() -> None:
    with pytest.raises(AssertionError, match=r"1 \+ 1"):
        page_code.run("```python\n1 + 1  # 3\n```", {})
    with pytest.raises(AssertionError, match="no statement has these pieces"):
        page_code.run("```python\n1 + 1  # 2\n```", {}, {"2 + 2": lambda: None})


class Counted(PersistentTask):
    """A task that counts its messages."""

    def persistent_state(self) -> Any:
        return NonWindowState(monoids.Count())

    def process_message(self, state: Any, message: Any) -> None:
        state.update(message.timestamp, 1)


def test_flows() -> None:
    app = Application("shop", "memory://flows")
    orders = pa.schema([("shop", pa.string()), ("hour", pa.int64()), ("ordered_at", pa.timestamp("us", "UTC"))])
    keys = {"RevenuePerShop": "shop", "OrdersPerHour": "hour", "LastPrice": "kafka_offset"}
    tasks = {name: type(name, (Counted,), {"key": key}) for name, key in keys.items()}
    page_code.run(page_code.text_of("docs/flows.md"), names(app=app, ORDERS=orders, **tasks))
    row = {"shop": "Oslo", "hour": 9, "kafka_topic": "orders", "kafka_partition": 0, "kafka_offset": 7}
    ran = run_local(app, {"RevenuePerShop": [Message(SECOND, {**row, "ordered_at": 0})]})
    assert {name: task.state for name, task in ran.items()} == {
        "RevenuePerShop": {"Oslo": 1},
        "OrdersPerHour": {9: 1},
        "LastPrice": {7: 1},
    }


def test_coming_from_gearpump() -> None:
    assert page_code.run(page_code.text_of("docs/from-gearpump.md"), {}) == 3


def test_windows(caplog: pytest.LogCaptureFixture) -> None:
    app = Application("flights", "memory://windows")
    page = names(app=app, log=logging.getLogger("persistent_state"))
    assert page_code.run(page_code.text_of("docs/windows.md"), page) == 1
    hours = [Message(hour * 3600 * SECOND, {"origin": "JFK", "arr_delay": delay}) for hour, delay in ((0, 4), (9, 0))]
    delays = run_local(app, {"AverageDelay": hours})["AverageDelay"]
    assert [value for given in delays.outputs.values() for value in given.values()] == [4.0, 4.0, 4.0]
    run_local(page["Burst"](), [Message(number, {"user": "ann"}) for number in range(101)])
    assert caplog.messages == ["ann is busy"]


def test_monoids(tmp_path: Path) -> None:
    page = names(store=str(tmp_path), application="site")

    def play() -> None:
        schema = pa.schema([("ts", pa.int64()), ("page", pa.string()), ("user", pa.string())])
        files = open_files(str(tmp_path))
        plan = replace(core.plan_of(page["Visitors"](), schema, files=files), application="site")
        log = Log(files, "site")
        core.start(log, [plan])
        rows = [{"ts": 5, "page": "a", "user": user} for user in ("ann", "bob", "ann")]
        core.play(log, plan, pa.RecordBatch.from_pylist([*rows, {"ts": 20}], schema))

    text = page_code.text_of("docs/monoids.md")
    assert page_code.run(text, page, {"visitors = read_state": play}) == 3
    test_laws = page["test_laws"]
    (laws,) = test_laws.pytestmark
    for law in laws.args[1]:
        test_laws(law)
