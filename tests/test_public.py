"""What is public is one list, importing it starts no Spark, and imports go one way."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from configparser import ConfigParser
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

import monoids
import persistent_state
import persistent_state.sinks

ROOT = Path(persistent_state.__file__).parent.parent

PUBLIC_NAMES = [
    "Application",
    "AsOfJoin",
    "Changes",
    "ClosedWindows",
    "CommitUnknownError",
    "ConsoleSink",
    "Context",
    "CsvOptions",
    "DamagedError",
    "DataFrameSource",
    "DeltaSink",
    "Emitted",
    "FencedError",
    "FileSource",
    "Input",
    "IntervalJoin",
    "InvalidInputError",
    "KafkaConnectorSource",
    "KafkaSink",
    "KafkaSource",
    "Local",
    "Message",
    "NonWindowState",
    "NotThereError",
    "OrderedTask",
    "ParquetSink",
    "PersistentState",
    "PersistentTask",
    "RateSource",
    "RunningValues",
    "SessionWindow",
    "SlidingWindow",
    "SqlSink",
    "StateError",
    "StoreRefusedError",
    "StoreUnavailableError",
    "TaskFailedError",
    "Timer",
    "TumblingWindow",
    "ValuesAtClock",
    "WindowState",
    "open_store",
    "read_state",
    "run_local",
    "verify",
]

ELSEWHERE = {
    "persistent_state.engine": ["Progress", "Running"],
    "persistent_state.kafka": ["Avro", "Decoded", "Decoder", "Json", "Raw"],
    "persistent_state.open_state": ["OpenApplication", "OpenChanges", "OpenState", "OpenStore", "OpenTask"],
    "persistent_state.protocol.rewind_plan": ["OutputPlan", "ReadAgain", "RewindPlan"],
    "persistent_state.sinks": ["LocalValues", "Origin", "RecordingSink", "Sink", "Values", "arrow_batches"],
    "persistent_state.sources": ["BadRecord", "Chunk", "Reach", "TimeReplayableSource"],
    "persistent_state.testing": ["LocalRun"],
}
"""What is public and not at the top: what only authors of sources, sinks and decoders need, and what the library returns."""

PUBLIC_MONOIDS = [
    "Affine",
    "Aggregator",
    "All",
    "Any",
    "Average",
    "Averaged",
    "BitAnd",
    "BitOr",
    "BloomFilter",
    "By",
    "Count",
    "CountMin",
    "Covariance",
    "Decayed",
    "DecayedValue",
    "Ends",
    "ExactSum",
    "First",
    "FrequentItems",
    "Group",
    "Histogram",
    "HyperLogLog",
    "Interval",
    "Joint",
    "KLL",
    "Last",
    "Line",
    "List",
    "Map",
    "Max",
    "MaxBy",
    "Min",
    "MinBy",
    "MinHash",
    "Moments",
    "Monoid",
    "MonoidError",
    "Optional",
    "Product",
    "REQ",
    "Semigroup",
    "Set",
    "Spread",
    "Struct",
    "Sum",
    "Summary",
    "Theta",
    "TopK",
    "Tuple",
    "VarOpt",
    "from_identity",
    "from_pair",
]

README = ROOT / "tests" / "README.md"

HOUSE = (
    "__main__ > cli > serve __init__ > testing > application > engine local > run > open_state > open_rows > metrics show"
    " > drive > protocol setup > edges > ordered batch > inputs > kafka outputs > sources sinks > store > partials > task"
    " > state > formatting windows > event_time > errors redact > monoids"
)
"""Folders and modules of the root: each imports only what is to its right, beyond a `>`."""

ENGINE = "__init__ > run > read data_source > spark"
"""The same for the folders within `engine`."""


def modules(package: str) -> Iterator[tuple[str, Path]]:
    """Name and file of every module of a package; a folder's own module has the folder's name."""
    for file in sorted((ROOT / package).rglob("*.py")):
        parts = file.relative_to(ROOT / package).with_suffix("").parts
        yield ".".join(part for part in parts if part != "__init__"), file


def imports(file: Path, *, at_load: bool = False) -> set[str]:
    """The full names that a file imports; `at_load` leaves out those within functions and for type checkers."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if at_load and isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            if at_load and isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{file} imports by a relative name"
                yield from (f"{child.module}.{alias.name}" for alias in child.names)
            yield from walk(child)

    return set(walk(ast.parse(file.read_text(encoding="utf-8"))))


def room_of(module: str, folder: str) -> str:
    """The folder of a module within a folder of persistent_state, or the module itself if it stands in that folder."""
    return module.removeprefix(folder).strip(".").split(".")[0] or "__init__"


def folder_in_room(module: str) -> str | None:
    """The folder of a room that a module is in; None if it stands in the room itself."""
    parts = module.split(".")
    return ".".join(parts[:2]) if len(parts) > 2 else None


def own(name: str, known: set[str]) -> str | None:
    """The module of persistent_state that a full name is of or in."""
    if name.split(".")[0] != "persistent_state":
        return None
    parts = name.split(".")[1:]
    return next(".".join(parts[:n]) for n in range(len(parts), -1, -1) if ".".join(parts[:n]) in known)


def public(package: str) -> dict[str, Any]:
    """Return all that is public of a package, each by its full name."""
    places = {"persistent_state": PUBLIC_NAMES, **ELSEWHERE, "monoids": PUBLIC_MONOIDS}
    return {
        f"{place}.{name}": getattr(importlib.import_module(place), name)
        for place, names in places.items()
        if place.split(".")[0] == package
        for name in names
    }


