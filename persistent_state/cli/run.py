"""The command `run`: run an application as a process that a container or a scheduler supervises."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from persistent_state.application import Application
from persistent_state.cli import json_lines, stop_signals, streams
from persistent_state.cli.json_lines import FIELDS, LOGGER
from persistent_state.cli.loader import load_application
from persistent_state.cli.spark_session import start_session, stop_session
from persistent_state.errors import (
    DamagedError,
    FencedError,
    InvalidInputError,
    StateError,
    StoreRefusedError,
    TaskFailedError,
)
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.event_time.durations import positive
from persistent_state.local.settings import Local
from persistent_state.metrics.server import address
from persistent_state.redact import shown, without_secrets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from persistent_state.engine import Progress, Running

DONE, MEND, FENCED, TRY_AGAIN = 0, 2, 3, 75
"""The exit statuses. 2 is also that of wrong arguments, and 75 is EX_TEMPFAIL of sysexits.h."""

RESULTS = {DONE: "done", MEND: "mend it", FENCED: "fenced", TRY_AGAIN: "try again"}

LAST_WORDS = 1.0
"""The seconds that a process which ends at once has to print why."""

STATUSES = f"""\
exit status:
  {DONE:<3} done: the run came to its end; with --follow it was asked to end, and did
  {MEND:<3} mend it: the set-up is wrong, your code raised, or a file of the store is damaged; another try meets the same
  {FENCED:<3} fenced: a newer run owns the application; do not start this one again
  {TRY_AGAIN:<3} try again: the store, a source, a sink or Spark failed; the store refused, as when credentials have expired;
      a query of the run was stopped; or without --follow the run was asked to end before its end
  Anything else, such as 137 after kill -9: try again; nothing committed is lost.

