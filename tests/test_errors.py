"""An error in a user's code names the places in it, whichever code of the user's it is."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
from configparser import ConfigParser
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from IPython.core.compilerop import CachingCompiler

from monoids import Aggregator, Group, Sum, from_pair
from persistent_state import (
    Application,
    Changes,
    Context,
    FileSource,
    Local,
    Message,
    NonWindowState,
    OrderedTask,
    PersistentTask,
    RunningValues,
    StateError,
    Timer,
    ValuesAtClock,
    errors,
    run_local,
)
from persistent_state.errors import missing_package, naming_cells, raised
from persistent_state.sinks import Sink, Values
from tests.soak import drawn

USER = """
import json


def parse(text):
    return json.loads(text)


def use(*arguments):
    return parse("abc")
"""
PLACES = "user.py:6 in parse, called from {folder}/user.py:10 in use"
"""Where the code of `USER` fails, and not where the packages fail that it calls."""


@pytest.fixture
def use(tmp_path: Path) -> Any:
    file = tmp_path / "user.py"
    file.write_text(USER)
    spec = importlib.util.spec_from_file_location("user", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.use


class Total(Group[int]):
    """A sum of which one method calls `use`, but not for zeros alone."""

    name, type = "Total", pa.int64()

    def __init__(self, use: Any, kind: str) -> None:
        self.use, self.kind = use, kind

    @property
    def zero(self) -> int:
        return self.use() if self.kind == "zero" else 0

    def plus(self, a: int, b: int) -> int:
        return self.use() if "plus" in self.kind and (a, b) != (0, 0) else a + b

    def minus(self, a: int, b: int) -> int:
        return self.use() if self.kind == "minus" else a - b


def monoid_of(kind: str, use: Any) -> Any:
    others = {
        "prepare where it reads": lambda: Aggregator(use, Sum(), lambda value: value, pa.int64()),
        "plus of a pair": lambda: from_pair("Pair", pa.int64(), 0, use),
        "prepare": lambda: Aggregator(use, Sum(), lambda value: value, pa.int64()),
        "present": lambda: Aggregator(lambda item: item, Sum(), use, pa.int64()),
    }
    return others.get(kind, lambda: Total(use, kind))()


def task_of(kind: str, use: Any) -> PersistentTask | OrderedTask:
    """A task of which one piece of the user's code calls `use`."""

    class Kept(PersistentTask):
        name, key = "Task", "k"

        def persistent_state(self) -> NonWindowState[Any]:
            return use() if kind == "persistent_state" else NonWindowState(monoid_of(kind, use))

    class ByMessage(Kept):
        reads_state = "reads" in kind

        def process_message(self, state: Any, message: Message) -> None:
            if "process_message" in kind:
                use()
            state.update(message.timestamp, message["value" if kind == "minus" else "v"])

    class ByBatch(Kept):
        def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
            return use(batch)

    class InOrder(OrderedTask):
        name, key, state = "Task", "k", pa.int64()

        def process(self, state: int | None, message: Message, context: Context) -> int:
            context.set_timer(timedelta(microseconds=1))
            return int(use()) if kind == "process" else 1

        def on_timer(self, state: int, timer: Timer, context: Context) -> int:
            return int(use())

    kinds = {"process_batch": ByBatch, "process": InOrder, "on_timer": InOrder}
    return kinds.get(kind, ByMessage)()


class PerKey(PersistentTask):
    key, value = "k", "v"

    def persistent_state(self) -> NonWindowState[int]:
        return NonWindowState(Sum())


class FailingSink(Sink):
    name = "failing"

    def __init__(self, use: Any) -> None:
        self.use = use

    def write_values(self, values: Values, clock: int) -> None:
        self.use()


ROWS = [{"ts": 500_000 * i, "k": "a", "v": i + 1} for i in range(4)]
TASKS = [
    "persistent_state", "process_message", "process_message that reads", "process_batch", "zero", "plus",
    "plus where it reads", "plus of a pair", "minus", "prepare", "prepare where it reads", "present", "process", "on_timer",
]  # fmt: skip
BESIDE = ["transform", "output", "as it runs", "sink", "progress"]
"""Pieces of the user's code that `run_local` does not call."""


def application_of(kind: str, use: Any, folder: Path) -> Application:
    (folder / "in").mkdir()
    for i in range(2):
        pq.write_table(pa.Table.from_pylist(ROWS[2 * i : 2 * i + 2]), folder / "in" / f"{i}.parquet")
    transform = use if kind == "transform" else None
    source = FileSource(folder / "in", timestamp="ts", timestamp_unit="us", transform=transform, max_files_per_batch=1)
    outputs = {
        "output": lambda: ValuesAtClock(lambda values, clock: use(), as_="arrow"),
        "as it runs": lambda: RunningValues(lambda values, batch: use(), as_="arrow"),
        "sink": lambda: FailingSink(use),
        "present": lambda: ValuesAtClock(lambda values, clock: [*values.batches()], as_="arrow"),
    }
    sink = outputs.get(kind, lambda: None)()
    app = Application("app", f"{folder}/store", checkpoint_interval="1 second", max_restarts=0)
    if kind == "minus":
        return app.add(PerKey(), source).add(task_of(kind, use), Changes("PerKey"))
    return app.add(PerKey() if kind in BESIDE else task_of(kind, use), source, sink=sink)


