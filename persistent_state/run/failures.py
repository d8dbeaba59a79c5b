"""Errors of a run: those that no further try can mend, and those of a user's function that a run calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import singledispatch

from persistent_state.errors import (
    DamagedError,
    FencedError,
    InvalidInputError,
    StateError,
    TaskFailedError,
    places,
    raised,
)

NOT_RETRIED = (FencedError, InvalidInputError, TaskFailedError, DamagedError)
"""The errors that another try would meet again."""


class TooSlowError(StateError):
    """The machine was too slow for a process of an engine's. Try again later; users catch it as a StateError."""


@singledispatch
def of_engine(error: object, of: str) -> StateError | None:
    """Return the error of this package that is behind an error of an engine; None if no engine knows the error's class.

    An engine registers its way for each of its classes. `of` names what failed.
    """
    return None


def as_exception(error: BaseException) -> Exception:
    """Return an error as an Exception, which a panic of a library in Rust and a `sys.exit` in a user's function are not."""
    if isinstance(error, Exception):
        return error
    return StateError(f"it raised {raised(error)}; nothing is lost. Fix the cause, then start again.")


@contextmanager
def naming(what: str, kind: type[StateError]) -> Iterator[None]:
    """Raise an error of user code in this block as an error of `kind` that names `what` raised it, and where."""
    try:
        yield
    except StateError:
        raise
    except Exception as error:
        if (own := of_engine(error, f"{what}{places(error)}")) is not None:
            raise own from error
        raise kind(f"{what} raised {raised(error)}; fix it.") from error
