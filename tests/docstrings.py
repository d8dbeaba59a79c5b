"""The examples in docstrings, for the tests that run them: without Spark, or with a session."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
from collections.abc import Iterable
from pathlib import Path

import monoids
import persistent_state
from tests.test_public import public

ROOT = Path(persistent_state.__file__).parent.parent

MODULES = [
    module.name
    for module in pkgutil.walk_packages(persistent_state.__path__, "persistent_state.")
    # Its import runs the command line.
    if not module.name.endswith("__main__")
]


def examples_of(module: str) -> list[doctest.DocTest]:
    """Return the examples of a module, which see the names of the module and all public names."""
    names = {name.rpartition(".")[2]: value for name, value in public("persistent_state").items()}
    loaded = importlib.import_module(module)
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for test in finder.find(loaded, globs={"monoids": monoids, **names, **vars(loaded)}) if test.examples]


def needs_spark(test: doctest.DocTest) -> bool:
    """Return whether an example calls something with the session `spark`."""
    statements = [example.source for example in test.examples if not example.source.startswith("def ")]
    return any("(spark, " in statement or "spark.sql(" in statement for statement in statements)


def failures_of(tests: Iterable[doctest.DocTest], **names: object) -> int:
    """Run examples, which also see these names, and return how many of their lines fail."""
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
    for test in tests:
        test.globs.update(names)
        runner.run(test)
    return runner.failures
