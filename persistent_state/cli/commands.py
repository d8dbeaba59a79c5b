"""The command line: run an application, show what a store holds, keep clocks, branch, go back, and verify every file."""

from __future__ import annotations

import argparse
import csv
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import asdict
from itertools import islice
from typing import Any

import pyarrow as pa

from monoids import Aggregator, Monoid
from persistent_state import __version__, formatting
from persistent_state.cli import run, stop_signals, streams
from persistent_state.cli.doctor.all_checks import all_checks
from persistent_state.cli.doctor.check import FAIL
from persistent_state.cli.loader import load_application
from persistent_state.errors import InvalidInputError, StateError
from persistent_state.formatting import full_clock, plain, to_json
from persistent_state.metrics.exposition import as_text
from persistent_state.metrics.of_store import of_store
from persistent_state.open_state import OpenApplication, open_store
from persistent_state.protocol.naming import clock_named
from persistent_state.protocol.rewind_plan import AGAIN, RETRACT, made, refusals
from persistent_state.redact import shown
from persistent_state.serve.server import HOST, PORT, TOKEN, check, serve
from persistent_state.show import graph, late, live, top
from persistent_state.show.summary import summary
from persistent_state.show.text import application, applications, verified, width
from persistent_state.show.words import size
from persistent_state.store.files import Files, LocalFiles, open_files
from persistent_state.store.log import Log
from persistent_state.store.state_at import find_applications, find_state
from persistent_state.store.verify import verify

PROGRAM = "persistent-state"

EXIT_SECONDS = 10.0
"""The time that Python has to end the process after the command has."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: The arguments, by default those of the process.

    Returns:
        The exit status: 0, or 1 if `verify` or `doctor` found problems or a rewind was declined, or 2 if the command failed.
        `run` has more of them.
    """
    status = _run_command(argv)
    if argv is None:
        # Threads of the user's code may go on, and a client of Spark Connect calls a server that has gone again and again.
        stop_signals.exit_within(EXIT_SECONDS, status)
        stop_signals.exit_beside_threads(status)
    return status


