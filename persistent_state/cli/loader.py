"""Load an application that a command names as MODULE:APP."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from types import ModuleType
from typing import Any, NoReturn

from persistent_state.application import Application
from persistent_state.errors import InvalidInputError, StateError, places
from persistent_state.redact import text_without_secrets
from persistent_state.setup.loading import loading

_LASTING = (FileNotFoundError, FileExistsError, PermissionError, NotADirectoryError, IsADirectoryError)
"""The errors of the operating system that do not pass. All others may, such as those of a network and of names in it."""


def load_application(named: str) -> Application:
    """Import the module of an application, and return the application. It is not started, and no session either.

    Args:
        named: MODULE:APP. MODULE is a module, of which the current folder may have the file, or the path of a .py file. APP is
            an `Application` in it, or a function without parameters that returns one.

    Raises:
        InvalidInputError: There is no such module or name, it is no application, or the user's code raised, or started one.
        StateError: The user's code could not reach something, such as a service that gives secrets. An error of this package
            that it raised keeps its class.
    """
    place, _, name = named.rpartition(":")
    if not place or not name:
        raise InvalidInputError(
            f"application={named!r} names no application; write it as MODULE:APP, such as shop.streams:app or streams.py:app."
        )
    with loading(named):
        module = _of_file(place) if place.endswith(".py") else _module(place)
        if not hasattr(module, name):
            raise InvalidInputError(f"{place} has no {name}; {_known(module)}.")
        return _application(named, getattr(module, name))


def _known(module: ModuleType) -> str:
    """Return in words what of a module can be named as an application."""
    own = {key: value for key, value in vars(module).items() if not key.startswith("_")}
    applications = ", ".join(key for key, value in own.items() if isinstance(value, Application))
    # It is unknown what a function returns before it is called.
    makers = ", ".join(
        key
        for key, value in own.items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and _takes_nothing(value)
    )
    known = f"its applications are {applications}" if applications else "it has no Application"
    return f"{known}; a function that returns one can be named, too: {makers}" if makers else known


def _takes_nothing(function: Any) -> bool:
    """Return whether something can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def _application(named: str, found: Any) -> Application:
    """Return the application that a name of the module stands for. If it stands for a function, call that first."""
    if callable(found) and not isinstance(found, Application):
        if not _takes_nothing(found):
            raise _no_application(named, found)
        try:
            found = found()
        except (Exception, SystemExit) as error:
            _refuse(f"{named} can't be called", error)
    if not isinstance(found, Application):
        raise _no_application(named, found)
    return found


def _no_application(named: str, found: Any) -> InvalidInputError:
    return InvalidInputError(
        f"{named} is of type {type(found).__name__}; name an Application, or a function without parameters that returns one."
    )


def _module(name: str) -> ModuleType:
    """Import a module, of the current folder first."""
    here = os.getcwd()
    # It stays, as what the application does later may import more.
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise InvalidInputError(
                f"there is no module {name} in {here}, or where else Python looks; look at its name."
            ) from None
        _refuse(f"{name} can't be imported", error)


def _of_file(path: str) -> ModuleType:
    """Import a file as the module of its folder that it is."""
    if not os.path.isfile(path):
        raise InvalidInputError(f"there is no file {path}; look at its name.")
    folder, file = os.path.split(os.path.realpath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = _module(file.removesuffix(".py"))
    if os.path.realpath(module.__file__ or "") != os.path.join(folder, file):
        raise InvalidInputError(
            f"{path} has the name of another module, {module.__file__}; give the file another name."
        )
    return module


def _refuse(what: str, error: BaseException) -> NoReturn:
    """Refuse an application whose code raised. The message says where in the user's code.

    Raises:
        StateError: The code could not reach something, and may another time. An error of this package keeps its class.
        InvalidInputError: Any other error of the code; another time it would raise the same.
    """
    kind: type[StateError] = InvalidInputError
    if isinstance(error, StateError):
        text, at = str(error).rstrip("."), places(error)
        # The text may have the innermost place itself.
        kind, why = type(error), f"{text}{'' if at.partition(', called')[0] in text else at}."
    elif isinstance(error, SyntaxError):
        why = f"{error.msg} at {error.filename}:{error.lineno}."
    else:
        why = f"{text_without_secrets(repr(error), {})}{places(error)}."
        if isinstance(error, OSError) and not isinstance(error, _LASTING):
            kind = StateError
    raise kind(f"{what}: {why}") from error
