"""The engine that a user names to run an application on this machine alone."""

from __future__ import annotations

from dataclasses import dataclass

from persistent_state.errors import InvalidInputError, check_whole


@dataclass(frozen=True)
class Local:
    """This machine as the engine of an application, in the place of a Spark session. It needs neither Spark nor Java.

    The application is the same as under Spark, and so is its store: a store that one engine has written, the other goes on
    from, at any start. Code of tasks and monoids runs in worker processes, which start with the run and end with it. Functions
    of outputs and of progress run in the process that starts the application.

    Only Spark can read a `DataFrameSource` or a `KafkaConnectorSource`, can run a `process_column`, and can give a DataFrame to
    a function. A start refuses these. A function is given Arrow if its output says `as_="arrow"`.

    Args:
        workers: How many processes read, combine and merge at the same time.

    Raises:
        InvalidInputError: There is no worker.

    Example:
        >>> Local(workers=2)
        Local(workers=2)

        `app.run(Local(workers=2), drain=True)` runs an application to the end of what its sources hold.
    """

    workers: int = 1

    def __post_init__(self) -> None:
        check_whole("workers", self.workers)
        if self.workers < 1:
            raise InvalidInputError(f"workers={self.workers}; there must be at least one.")