def _run_command(argv: Sequence[str] | None) -> int:
    streams.open_missing()
    try:
        arguments = _parser().parse_args(argv)
        status: int = arguments.run(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        # The reader has gone.
        return 128 + 13
    except KeyboardInterrupt:
        return 128 + 2
    except (StateError, OSError) as error:
        streams.say(f"{PROGRAM}: {error}")
        return 2
    finally:
        streams.settle()


def _parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--json", action="store_true", help="print JSON, for programs")
    options.add_argument(
        "--storage-options",
        metavar="JSON|@FILE",
        default="{}",
        help="the store's options as a JSON object, such as keys; as @FILE, no list of processes shows its secrets",
    )
    common = argparse.ArgumentParser(add_help=False, parents=[options])
    common.add_argument("store", metavar="STORE", help="the store's folder or url, as the application has it")
    parser = argparse.ArgumentParser(
        PROGRAM,
        description="Look into a store of persistent state, and work with it. Nothing that it holds is executed.",
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, does: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, parents=[common], help=does, description=f"{does[0].upper()}{does[1:]}.")

    show = command("show", "show the applications of a store, or the tasks of one")
    show.add_argument("application", metavar="APP", nargs="?", help="an application (default: list them all)")
    show.set_defaults(run=_show)

    watch = command("top", "watch how far the applications of a store are, and what they wait for")
    watch.add_argument("application", metavar="APP", nargs="?", help="an application (default: all)")
    watch.add_argument(
        "--once", action="store_true", help="print it once; so it is anyway if the output is no terminal"
    )
    watch.set_defaults(run=_top)

    measure = command("metrics", "print metrics of all applications of a store, as OpenMetrics text")
    measure.set_defaults(run=_metrics)

    offer = command(
        "serve", "serve a page, metrics and look-ups of a store over HTTP; nothing of the store can be changed"
    )
    offer.add_argument("--host", default=HOST, help=f"the address to listen on (default: {HOST}, this machine only)")
    offer.add_argument(
        "--port", type=_port, default=PORT, help=f"the port to listen on; 0 takes a free one (default: {PORT})"
    )
    offer.add_argument(
        "--token",
        help=f"a secret that each visitor must know; the environment variable {TOKEN} keeps it out of lists of processes",
    )
    offer.add_argument("--no-token", action="store_true", help="let everybody look who can reach the address")
    offer.set_defaults(run=_serve)

    draw = command("graph", "show what feeds each task of an application, and draw it as a picture")
    draw.add_argument("application", metavar="APP", nargs="?", help="an application (default: the only one)")
    picture = draw.add_mutually_exclusive_group()
    picture.add_argument("--svg", metavar="FILE", help="write a picture that suits light and dark pages")
    picture.add_argument("--dot", metavar="FILE", help="write the graph in the language of Graphviz")
    draw.set_defaults(run=_graph)

    state = command("state", "show the state of a task at a clock")
    state.add_argument("application", metavar="APP")
    state.add_argument("task", metavar="TASK", nargs="?")
    state.add_argument(
        "--clock",
        metavar="CLOCK",
        help="microseconds UTC, ISO text, in UTC unless it has a zone, or the name of a kept clock (default: the newest clock)",
    )
    state.add_argument(
        "--format",
        choices=("table", "csv", "json"),
        default="table",
        help="json is one object per line (default: table)",
    )
    state.add_argument("--limit", metavar="N", type=_count, help="only the first N keys, in the order of the keys")
    state.add_argument(
        "--monoid",
        metavar="MODULE:NAME",
        action="append",
        default=[],
        help="your own monoid or Aggregator that the task was written with, or its class; its module is imported",
    )
    state.add_argument(
        "--present",
        action="store_true",
        help="show the values as outputs do: as a summary presents them, or an Aggregator that --monoid names",
    )
    state.set_defaults(run=_state)

    aside = command("late", "show the late and bad rows of a task, each with its reason")
    aside.add_argument("application", metavar="APP")
    aside.add_argument("task", metavar="TASK")
    aside.add_argument(
        "--limit", metavar="N", type=_count, help="only the first N rows, in the order in which they were kept"
    )
    aside.set_defaults(run=_late)

    keep = command("keep", "keep a clock by a name, until it is released")
    keep.add_argument("application", metavar="APP")
    keep.add_argument("--name", metavar="NAME", required=True, help="the name, which is that of one clock")
    keep.add_argument("--at", metavar="CLOCK", help="one of the kept clocks, or its name (default: the newest)")
    keep.set_defaults(run=_keep)

    release = command("release", "keep a clock no longer by its name")
    release.add_argument("application", metavar="APP")
    release.add_argument("--name", metavar="NAME", required=True, help="the name that the clock was given")
    release.set_defaults(run=_release)

    fork = command("branch", "make another application of one as it was at a kept clock")
    fork.add_argument("application", metavar="APP")
    fork.add_argument("new", metavar="NEW", help="the name of the new application")
    fork.add_argument("--at", metavar="CLOCK", help="one of the kept clocks, or its name (default: the newest)")
    fork.add_argument("--to", metavar="STORE", help="the store for the new application (default: the same)")
    fork.add_argument(
        "--to-storage-options", metavar="JSON|@FILE", default="{}", help="the options of the store of --to"
    )
    fork.set_defaults(run=_branch)

    copy = command("backup", "copy what is new at the newest clock to a store of backups")
    copy.add_argument("application", metavar="APP")
    copy.add_argument("--to", metavar="STORE", required=True, help="the store of backups")
    copy.add_argument(
        "--to-storage-options", metavar="JSON|@FILE", default="{}", help="the options of the store of --to"
    )
    copy.add_argument("--last", metavar="N", type=_count, default=7, help="how many clocks to keep there (default: 7)")
    copy.set_defaults(run=_backup)

    back = commands.add_parser(
        "rewind",
        help="take an application back to a kept clock, with its outputs",
        description="Take an application back to a kept clock, with its outputs. Its module is imported.",
    )
    back.add_argument(
        "application",
        metavar="MODULE:APP",
        help="a module or a .py file, and an Application in it or a function for one",
    )
    back.add_argument(
        "--to",
        metavar="TIME",
        required=True,
        help="a clock, or its name; of those that are kept, the newest at or below it is meant",
    )
    back.add_argument(
        "--outputs",
        metavar="[TASK/]NAME=retract|again",
        type=_action,
        action="append",
        default=[],
        help="what an output does with what it has above the clock: take it back, or leave it and get those clocks again",
    )
    back.add_argument("--dry-run", action="store_true", help="show the plan, and change nothing")
    back.add_argument("--yes", action="store_true", help="do not ask")
    back.add_argument("--json", action="store_true", help="print JSON, for programs; needs --yes or --dry-run")
    back.set_defaults(run=_rewind)

    run.add(commands)

    check = command("verify", "check every checksum and every reference of a store")
    check.add_argument("application", metavar="APP", nargs="?", help="an application (default: all)")
    check.set_defaults(run=_verify)

    examine = commands.add_parser(
        "doctor",
        parents=[options],
        help="check Java, Spark, Python, the extras, and a store",
        description="Check Java, Spark, Python and the extras on this machine, and a store: that it can be reached, that of "
        "several creators of a file one wins, and that its clock is right. What is written to the store is deleted.",
    )
    examine.add_argument("store", metavar="STORE", nargs="?", help="a store's folder or url (default: none is checked)")
    examine.add_argument("--local", action="store_true", help="leave out what only Spark needs, as run --local does")
    examine.set_defaults(run=_doctor)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def _action(text: str) -> tuple[str, str]:
    name, _, action = text.rpartition("=")
    if not name or action not in (RETRACT, AGAIN):
        raise argparse.ArgumentTypeError(f"{text!r} is not an output's name with ={RETRACT} or ={AGAIN}")
    return name, action


def _storage_options(given: str, name: str = "--storage-options") -> dict[str, Any]:
    if given.startswith("@"):
        with open(given[1:], encoding="utf-8") as file:
            given = file.read()
    try:
        options = json.loads(given)
    except (ValueError, RecursionError):
        options = None
    if not isinstance(options, dict):
        raise InvalidInputError(f'{name}=... is not a JSON object; write it as {{"key": "value"}}, or as @FILE.')
    return options


def _nothing_in(files: Files) -> InvalidInputError:
    return InvalidInputError(f"there is no application in store={files.url}; look at its address.")


def _show(arguments: argparse.Namespace) -> int:
    files = open_files(arguments.store, _storage_options(arguments.storage_options))
    if arguments.application is not None:
        one = summary(files, arguments.application)
        _print([to_json(one)] if arguments.json else application(one))
        return 0
    names = find_applications(files)
    if not names and not arguments.json:
        raise _nothing_in(files)
    statuses = top.StatusReader(files).look() if names else []
    every = [each.summary for each in statuses if each.summary is not None]
    if arguments.json:
        _print([to_json([top.as_json(each) for each in statuses])])
    elif every:
        _print(applications(every))
    return _print_errors(statuses)


def _top(arguments: argparse.Namespace) -> int:
    files = open_files(arguments.store, _storage_options(arguments.storage_options))
    reader = top.StatusReader(files, arguments.application)
    if sys.stdout.isatty() and not (arguments.once or arguments.json):
        console = live.terminal()
        with suppress(KeyboardInterrupt):
            live.watch(reader, console, seconds=time.monotonic, now_us=_now_us, wait=time.sleep)
        return 0
    statuses = reader.look()
    if arguments.json:
        every = [top.as_json(each) for each in statuses]
        _print([to_json(every if arguments.application is None else every[0])])
    else:
        _print(top.lines(statuses))
    return _print_errors(statuses)


def _print_errors(statuses: Iterable[top.ApplicationStatus]) -> int:
    """Print the errors of applications that can't be read, and return the exit status."""
    sys.stdout.flush()
    errors = [each.error for each in statuses if each.error]
    for error in errors:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    return 2 if errors else 0


def _now_us() -> int:
    return time.time_ns() // 1000  # noqa: TID251 - people look at this, on no machine of a world that is played


def _metrics(arguments: argparse.Namespace) -> int:
    files = open_files(arguments.store, _storage_options(arguments.storage_options))
    samples, errors = of_store(files)
    if not samples and not arguments.json:
        raise _nothing_in(files)
    for error in errors:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
    values = [{"name": each.of.in_queries, "labels": each.by_name, "value": each.value} for each in samples]
    print(to_json(values) if arguments.json else as_text(samples), end="\n" if arguments.json else "")
    return 0


def _serve(arguments: argparse.Namespace) -> int:
    token = os.environ.get(TOKEN) if arguments.token is None else arguments.token
    check(arguments.host, token, arguments.no_token)
    store = open_store(arguments.store, storage_options=_storage_options(arguments.storage_options))
    # One that is empty may be filled later.
    if isinstance(store.files, LocalFiles) and not os.path.isdir(store.files.url):
        raise _nothing_in(store.files)

    def print_url(url: str) -> None:
        _print([to_json({"url": url})] if arguments.json else [f"serving {shown(store.files.url)} at {url}"])
        sys.stdout.flush()

    serve(store, arguments.host, arguments.port, token, print_url)
    return 0


def _graph(arguments: argparse.Namespace) -> int:
    files = open_files(arguments.store, _storage_options(arguments.storage_options))
    name = arguments.application
    if name is None:
        known = find_applications(files)
        if not known:
            raise _nothing_in(files)
        if len(known) > 1:
            raise InvalidInputError(f"store={files.url} has the applications {', '.join(known)}; name one.")
        (name,) = known
    picture = graph.graph(summary(files, name))
    for file, lines in ((arguments.svg, graph.as_svg), (arguments.dot, graph.as_dot)):
        if file is not None:
            with open(file, "w", encoding="utf-8") as drawing:
                drawing.writelines(f"{line}\n" for line in lines(picture))
    _print([to_json(picture)] if arguments.json else graph.as_text(picture))
    return 0


def _state(arguments: argparse.Namespace) -> int:
    if arguments.task is None:
        tasks = ", ".join(_opened(arguments).tasks())
        raise InvalidInputError(f"TASK is missing; application {arguments.application} has {tasks}.")
    files = open_files(arguments.store, _storage_options(arguments.storage_options))
    clock = None if arguments.clock is None else clock_named(Log(files, arguments.application), arguments.clock)
    with _progress() as show_progress, _prints_aside():
        monoids = [_monoid(name) for name in arguments.monoid]
        state = find_state(files, arguments.application, arguments.task, clock, monoids, arguments.present)
        show_progress(f"reading {sum(run.rows for run in state.runs):,} rows of {len(state.runs):,} runs")
        table = state.read()
    keys = table.num_rows
    if state.key_columns:
        table = table.sort_by([(name, "ascending") for name in state.key_columns])
    table = table.slice(0, arguments.limit)
    if arguments.json or arguments.format == "json":
        names = table.column_names
        _print(to_json(dict(zip(names, map(plain, row), strict=True))) for row in _rows(table))
        return 0
    # A struct's fields are columns of their own; one that is null has null fields.
    while any(pa.types.is_struct(field.type) for field in table.schema):
        table = table.flatten()
    if arguments.format == "csv":
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(table.column_names)
        writer.writerows([formatting.cell(value) for value in row] for row in _rows(table))
    else:
        columns = state.layout.kind.window_columns
        # Those of the parts of an ordered task have a moment, and no window.
        of = formatting.OPEN_WINDOW if len(columns) > 1 else "row" if columns else "key"
        _print(formatting.state(table, list(_rows(table)), keys, state.clock, of))
    return 0


def _late(arguments: argparse.Namespace) -> int:
    tables = _opened(arguments).late_rows(arguments.task)
    rows = list(islice(late.rows_of(tables), arguments.limit))
    if arguments.json:
        _print(to_json({name: plain(value) for name, value in row.items()}) for row in rows)
    else:
        _print(late.lines(rows, sum(each.num_rows for each in tables)))
    return 0


def _rows(table: pa.Table) -> Iterator[tuple[pa.Scalar, ...]]:
    return zip(*table.columns, strict=True)


def _monoid(name: str) -> Monoid[Any] | Aggregator[Any, Any, Any]:
    """Import the monoid or the Aggregator that the user names: an instance, or a class that takes no arguments."""
    module, _, attribute = name.partition(":")
    try:
        # Let the working folder's modules be imported, as `python -m` does.
        sys.path.insert(0, os.getcwd())
        monoid = getattr(importlib.import_module(module), attribute)
        monoid = monoid() if isinstance(monoid, type) else monoid
    except Exception as error:
        raise InvalidInputError(
            f"monoid={name}: {error!r}; name it as module:name, of an instance or a class."
        ) from error
    finally:
        sys.path.remove(os.getcwd())
    if not isinstance(monoid, (Monoid, Aggregator)):
        raise InvalidInputError(
            f"monoid={name} is {monoid!r}; name an instance of Monoid, or its class, or an Aggregator."
        )
    return monoid


def _opened(arguments: argparse.Namespace) -> OpenApplication:
    options = _storage_options(arguments.storage_options)
    return open_store(arguments.store, storage_options=options).application(arguments.application)


def _keep(arguments: argparse.Namespace) -> int:
    clock = _opened(arguments).keep(arguments.name, arguments.at)
    _print_named(arguments, clock, "is kept as")
    return 0


def _release(arguments: argparse.Namespace) -> int:
    clock = _opened(arguments).release(arguments.name)
    _print_named(arguments, clock, "is no longer kept as")
    return 0


def _print_named(arguments: argparse.Namespace, clock: int, what: str) -> None:
    named = {"application": arguments.application, "clock": clock, "name": arguments.name}
    _print([to_json(named) if arguments.json else f"clock={full_clock(clock)} {what} {arguments.name!r}"])


def _branch(arguments: argparse.Namespace) -> int:
    with _progress() as show_progress:
        clock = _opened(arguments).branch(
            arguments.new,
            arguments.at,
            to=arguments.to,
            on_progress=lambda done, all: show_progress(f"{size(done)} of {size(all)}"),
            to_storage_options=_storage_options(arguments.to_storage_options, "--to-storage-options"),
        )
    store = arguments.store if arguments.to is None else arguments.to
    made = {"application": arguments.application, "clock": clock, "new": arguments.new, "store": store}
    text = (
        f"application={arguments.new} is a branch of application={arguments.application} at clock={full_clock(clock)}"
    )
    _print([to_json(made) if arguments.json else text])
    return 0


def _backup(arguments: argparse.Namespace) -> int:
    copied = 0
    with _progress() as show_progress:

        def on_progress(done: int, all: int) -> None:
            nonlocal copied
            copied = done
            show_progress(f"{size(done)} of {size(all)}")

        clock = _opened(arguments).backup(
            arguments.to,
            arguments.last,
            on_progress=on_progress,
            to_storage_options=_storage_options(arguments.to_storage_options, "--to-storage-options"),
        )
    made = {"application": arguments.application, "clock": clock, "store": arguments.to, "bytes": copied}
    text = f"application={arguments.application} is backed up at clock={full_clock(clock)}; {size(copied)} were new"
    _print([to_json(made) if arguments.json else text])
    return 0


def _rewind(arguments: argparse.Namespace) -> int:
    asks = not (arguments.yes or arguments.dry_run)
    if arguments.json and asks:
        raise InvalidInputError("no question is asked with --json; add --yes, or --dry-run to see the plan.")
    with _prints_aside() if arguments.json else nullcontext():
        app = load_application(arguments.application)
        plan = app.plan_rewind(arguments.to, outputs=dict(arguments.outputs))
    refused = refusals(plan, "--outputs '{}=again'")
    is_last = arguments.dry_run or bool(refused)
    if is_last or not arguments.json:
        _print([to_json(asdict(plan)) if arguments.json else repr(plan)])
        sys.stdout.flush()
    if refused:
        raise InvalidInputError(" ".join(refused))
    if is_last:
        return 0
    if asks and not _agrees():
        print("nothing was changed")
        return 1
    with _prints_aside() if arguments.json else nullcontext():
        done = app.rewind(plan)
    _print([to_json(asdict(done))] if arguments.json else made(done))
    return 0


def _agrees() -> bool:
    """Ask at the terminal.

    Raises:
        InvalidInputError: There is no application.
    """
    if not sys.stdin.isatty():
        raise InvalidInputError("no terminal is there to ask at, and nothing was changed; add --yes.")
    print("\nGo back? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _verify(arguments: argparse.Namespace) -> int:
    options = _storage_options(arguments.storage_options)
    count = 0

    def on_file(path: str) -> None:
        nonlocal count
        count += 1
        show_progress(f"{count:,} files, {path}")

    with _progress() as show_progress:
        result = verify(
            arguments.store,
            arguments.application,
            on_file=on_file,
            storage_options=options,
        )
    if not result.applications:
        raise _nothing_in(open_files(arguments.store, options))
    _print([to_json(asdict(result))] if arguments.json else verified(result))
    return 1 if result.problems else 0


def _doctor(arguments: argparse.Namespace) -> int:
    found = []
    options = _storage_options(arguments.storage_options)
    if options and arguments.store is None:
        raise InvalidInputError("no store is named for --storage-options; name it, or leave them out.")
    for each in all_checks(arguments.store, options, lambda: _now_us() / 1e6, with_spark=not arguments.local):
        found.append(each)
        if not arguments.json:
            print(each.line(), flush=True)
    if arguments.json:
        print(to_json([asdict(each) for each in found]))
    return 1 if any(each.status == FAIL for each in found) else 0


@contextmanager
def _prints_aside() -> Iterator[None]:
    """Send to stderr what the user's code prints, so that nothing stands between the results of a command."""
    sys.stdout.flush()
    with redirect_stdout(sys.stderr):
        yield


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show on a terminal, and only there, what the command is doing."""
    is_shown = sys.stderr.isatty()

    def show(text: str) -> None:
        if is_shown:
            print(f"\r\x1b[K{text[: width()]}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        show("")


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
