"""What Spark's Python processes get of a reader: bytes, which only those unpack that use it."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition

from persistent_state.engine.read.arrow_source import ArrowReader
from persistent_state.engine.read.idle_source import IdleReader
from persistent_state.engine.read.packed import packed_source
from persistent_state.engine.spark.versions import SupportsTriggerAvailableNow
from tests import core
from tests.engine.read.test_arrow_source import SCHEMA, Counts, Stamps

ROOT = Path(__file__).parents[3]

PASSES_ON = """
import pickle, sys
from pyspark import cloudpickle
from pyspark.sql.types import StructType

source = pickle.load(open(sys.argv[1], "rb"))(options={})
assert (source.name(), source.schema()) == ("name", "label int, blob binary")
again = pickle.loads(cloudpickle.dumps((source, source.streamReader(StructType()))))
imported = {name.split(".")[0] for name in sys.modules}
assert not imported & {"persistent_state", "monoids", "pandas", "pyarrow"}, imported
reader = again[1]
"""


FLOW = core.alone(core.plan_of(Counts(), SCHEMA))


def reader() -> ArrowReader:
    return ArrowReader(FLOW, Stamps([1, 2, 3], there=3), 1, 1, [0], 1)


def kept(folder: Path, given: Any) -> Path:
    file = folder / "source"
    file.write_bytes(cloudpickle.dumps(packed_source("name", "task=Counts", given, "label int, blob binary")))
    return file


def run(program: str, file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program, str(file)], cwd=ROOT, capture_output=True, text=True)


def test_a_process_that_passes_a_reader_on_imports_nothing_of_this_library(tmp_path: Path) -> None:
    done = run(
        PASSES_ON + "print(type(reader._unpacked()).__name__, 'persistent_state' in sys.modules)",
        kept(tmp_path, reader()),
    )
    assert (done.stdout, done.stderr) == ("ArrowReader True\n", "")


def test_what_can_not_be_loaded_is_a_sentence_with_its_cause(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text("class Reader:\n    pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        lost = importlib.import_module("shop").Reader()
        file = kept(tmp_path, lost)
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["shop"]
    done = run(PASSES_ON + "reader.initialOffset()", file)
    assert done.stderr.strip().endswith(
        "persistent_state.errors.InvalidInputError: task=Counts can't be loaded by Spark's Python: ModuleNotFoundError: "
        "No module named 'shop'. Install what it imports where Spark runs Python, or let PYTHONPATH name the folder."
    )


def test_a_module_that_makes_a_session_when_it_is_imported_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "till.py").write_text(
        "import sys\nfrom pyspark.errors import PySparkRuntimeError\n"
        "if 'pytest' not in sys.modules:\n"
        "    raise PySparkRuntimeError(errorClass='CONTEXT_ONLY_VALID_ON_DRIVER', messageParameters={})\n"
        "class Reader:\n    pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    done = run(PASSES_ON + "reader.initialOffset()", kept(tmp_path, importlib.import_module("till").Reader()))
    assert done.stderr.strip().endswith(
        "persistent_state.errors.InvalidInputError: task=Counts can't be loaded by Spark's Python: its module makes a "
        "SparkSession when it is imported: put that under `if __name__ == '__main__':`."
    )


class Recorder:
    """A reader that returns what it is asked."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *given: (name, given)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("initialOffset", ()),
        ("latestOffset", ()),
        ("latestOffset", ({"a": 1}, "limit")),
        ("getDefaultReadLimit", ()),
        ("partitions", ({"a": 1}, {"a": 2})),
        ("read", (InputPartition(1),)),
    ],
)
def test_a_packed_reader_answers_as_the_reader_does(name: str, given: tuple[Any, ...]) -> None:
    source = pickle.loads(cloudpickle.dumps(packed_source("name", "task=T", Recorder(), "a int")))
    asked = getattr(source({}).streamReader(None), name)(*given)
    assert asked[0] == name
    assert [*map(str, asked[1])] == [*map(str, given)]


def test_spark_is_told_of_which_of_its_classes_the_reader_is() -> None:
    idle = IdleReader(FLOW, 1, lambda entry, part: None, [0])
    for given in (reader(), idle):
        packed = packed_source("name", "task=T", given, "a int")({}).streamReader(None)
        is_of_spark = SupportsTriggerAvailableNow.__module__.startswith("pyspark.")
        is_marked = isinstance(given, SupportsTriggerAvailableNow) and is_of_spark
        assert isinstance(packed, SupportsTriggerAvailableNow) == is_marked
