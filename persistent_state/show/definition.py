"""Say for people how a task of an application is defined, without its store."""

from __future__ import annotations

from collections.abc import Mapping

from persistent_state.batch.part import part_of
from persistent_state.inputs import AnySource
from persistent_state.kafka.subscription import Subscription
from persistent_state.outputs import Outputs
from persistent_state.sources.files import FileSource
from persistent_state.sources.tasks import TaskSource
from persistent_state.task import PersistentTask

TOLD = (FileSource, Subscription, TaskSource)
"""The sources that are told as they show themselves, which is without secrets."""


def reads(sources: Mapping[str, AnySource]) -> str:
    """Return what a task reads, by the names of its inputs."""
    told = {
        name: repr(source) if isinstance(source, TOLD) else type(source).__name__ for name, source in sources.items()
    }
    return ", ".join(f"{name}: {source}" if name else source for name, source in told.items())


def state(task: PersistentTask) -> str:
    """Return what a task keeps; "-" if the task does not say."""
    if (part := part_of(task)) is not None:
        return part.keeps
    try:
        kept = task.persistent_state()
        return ", ".join(map(repr, [kept.monoid, *([] if kept.windowing is None else [kept.windowing])]))
    except Exception:
        # It is the user's code, and this is only a look: the start says what is wrong with it.
        return "-"


def outputs(of: Outputs) -> list[str]:
    """Return the outputs of a task."""
    return [*of.names, *(["running values"] if of.running else [])]