SIGTERM and SIGINT end the run: a micro-batch that is under way is given up, and a sink completes what it writes.
After {stop_signals.SECONDS:g} s, or at a second signal a second later or more, the process ends at once, as by kill -9: nothing
committed is lost.
"""


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to those of the program."""
    run = commands.add_parser(
        "run",
        help="run an application on Spark or on this machine alone, for a container or a scheduler",
        description="Run an application to the end of what its sources hold now. Its module is imported.",
        epilog=STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run.add_argument(
        "application",
        metavar="MODULE:APP",
        help="a module or a .py file, and an Application in it or a function for one",
    )
    how = run.add_mutually_exclusive_group()
    how.add_argument(
        "--follow",
        action="store_true",
        help="go on as messages arrive, until SIGTERM; without it the run ends by itself",
    )
    how.add_argument("--drain", action="store_true", help="make a last checkpoint above all messages")
    run.add_argument(
        "--trigger",
        metavar="DURATION",
        help="with --follow: the least time between the beginnings of two micro-batches, such as '10 seconds'",
    )
    for name, what in (
        ("reset", "begins with nothing"),
        ("rebuild", "is built again from the beginning of its source"),
    ):
        run.add_argument(
            f"--{name}", metavar="TASK", action="append", default=[], help=f"a task that {what}; not with --follow"
        )
    run.add_argument(
        "--metrics",
        metavar="[HOST:]PORT",
        type=_metrics,
        help="answer /metrics, /health and /ready there, by default to this machine only",
    )
    run.add_argument("--local", action="store_true", help="run on this machine alone, without Spark and Java")
    run.add_argument("--workers", metavar="N", type=int, help="with --local: how many processes work (default: 1)")
    run.add_argument("--master", metavar="URL", help="Spark's master (default: what Spark is set up with, or local[*])")
    run.add_argument(
        "--conf",
        metavar="KEY=VALUE",
        type=_setting,
        action="append",
        default=[],
        help="a setting of Spark's session; lists of processes show it: secrets go into SPARK_CONF_DIR's spark-defaults.conf",
    )
    run.add_argument(
        "--json",
        action="store_true",
        help="print a line of JSON a micro-batch; so it is anyway if the output is no terminal",
    )
    run.set_defaults(run=_run)


def status_of(error: StateError) -> int:
    """Return the exit status after an error, by which a supervisor knows what to do."""
    if isinstance(error, FencedError):
        return FENCED
    # Credentials come back: they are renewed, or the service that gives them answers again.
    if isinstance(error, StoreRefusedError):
        return TRY_AGAIN
    return MEND if isinstance(error, (InvalidInputError, TaskFailedError, DamagedError)) else TRY_AGAIN


@dataclass(frozen=True)
class _Ended:
    """The end of a run. `is_whole` says that the run was not asked to end before it came to its end."""

    running: Running | None = None
    error: Exception | None = None
    is_whole: bool = True

    def status(self, is_following: bool) -> int:
        """Return the exit status."""
        status = status_of(self.error) if isinstance(self.error, StateError) else TRY_AGAIN
        if self.error is not None and (self.is_whole or status in (MEND, FENCED)):
            return status
        # What fails while the run ends changes nothing: the next one goes on from what is committed.
        return DONE if self.is_whole or is_following else TRY_AGAIN


def _metrics(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not a setting; write KEY=VALUE, such as spark.driver.memory=2g")
    return key, value


def _run(arguments: argparse.Namespace) -> int:
    try:
        if not arguments.json and sys.stdout.isatty():
            return _supervised(arguments, is_json=False)
        with json_lines.stdout_for_lines() as lines, json_lines.written_to(lines):
            return _supervised(arguments, is_json=True)
    finally:
        # A terminal that has gone, or a full disk, changes nothing about how the run has ended.
        streams.settle()


def _supervised(arguments: argparse.Namespace, is_json: bool) -> int:
    """Run the application, say how that has ended, and return the exit status."""
    begun, clocks = time.monotonic(), list[int]()

    def finish(ended: _Ended) -> int:
        status = ended.status(arguments.follow)
        fields = {"event": "ended", "status": status, "result": RESULTS[status], "seconds": time.monotonic() - begun}
        # A run that did not end has a clock, too: that of its newest commit.
        fields["clock"] = max(clocks, default=None) if ended.running is None else ended.running.clock
        if ended.error is not None:
            error = ended.error
            text = str(error) if isinstance(error, StateError) else f"{without_secrets(error, dict(arguments.conf))}."
            streams.say(f"persistent-state: {RESULTS[status]} (exit status {status}): {text}")
            fields["error"] = text
        LOGGER.info("the run has ended: %s", RESULTS[status], extra={FIELDS: fields})
        return status

    def end_at_once(signal: int | None) -> None:
        why = f"the run did not end within {stop_signals.SECONDS:g} s; nothing committed is lost, and the next run goes on."
        status = TRY_AGAIN if signal is None else 128 + signal
        # What is printed waits for ever if it is not read, or if another thread waits for that and holds the handler's lock.
        stop_signals.exit_within(LAST_WORDS, status)
        try:
            if signal is None:
                finish(_Ended(error=StateError(why)))
            streams.settle()
        finally:
            os._exit(status)

    with stop_signals.heard(end_at_once) as asked:
        return finish(_ended(arguments, is_json, asked, clocks))


def _ended(arguments: argparse.Namespace, is_json: bool, asked: threading.Event, clocks: list[int]) -> _Ended:
    """Run the application, and return how that has ended. While it runs, its newest clock is in `clocks`."""

    def note(progress: Progress) -> None:
        if progress.global_clock > BEGINNING:
            clocks[:] = [max([*clocks, progress.global_clock])]

    spark: SparkSession | None = None
    running: Running | None = None
    try:
        _check(arguments)
        app = _load(arguments.application)
        LOGGER.info(
            "application %s starts",
            app.name,
            extra={FIELDS: {"event": "starting", "application": app.name, "store": shown(app.store)}},
        )
        if not arguments.local:
            spark = start_session(app.name, arguments.master, arguments.conf)
        engine: Any = Local(arguments.workers or 1) if spark is None else spark
        options: dict[str, Any] = {
            "metrics": arguments.metrics,
            "show_progress": False if is_json else None,
            "on_progress": note,
        }
        if arguments.follow:
            running = app.start(engine, trigger=arguments.trigger, **options)
            # A signal that comes between the start and the wait is heard by neither.
            if asked.is_set():
                running.stop()
            running.await_termination()
            if running.was_asked_to_stop and not asked.is_set():
                raise StateError(
                    f"somebody stopped a query of application={app.name} through Spark; the next run goes on from there."
                )
        else:
            running = app.run(
                engine, drain=arguments.drain, reset=arguments.reset, rebuild=arguments.rebuild, **options
            )
        return _Ended(running, is_whole=not running.was_asked_to_stop)
    except KeyboardInterrupt:
        if running is not None:
            running.stop()
        return _Ended(running, is_whole=False)
    except StateError as error:
        return _Ended(running, error, is_whole=not asked.is_set())
    except Exception as error:
        # Only the places: the error's own text, and those of its causes, may have secrets.
        streams.say(
            "".join(["Traceback (most recent call last):\n", *traceback.format_tb(error.__traceback__)]).rstrip()
        )
        return _Ended(running, error, is_whole=not asked.is_set())
    finally:
        if spark is not None:
            stop_session(spark)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse options that are wrong or do not go together, before Spark starts.

    Raises:
        InvalidInputError: There are such.
    """
    if arguments.metrics is not None:
        address(arguments.metrics)
    if arguments.trigger is not None:
        positive("trigger", arguments.trigger)
    if arguments.trigger is not None and not arguments.follow:
        raise InvalidInputError(
            f"--trigger={arguments.trigger} is for a run that goes on; add --follow, or leave it out."
        )
    if arguments.workers is not None and not arguments.local:
        raise InvalidInputError(
            f"--workers={arguments.workers} is for a run on this machine alone; add --local, or leave it out."
        )
    if arguments.workers is not None:
        Local(arguments.workers)
    if arguments.local and (arguments.master is not None or arguments.conf):
        named = "--master" if arguments.master is not None else "--conf"
        raise InvalidInputError(f"{named} is for Spark, and --local runs without; leave one of them out.")
    for name in ("reset", "rebuild"):
        if arguments.follow and getattr(arguments, name):
            raise InvalidInputError(
                f"--{name} is given with --follow, and whatever starts the process again would begin the task again each time; "
                f"run once with --{name} and without --follow, then start as before."
            )


def _load(named: str) -> Application:
    """Load the application, and let Spark's workers on this machine find its modules where they were found."""
    before = {*sys.path}
    app = load_application(named)
    # The JVM hands its environment on to the workers, which import what the application's tasks need.
    added = [place for place in sys.path if place not in before]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [*added, os.environ.get("PYTHONPATH")]))
    return app
