"""The examples in the docstrings of the Kafka classes do what they say."""

from __future__ import annotations

import doctest

import pyarrow as pa
import pytest

import persistent_state
from persistent_state.kafka import connector, decoders, sink, source


@pytest.mark.parametrize("module", [connector, decoders, sink, source])
def test_examples_of_docstrings_are_true(module: object) -> None:
    failed, run = doctest.testmod(module, extraglobs={**vars(persistent_state), "pa": pa})  # type: ignore[arg-type]
    assert run > 0
    assert failed == 0
