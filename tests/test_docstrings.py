"""Every public name has a docstring that lists its arguments, and the examples in docstrings are true."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tests.docstrings import MODULES, ROOT, examples_of, failures_of, needs_spark
from tests.test_public import public as public_names

PUBLIC = public_names("persistent_state")

MADE_BY_THE_LIBRARY = ("Context", "Running")
"""Classes that users get and never make, so that their docstrings have no arguments."""


def public_parts() -> Iterator[tuple[str, Any]]:
    """Yield every public name, and every public method and property of a public class."""
    for full_name, public in PUBLIC.items():
        name = full_name.rpartition(".")[2]
        yield name, public
        if inspect.isclass(public):
            for part, value in inspect.getmembers(public):
                is_ours = inspect.isfunction(value) and value.__module__.startswith("persistent_state")
                if not part.startswith("_") and (is_ours or isinstance(value, property)):
                    yield f"{name}.{part}", value


@pytest.mark.parametrize(("name", "public"), [pytest.param(*each, id=each[0]) for each in public_parts()])
def test_a_public_name_has_a_docstring_which_explains_its_arguments(name: str, public: Any) -> None:
    # A method that overrides one has the docstring of that.
    text = inspect.getdoc(public)
    assert text, f"{name} has no docstring"
    is_error = inspect.isclass(public) and issubclass(public, Exception)
    if not isinstance(public, property) and not is_error and name not in MADE_BY_THE_LIBRARY:
        arguments = [name for name in inspect.signature(public).parameters if name not in ("self", "args", "kwargs")]
        missing = [name for name in arguments if f" {name}: " not in text]
        assert not missing, f"the docstring of {name} does not explain {missing}"


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_has_an_example(name: str) -> None:
    public = PUBLIC[name]
    is_error = inspect.isclass(public) and issubclass(public, Exception)
    if not is_error and name.rpartition(".")[2] not in MADE_BY_THE_LIBRARY:
        assert "\nExample:\n" in (inspect.getdoc(public) or "")


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_docstrings_are_true(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    examples = [example for example in examples_of(module) if not needs_spark(example)]
    assert failures_of(examples) == 0


@pytest.mark.parametrize("package", ["monoids", "persistent_state", "pyspark_persistent_state"])
def test_no_docstring_is_half_a_question(package: str) -> None:
    for file in sorted((ROOT / package).rglob("*.py")):
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
