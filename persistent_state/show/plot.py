"""Plot how the clocks of an application have moved, by the library matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from persistent_state.errors import InvalidInputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot(application: str, history: pa.Table, axes: Axes | None = None) -> Axes:
    """Draw the clock of each task and the global one over the time at which they were written.

    Raises:
        InvalidInputError: The package matplotlib is not installed.
    """
    try:
        from matplotlib import dates, pyplot, rcParams
    except ImportError as error:
        raise InvalidInputError(
            "package='matplotlib' is missing for a plot; pip install 'persistent-state[plots]'."
        ) from error
    if axes is None:
        _, axes = pyplot.subplots(layout="constrained")
    lines, names = [], []
    for task in pc.unique(history["task"]).to_pylist():
        rows = history.filter(pc.equal(history["task"], task))
        lines += axes.step(*_points(rows, "clock"), where="post")
        names.append(task)
    of_each = history.group_by("entry").aggregate([(name, "min") for name in ("written", "global_clock", "timeline")])
    of_each = of_each.sort_by("entry").rename_columns(
        {f"{name}_min": name for name in ("written", "global_clock", "timeline")}
    )
    # In the colour of text, which suits a dark style and a light one.
    colour = rcParams["text.color"]
    lines += axes.step(*_points(of_each, "global_clock"), where="post", color=colour, linestyle="--", linewidth=2)
    names.append("global clock")
    timelines = of_each["timeline"].to_pylist()
    for place, timeline in enumerate(timelines):
        if place and timeline != timelines[place - 1]:
            # The application was taken back.
            axes.axvline(_points(of_each.slice(place, 1), "global_clock")[0][0], color=colour, linestyle=":")
    # A name may begin with what the library hides, and have signs that it would set as a formula.
    axes.legend(lines, [name.replace("$", r"\$") for name in names])
    axes.set(title=application, xlabel="written, UTC", ylabel="clock, event time UTC")
    for axis in (axes.xaxis, axes.yaxis):
        places = dates.AutoDateLocator()  # type: ignore[no-untyped-call]
        axis.set_major_locator(places)
        axis.set_major_formatter(dates.ConciseDateFormatter(places))  # type: ignore[no-untyped-call]
    return axes


def _points(rows: pa.Table, clock: str) -> tuple[NDArray[np.datetime64], NDArray[np.datetime64]]:
    """Return the times and the clocks of rows, as the library plots them."""
    naive = pa.timestamp("us")
    return rows["written"].cast(naive).to_numpy(), rows[clock].cast(naive).to_numpy()
