"""What errors say."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from persistent_state import InvalidInputError, NotThereError, StateError


def problem(call: Callable[[], object], kind: type[StateError] = InvalidInputError) -> str:
    """The one sentence that says what is wrong and what to do."""
    with pytest.raises(StateError) as caught:
        call()
    text = str(caught.value)
    # What is not there is a request that is wrong. A store that refuses is none.
    assert type(caught.value) in ((kind, NotThereError) if kind is InvalidInputError else (kind,)), text
    assert "\n" not in text
    assert text.endswith(".")
    return text
