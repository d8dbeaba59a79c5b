"""Errors that users see, the places in user code that raised, and the errors of other libraries as ours."""

from __future__ import annotations

import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from traceback import walk_tb
from types import CodeType, FrameType
from typing import Any

import monoids

_LIBRARY = tuple(f"{Path(file).parent}/" for file in (__file__, monoids.__file__))
_STANDARD = (f"{sysconfig.get_path('stdlib')}/", "<frozen ")
_CYTHON = (".pyx", ".pxi", ".pxd")
"""The ends of the names of Cython's files, by which compiled code goes wherever it is installed."""

_CELL = re.compile(r"[^\s'\"]*[/\\]ipykernel_\d+[/\\]\d+\.py|<ipython-input-[^\s>]+>")
"""The files that code of a notebook's cells says it is of."""

FRAMES = 3
"""The most places that are named, the innermost first."""


def raised(error: BaseException) -> str:
    """Return an error that user code raised, and the places that it came through, as text."""
    return f"{error!r}{places(error)}"


def places(error: BaseException) -> str:
    """Return " at " and the innermost places outside this package that an error came through; "" if there are none.

    Places in installed packages are named only if there are no others.
    """
    outside = [(frame.f_code, line) for frame, line in walk_tb(error.__traceback__) if _is_outside(frame.f_code)]
    own = [place for place in outside if not _is_installed(place[0])] or outside
    named = [_place(code, line) for code, line in reversed(own[-FRAMES:])]
    return naming_cells(f" at {', called from '.join(named)}") if named else ""


def at_line(frame: FrameType) -> str:
    """Return " at " and the place that a call has come to."""
    return naming_cells(f" at {_place(frame.f_code, frame.f_lineno)}")


def at_caller() -> str:
    """Return " at " and the place outside this package that a call has come from; "" if it has come from none."""
    frame = sys._getframe(1)
    while not _is_outside(frame.f_code):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return at_line(frame)


def at_definition(function: Callable[..., Any] | None) -> str:
    """Return " at " and the place where a function of the user's is defined; "" if it has no code in Python."""
    code = None if function is None else getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None or not _is_outside(code) else naming_cells(f" at {_place(code, code.co_firstlineno)}")


def _place(code: CodeType, line: int) -> str:
    return f"{code.co_filename}:{line} in {code.co_name}"


