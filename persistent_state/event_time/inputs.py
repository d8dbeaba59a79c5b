"""Names of channels and partitions where a task has several inputs: what an input calls `x` is `INPUT:x`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

T = TypeVar("T")

INPUT = ""
"""The name of an only input. What it calls `x` is `x`, beside other inputs, too."""

UNNAMED = "input"
"""The field of late and bad rows that holds those of the input without a name, beside other inputs. No input has this name."""


def named_in(input: str, name: str) -> str:
    """Return a name of an input's as it is called among those of all inputs."""
    return f"{input}:{name}" if input else name


def input_of(name: str, inputs: Collection[str]) -> str:
    """Return the input of these that has a name among those of all inputs."""
    input, colon, _ = name.partition(":")
    return input if colon and input in inputs else INPUT


def by_input(values: Mapping[str, T], inputs: Collection[str]) -> dict[str, dict[str, T]]:
    """Return values by input, and by the name that the input has for each."""
    found: dict[str, dict[str, T]] = {input: {} for input in inputs}
    for name, value in values.items():
        input = input_of(name, inputs)
        # An input that is gone has left nothing but a name.
        found.setdefault(input, {})[name.removeprefix(f"{input}:") if input else name] = value
    return found


def together(values: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """Return values by name, of all inputs: `by_input` takes them apart again."""
    return {named_in(input, name): value for input, some in values.items() for name, value in some.items()}
