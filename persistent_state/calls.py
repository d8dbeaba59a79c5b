"""Whether a user's function can be called as it will be."""

from __future__ import annotations

import inspect
from typing import Any

from persistent_state.errors import InvalidInput


def check_takes(name: str, function: Any, *arguments: str) -> None:
    """Refuse what can't be called with these arguments; `name` says which parameter it was given as.

    Raises:
        InvalidInput: it can't.
    """
    wanted = f"a function of ({', '.join(arguments)})"
    if not callable(function):
        raise InvalidInput(f"{name}={function!r} is not a function; give {wanted}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some that are written in C tell none.
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InvalidInput(f"{name}={function!r} takes {signature}: {error}; give {wanted}.") from None
