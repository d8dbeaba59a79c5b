"""The graph of an application's tasks: the order in which they feed each other, and the clocks at which they come together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from persistent_state.edges.base import times_apart
from persistent_state.errors import InvalidInputError
from persistent_state.setup.added import Added


def topological(added: Sequence[Added]) -> list[Added]:
    """Return the tasks so that each comes after those that feed it.

    Raises:
        InvalidInputError: A task is fed by one that is not added, or by itself in the end.
    """
    by_name = {each.name: each for each in added}
    order: dict[str, Added] = {}
    every_task = {name: each.task for name, each in by_name.items()}

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            tasks = [*dict.fromkeys(by_name[each].named for each in path[path.index(name) :])]
            circle = " -> ".join((*tasks, tasks[0]))
            raise InvalidInputError(f"tasks feed each other in a circle: {circle}; let one of them read a source.")
        if name in order:
            return
        for source in by_name[name].upstream.values():
            if why := source.misfit(every_task):
                raise InvalidInputError(f"task={by_name[name].named} is fed by {source!r}, and {why}.")
            if source.task not in by_name:
                known = ", ".join(known for known, each in by_name.items() if each.named == known)
                raise InvalidInputError(
                    f"task={by_name[name].named} is fed by task={source.named}, which is not added; the tasks are {known}."
                )
            visit(source.task, (*path, name))
        order[name] = by_name[name]

    for name in by_name:
        visit(name, ())
    return list(order.values())


def every(ordered: Sequence[Added], interval: int) -> dict[str, set[int]]:
    """Return by task: the times, in microseconds, after which others are fed its changes, or those of what it feeds.

    Args:
        ordered: The tasks, so that each comes after those that feed it.
        interval: The checkpoint interval of the user.

    Raises:
        InvalidInputError: A time is no multiple of the checkpoint interval.
    """
    times = dict[str, set[int]]()
    for each in reversed(ordered):
        for source in each.upstream.values():
            own = times_apart(source, each.name, interval, times.get(each.name, set()))
            times.setdefault(source.task, set()).update(own)
    return times


def common_interval(times: Mapping[str, set[int]], interval: int) -> int:
    """Return the time between the clocks at which all tasks come together.

    Args:
        times: By task the times of `every`: a task that is fed so often comes to a checkpoint after each of them.
        interval: The checkpoint interval of the user.
    """
    return math.lcm(interval, *set[int]().union(*times.values()))