def test_what_is_public_is_one_list() -> None:
    assert sorted(persistent_state.__all__) == PUBLIC_NAMES
    assert len(PUBLIC_NAMES) <= 50
    assert sorted(monoids.__all__) == PUBLIC_MONOIDS
    for place, names in ELSEWHERE.items():
        listed = getattr(importlib.import_module(place), "__all__", None)
        # A package lists what is public; a module has names of its own beside it.
        assert names == listed if hasattr(sys.modules[place], "__path__") else listed is None, place


def test_what_is_public_has_one_place() -> None:
    names = [name.rpartition(".")[2] for name in public("persistent_state")]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("package", ["persistent_state", "monoids", "persistent_state.cli"])
def test_importing_starts_no_spark(package: str) -> None:
    program = f"import {package}, sys; assert not {{'pyspark', 'py4j', 'pandas'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


@pytest.mark.parametrize("package", ["persistent_state.cli.commands", "pyspark_persistent_state"])
def test_importing_needs_no_extra(package: str) -> None:
    extras = (
        "s3fs adlfs azure gcsfs requests sqlalchemy psycopg deltalake confluent_kafka fastavro datasketches prometheus_client "
        "opentelemetry starlette uvicorn jinja2 markupsafe rich matplotlib hypothesis pytest packaging"
    )
    program = f"import sys; sys.modules.update(dict.fromkeys({extras.split()!r})); import {package}"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT)


def test_only_the_engine_imports_spark() -> None:
    for module, file in modules("persistent_state"):
        spark = {name for name in imports(file, at_load=True) if name.split(".")[0] in ("pyspark", "py4j")}
        assert not spark or module.split(".")[0] == "engine", f"{file} imports {spark}"


def test_only_what_is_handed_a_session_or_looks_for_one_reaches_for_the_engine_and_not_before() -> None:
    allowed = ("application", "cli.fast_start", "cli.run", "cli.doctor.machine", "cli.doctor.packages")
    for module, file in modules("persistent_state"):
        if module.split(".")[0] != "engine":
            late = {name for name in imports(file) if name.startswith("persistent_state.engine")}
            assert not late or module in allowed, f"{file} imports {late}"
            assert not any(name.startswith("persistent_state.engine") for name in imports(file, at_load=True))


def test_the_tests_of_a_module_are_in_the_file_of_its_name_or_in_the_one_that_the_readme_names() -> None:
    listed: list[str] = []
    for tests, of in re.findall(r"^\| `(\S*test_\w+\.py)` \| (`\S+`(?:, `\S+`)*) \|$", README.read_text(), re.M):
        assert (README.parent / tests).exists(), tests
        listed += re.findall(r"`(\S+)`", of)
    without = [
        str(module.with_suffix(""))
        for module in (file.relative_to(ROOT / "persistent_state") for _, file in modules("persistent_state"))
        if not module.stem.startswith("__") and not (README.parent / module.with_name(f"test_{module.name}")).exists()
    ]
    assert sorted(listed) == sorted(without)


def test_spark_finds_the_data_source_by_the_name_of_a_package_that_is_installed() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    installed = config["options.packages.find"]["include"].split()
    (found,) = [module.name for module in pkgutil.iter_modules([str(ROOT)]) if module.name.startswith("pyspark_")]
    assert any(fnmatch(found, pattern) for pattern in installed)
    assert importlib.import_module(found).DefaultSource.name() == "persistent-state"
    # Spark imports it for each user of any Python data source.
    assert {name.split(".")[0] for name in imports(ROOT / found / "__init__.py", at_load=True)} == {
        "__future__",
        "collections",
        "pyspark",
    }


def test_monoids_know_nothing_of_persistent_state_or_spark() -> None:
    extras = {"laws.py": ["hypothesis", "pytest"], "strategies.py": ["hypothesis"], "sketches.py": ["datasketches"]}
    for _, file in modules("monoids"):
        outside = {name.split(".")[0] for name in imports(file)} - set(sys.stdlib_module_names)
        allowed = {"monoids", "numpy", "pyarrow", *extras.get(file.name, ())}
        assert outside <= allowed, f"{file} imports {outside - allowed}"


@pytest.mark.parametrize(("folder", "house"), [("", HOUSE), ("engine", ENGINE)])
def test_imports_go_one_way(folder: str, house: str) -> None:
    tier = {room: i for i, rooms in enumerate(house.split(" > ")) for room in rooms.split()}
    names = dict(modules("persistent_state"))
    here = [module for module in names if f"{module}.".startswith(folder)]
    within: dict[str, set[str]] = {module: set() for module in here}
    for module in here:
        for target in {own(name, set(names)) for name in imports(names[module])} & {*here}:
            assert target is not None
            if room_of(target, folder) == room_of(module, folder):
                within[module].add(target)
            else:
                higher, lower = tier[room_of(module, folder)], tier[room_of(target, folder)]
                assert lower > higher, f"persistent_state.{module} imports {target}"
    # Within a room, too, nobody imports in a circle, and no folder of it does.
    list(TopologicalSorter(within).static_order())
    folders: dict[str, set[str]] = {}
    for module, targets in within.items():
        of_module, of_targets = folder_in_room(module), map(folder_in_room, targets)
        if of_module is not None:
            folders.setdefault(of_module, set()).update({*filter(None, of_targets)} - {of_module})
    list(TopologicalSorter(folders).static_order())
