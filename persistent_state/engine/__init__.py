"""Spark: the only folder that imports pyspark. It plans, moves and retries; the log is the truth.

Here is what a start returns, and what it hands to `on_progress`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from persistent_state.run.progress import Progress
    from persistent_state.run.running import Running

__all__ = ["Progress", "Running"]


def __getattr__(name: str) -> Any:
    # Spark's Python processes import single modules of this folder, and need neither.
    if name == "Progress":
        from persistent_state.run.progress import Progress

        return Progress
    if name == "Running":
        from persistent_state.run.running import Running

        return Running
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
