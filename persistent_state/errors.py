"""What can go wrong, one class for each thing that a caller can do about it."""

from __future__ import annotations


class StateError(Exception):
    """Base of every error that this package raises: one sentence says what is wrong and what to do."""


class InvalidInput(StateError):
    """The set-up, an argument or a request is wrong. Fix it; nothing was changed."""


class StoreUnavailable(StateError):
    """The store did not do what was asked. Nothing is known to be damaged; try again."""


class Exists(StateError):
    """`create` found the name taken. What stands there was not changed."""


class CommitUnknown(StateError):
    """The store never said whether a commit happened. Stop; the next start finds out."""


class Fenced(StateError):
    """A newer driver owns the application. Nothing was changed; stop and deliver nothing more."""


class Disagreement(StateError):
    """The shards of a micro-batch do not add up to one commit. Nothing was committed; start again."""


class Damaged(StateError):
    """A file of the store is not what was written. It is named, and never used."""


class TaskFailed(StateError):
    """User code raised, or met a bad row under `on_bad_row="fail"`. Channel, position and key are named."""
