"""Draw what a store holds on a terminal again and again, by the library rich."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from persistent_state.errors import StateError, missing_package
from persistent_state.formatting import printable
from persistent_state.protocol.holding import STUCK
from persistent_state.show import top
from persistent_state.show.tables import Table
from persistent_state.show.top import ApplicationStatus, StatusReader

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

TIMES = ("clock", "newest message", "delivered up to")
"""The columns of times."""

EVERY = 2.0
"""Seconds between two looks."""


def terminal() -> Console:
    """Return the terminal as the library knows it.

    Raises:
        InvalidInputError: The package rich is not installed.
    """
    try:
        from rich.console import Console
    except ImportError as error:
        raise missing_package("rich", "a live view", "terminal", otherwise="say --once") from error
    return Console()


def watch(
    reader: StatusReader,
    console: Console,
    *,
    seconds: Callable[[], float],
    now_us: Callable[[], int],
    wait: Callable[[float], object],
) -> None:
    """Show the applications until an interrupt. If the store does not answer, their last status stays on the screen.

    Args:
        reader: Reads their status.
        console: The terminal.
        seconds: Returns the seconds of a clock that does not go back.
        now_us: Returns the time, microseconds UTC.
        wait: Waits for a number of seconds.

    Raises:
        InvalidInputError: At the first look there is no application, or none of this name.
        StoreUnavailableError: At the first look the store does not answer.
    """
    from rich.live import Live

    statuses = reader.look(seconds())
    error = ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(view(statuses, error, now_us()), refresh=True)
            wait(EVERY)
            try:
                statuses, error = reader.look(seconds()), ""
            except (StateError, OSError) as failed:
                error = str(failed)


def view(statuses: Sequence[ApplicationStatus], error: str, now: int) -> RenderableType:
    """Return applications as the library draws them, below what stood in the way of the newest look."""
    from rich.console import Group
    from rich.text import Text

    above = [Text(printable(error), style="bold red")] if error else []
    return Group(*above, *(_application(each, now) for each in statuses), Text("Ctrl-C ends this view.", style="dim"))


def _application(status: ApplicationStatus, now: int) -> RenderableType:
    from rich import box
    from rich.console import Group
    from rich.panel import Panel
    from rich.table import Table as Grid
    from rich.text import Text

    holder = None if status.summary is None else status.summary["waits_for"]
    is_stuck = holder is not None and holder["why"] in STUCK
    facts = Grid.grid(padding=(0, 2))
    for name, value in top.facts(status, now).items():
        style = "bold red" if name == "error" else "bold yellow" if name == "waits for" and is_stuck else ""
        if name != "application":
            facts.add_row(Text(name, style="dim"), Text(printable(value), style=style))
    return Panel(
        Group(facts, *map(_table, top.status_tables(status))),
        title=Text(printable(status.name), style="bold"),
        title_align="left",
        border_style="red" if status.error else "yellow" if is_stuck else "",
        box=box.ROUNDED,
    )


def _table(table: Table) -> RenderableType:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    # Names of tasks and channels are data: what looks like the library's markup is not.
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for place, head in enumerate(table.heads):
        is_right = place in table.right
        # What else is to say of a clock may go on in the next line.
        is_time = head in TIMES and not any(", " in row[place] for row in table.rows)
        # Where there is no room, names are cut first: half a clock says nothing.
        grid.add_column(Text(head), justify="right" if is_right else "left", no_wrap=is_right or is_time)
    for row in table.rows:
        grid.add_row(*(Text(printable(cell)) for cell in row))
    return grid
