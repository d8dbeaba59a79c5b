"""An error in a user's code names the places in it, whichever code of the user's it is."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
from configparser import ConfigParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from IPython.core.compilerop import CachingCompiler

from monoids import Aggregator, Sum, from_pair
from persistent_state import FileSource, Message, NonWindowState, PersistentTask, StateError, errors, run_local
from persistent_state.errors import missing_package, naming_cells, raised

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


def task_of(kind: str, use: Any) -> PersistentTask:
    total = Sum()
    monoid = {
        "plus": from_pair("User", pa.int64(), 0, use),
        "prepare": Aggregator(use, total, lambda value: value, pa.int64()),
        "present": Aggregator(lambda item: item, total, use, pa.int64()),
    }.get(kind, total)

    class Task(PersistentTask):
        name = "Task"

        def persistent_state(self) -> NonWindowState[Any]:
            if kind == "persistent_state":
                use()
            return NonWindowState(monoid)

    class ByMessage(Task):
        def process_message(self, state: Any, message: Message) -> None:
            if kind == "process_message":
                use()
            state.update(message.timestamp, message["v"])

    class ByBatch(Task):
        def process_batch(self, batch: pa.RecordBatch) -> pa.Array:
            return use(batch)

    return ByBatch() if kind == "process_batch" else ByMessage()


@pytest.mark.parametrize(
    "kind", ["process_message", "process_batch", "prepare", "plus", "present", "persistent_state", "transform"]
)
def test_an_error_names_the_innermost_places_of_the_users_code(kind: str, use: Any, tmp_path: Path) -> None:
    def transform() -> object:
        return FileSource(tmp_path, timestamp="v", schema=pa.schema([("v", pa.int64())]), transform=use).schema

    def run() -> object:
        return run_local(task_of(kind, use), [Message(1, {"v": 1}), Message(2, {"v": 2})])

    with pytest.raises(StateError) as caught:
        (transform if kind == "transform" else run)()
    assert PLACES.format(folder=tmp_path) in str(caught.value)
    assert "JSONDecodeError('Expecting value: line 1 column 1 (char 0)') at " in str(caught.value)


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