def messages_of(app: Application) -> dict[str, list[Message]]:
    return {app.added[0].named: [Message(row["ts"], row) for row in ROWS]}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("engine", "kind"),
    [*(("run_local", kind) for kind in TASKS), *(("Local", kind) for kind in [*drawn(TASKS, one_in=3), *BESIDE])],
)
def test_an_error_names_the_innermost_places_of_the_users_code(
    engine: str, kind: str, use: Any, tmp_path: Path
) -> None:
    def run() -> None:
        app = application_of(kind, use, tmp_path)
        if engine == "Local":
            app.run(Local(workers=1), drain=True, on_progress=use if kind == "progress" else None)
        else:
            run_local(app, messages_of(app), batch_size=2)

    with pytest.raises(StateError) as caught:
        run()
    assert PLACES.format(folder=tmp_path) in str(caught.value)
    assert "JSONDecodeError('Expecting value: line 1 column 1 (char 0)') at " in str(caught.value)


def text(*given: object) -> Any:
    return "x"


def texts(rows: pa.RecordBatch) -> Any:
    return pa.array(["x"] * rows.num_rows)


def few_columns(rows: pa.RecordBatch) -> Any:
    return rows.drop_columns("v") if rows.num_rows else rows


@pytest.mark.parametrize(
    ("kind", "use", "what"),
    [
        ("persistent_state", text, "persistent_state(){} gives no state"),
        ("process_batch", text, "process_batch of task=Task{} gave a str, not an Arrow array"),
        ("process_batch", texts, "process_batch of task=Task{}: Total: a column of string does not fit int64"),
        ("plus", text, "plus{} made a value that does not fit: Total: value='x' does not fit int64"),
        ("plus of a pair", text, "plus{} made a value that does not fit: Pair: value='x' does not fit int64"),
        ("minus", text, "minus{} made a value that does not fit: Total: value='x' does not fit int64"),
        ("transform", text, " returned a str{} and not a pyarrow.RecordBatch"),
        ("transform", few_columns, "{} made columns (ts: int64, k: string) of file='0.parquet'"),
        ("present", text, "what presents its values{} raised MonoidError("),
    ],
)
def test_an_error_of_what_the_users_code_returned_names_the_place_of_that_code(
    kind: str, use: Any, what: str, tmp_path: Path
) -> None:
    app = application_of(kind, use, tmp_path)

    def run() -> None:
        if kind == "transform":
            app.run(Local(workers=1), drain=True)
        else:
            run_local(app, messages_of(app), batch_size=2)

    with pytest.raises(StateError) as caught:
        run()
    begin, end = what.split("{}")
    assert re.search(rf"{re.escape(begin)} at {re.escape(__file__)}:\d+ in \w+{re.escape(end)}", str(caught.value))


def test_an_error_within_compiled_code_names_the_line_that_called_it(tmp_path: Path) -> None:
    def transform(rows: pa.RecordBatch) -> pa.RecordBatch:
        return rows.append_column("w", rows.column("V"))

    source = FileSource(tmp_path, timestamp="v", schema=pa.schema([("v", pa.int64())]), transform=transform)
    with pytest.raises(StateError) as caught:
        _ = source.schema
    place = f"{__file__}:{transform.__code__.co_firstlineno + 1} in transform"
    assert str(caught.value) == (
        f"transform of {source!r} raised KeyError('Field \"V\" does not exist in schema') at {place}, for a batch "
        "without rows, which it is given at the start to learn its columns."
    )


def test_an_error_from_nobodys_code_names_no_place() -> None:
    assert raised(KeyError("x")) == "KeyError('x')"


def test_the_places_of_installed_packages_are_named_where_there_are_no_others() -> None:
    with pytest.raises(ValueError, match="Expecting value") as caught:
        json.loads("abc")
    assert caught.value.__traceback__ is not None
    below = caught.value.with_traceback(caught.value.__traceback__.tb_next)
    assert f" at {json.decoder.__file__}:" in raised(below)


def test_a_missing_package_is_a_sentence_with_an_extra_that_there_is() -> None:
    error = missing_package("rich", "a live view", "terminal")
    ways = "pip install 'persistent-state[terminal]', in a checkout '.[terminal]'"
    assert str(error) == f"package='rich' is missing for a live view; {ways}."
    error = missing_package("rich", "a live view", "terminal", otherwise="say --once")
    assert str(error).endswith(f"{ways}, or say --once.")
    root, setup = Path(errors.__file__).parents[1], ConfigParser()
    setup.read(root / "setup.cfg")
    calls = [
        node
        for file in sorted((root / "persistent_state").rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == missing_package.__name__
    ]
    extras = {node.args[2].value for node in calls if isinstance(node.args[2], ast.Constant)}
    assert extras >= {"sql", "delta", "kafka", "metrics", "plots", "terminal"}
    assert extras <= {*setup["options.extras_require"]}


def test_a_cell_of_a_notebook_is_named_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    cells, other = CachingCompiler(), "/tmp/ipykernel_8/12.py"
    first = cells.cache("1 / 0", 7)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace(compile=cells)))
    text = "it raised ZeroDivisionError() at {}:1 in <module>, called from " + other + ":2 in other"
    assert naming_cells(text.format(first)) == text.format("Cell In[7]")
    with pytest.raises(ZeroDivisionError) as error:
        exec(compile("1 / 0", first, "exec"))
    assert " at Cell In[7]:1 in <module>, called from " in raised(error.value)


@pytest.mark.parametrize("without", [{}, {"IPython": SimpleNamespace(get_ipython=lambda: None)}])
def test_outside_a_notebook_a_place_is_a_file(without: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    for name, module in without.items():
        monkeypatch.setitem(sys.modules, name, module)
    assert naming_cells("at /tmp/ipykernel_8/12.py:1") == "at /tmp/ipykernel_8/12.py:1"