def naming_cells(text: str) -> str:
    """Return a text in which the cells of this process's notebook are named as IPython names them: `Cell In[3]`, not by a file.

    A worker of Spark does not know the cells that its code is of. So the driver gives the worker's text to this function.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return text
    return _CELL.sub(lambda file: " ".join(shell.compile.format_code_name(file[0]) or [file[0]]), text)


def _is_outside(code: CodeType) -> bool:
    # Spark is called by this package too, where no code of the user's is at fault.
    spark = (getattr(sys.modules.get(name), "__file__", None) for name in ("pyspark", "py4j"))
    return not code.co_filename.startswith((*_LIBRARY, *(f"{Path(file).parent}/" for file in spark if file)))


def _is_installed(code: CodeType) -> bool:
    place = code.co_filename
    is_package = "/site-packages/" in place or "/dist-packages/" in place
    return is_package or place.startswith(_STANDARD) or place.endswith(_CYTHON)


class StateError(Exception):
    """The base of every error that this package raises. Its message says what is wrong and what to do."""


class InvalidInputError(StateError):
    """The set-up, an argument or a request is wrong. Fix it; nothing was changed."""


class NotThereError(InvalidInputError):
    """There is no such application, task or clock in the store, or not any more. Ask for another; nothing was changed."""


class StoreRefusedError(InvalidInputError):
    """The store refuses what was asked, as if credentials have expired. Put them right; what was asked for may be there."""


class StoreUnavailableError(StateError):
    """The store did not answer or did not do what was asked. Nothing is known to be damaged; try again."""


class ExistsError(StateError):
    """A file of this name exists. It was not changed; look at it."""


class CommitUnknownError(StateError):
    """The store did not answer whether a commit happened. Stop; the next start finds out."""


class FencedError(StateError):
    """A newer driver owns the application. Nothing was changed; stop and deliver nothing more."""


class DisagreementError(StateError):
    """The shards of a micro-batch do not add up to one commit. Nothing was committed; start again."""


class DamagedError(StateError):
    """A file of the store is not what was written. It is named and never used. Restore it, or read another clock."""


class TaskFailedError(StateError):
    """User code raised, or a row was bad under `on_bad_row="fail"`. Channel, position and key are named. Fix the task."""


def missing_package(package: str, needed_by: str, extra: str, otherwise: str = "") -> InvalidInputError:
    """Return the error that a package is not installed.

    Args:
        package: The package that can't be imported.
        needed_by: What needs it.
        extra: The extra of this package that brings it.
        otherwise: What else there is to do, if anything.
    """
    install = f"pip install 'persistent-state[{extra}]', in a checkout '.[{extra}]'"
    ways = ", or ".join(filter(None, (install, otherwise)))
    return InvalidInputError(f"package={package!r} is missing for {needed_by}; {ways}.")


def refuse(*topics: Iterable[str]) -> None:
    """Raise the first sentence of these topics as an error. A topic yields the sentences that refuse what it was given.

    Later sentences are not asked for: the condition of one may rest on those before it, or it may be only their consequence.

    Raises:
        InvalidInputError: There is a sentence.
    """
    for sentence in chain(*topics):
        raise InvalidInputError(sentence)


def check_whole(name: str, given: object) -> None:
    """Refuse what is not a whole number; `name` is the parameter that it was given as.

    Raises:
        InvalidInputError: It is not a whole number.
    """
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise InvalidInputError(f"{name}={given!r} is not a whole number; give one, such as {name}=2.")


def check_takes(name: str, function: Any, *arguments: str) -> None:
    """Refuse what can't be called with these arguments; `name` is the parameter that it was given as.

    Raises:
        InvalidInputError: It is not a function, or takes other arguments.
    """
    wanted = f"a function of ({', '.join(arguments)})"
    if not callable(function):
        raise InvalidInputError(f"{name}={function!r} is not a function; give {wanted}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions that are written in C have no signature.
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InvalidInputError(f"{name}={function!r} takes {signature}: {error}; give {wanted}.") from None


def check_path(name: str, given: str) -> None:
    """Refuse a text that can't be the path of a file; `name` is the parameter that it was given as.

    Raises:
        InvalidInputError: The text has a NUL, or can't be encoded, or has a variable of the shell and is no path that is there.
    """
    try:
        is_path = b"\0" not in os.fsencode(given)
    except UnicodeEncodeError:
        is_path = False
    if not is_path:
        # Not the text itself, which may hold a secret.
        raise InvalidInputError(f"{name}=... has a character that no path can have; leave it out.")
    # In a URL a dollar sign is a character like any other.
    variable = re.search(r"(?:^|/)(\$(?:\w+|\{\w+\}))(?=/|$)", given)
    if variable and "://" not in given and not os.path.exists(given):
        raise InvalidInputError(
            f"{name}=... has {variable[1]}, and variables are not expanded; give os.path.expandvars({name}), or make a folder "
            "of this name first."
        )


@contextmanager
def translating(
    foreign: type[Exception] | tuple[type[Exception], ...], as_ours: Callable[[Any], Exception]
) -> Iterator[None]:
    """Raise the errors of another library that come out of the block as errors of this package.

    The library's error is not chained to ours, unless `as_ours` does so: it may show options, urls and passwords.

    Args:
        foreign: The classes of errors to translate. Errors of this package pass as they are.
        as_ours: Makes the error to raise of the library's.
    """
    try:
        yield
    except StateError:
        raise
    except foreign as error:
        ours = as_ours(error)
        raise ours from ours.__cause__
