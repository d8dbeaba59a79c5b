"""Every public name has a docstring that lists its arguments, and the examples in docstrings are true."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import persistent_state

MODULES = [
    module.name
    for module in pkgutil.walk_packages(persistent_state.__path__, "persistent_state.")
    # These start Spark, or a program.
    if not module.name.startswith("persistent_state.engine") and not module.name.endswith("__main__")
]


UNLISTED = ("persistent_state.kafka", "persistent_state.engine")
"""Rooms whose public names do not explain their arguments yet: put one right, and remove it here."""


def public_parts() -> Iterator[tuple[str, Any]]:
    """Yield every public name, and every public method and property of a public class."""
    for name in persistent_state.__all__:
        found = getattr(persistent_state, name)
        if found.__module__.startswith(UNLISTED):
            continue
        yield name, found
        if inspect.isclass(found):
            for part, value in inspect.getmembers(found):
                is_ours = inspect.isfunction(value) and value.__module__.startswith("persistent_state")
                if not part.startswith("_") and (is_ours or isinstance(value, property)):
                    yield f"{name}.{part}", value


@pytest.mark.parametrize(("name", "found"), [pytest.param(*each, id=each[0]) for each in public_parts()])
def test_a_public_name_has_a_docstring_which_explains_its_arguments(name: str, found: Any) -> None:
    # A method that overrides one has the docstring of that.
    text = inspect.getdoc(found)
    assert text, f"{name} has no docstring"
    if not isinstance(found, property) and not (inspect.isclass(found) and issubclass(found, Exception)):
        arguments = [name for name in inspect.signature(found).parameters if name not in ("self", "args", "kwargs")]
        missing = [name for name in arguments if f" {name}: " not in text]
        assert not missing, f"the docstring of {name} does not explain {missing}"


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_true(module: str) -> None:
    names = {name: value for name, value in vars(persistent_state).items() if not name.startswith("_")}
    found = importlib.import_module(module)
    failed, _ = doctest.testmod(found, extraglobs={**names, **vars(found)}, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0


@pytest.mark.parametrize("package", ["monoids", "persistent_state"])
def test_no_docstring_is_half_a_question(package: str) -> None:
    root = Path(persistent_state.__file__).parent.parent / package
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            # Docstrings of attributes, too.
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                first = node.value.value.split(maxsplit=1)[0]
                is_half = first in {"What", "How", "Whether", "Which", "Why", "Where", "Who", "That", "Those"}
                assert not is_half, f"{file}:{node.lineno} begins with {first}; name the actor, or begin with a verb"
