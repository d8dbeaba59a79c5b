"""The sink that is a Delta Lake table: the values at a clock and the clock are one transaction of it.

The table records numbers that only grow, by name, each with the rows that it is committed with:

    <application>/<task>               the last clock of timeline 0
    <application>/<task>@<timeline>    the last clock of a later timeline
    <application>/<task> timeline      the timeline, once it is not 0

Every commit names the first of them, also where it stays as it is. Two commits that name one and saw the same version of the
table exclude each other. So a writer of a timeline that has ended can't commit beside a rewind or after it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable, Iterator, Mapping
from contextlib import AbstractContextManager
from itertools import chain, islice
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from persistent_state.errors import InvalidInputError, StoreUnavailableError, missing_package, translating
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.redact import shown, without_secrets
from persistent_state.sinks.base import (
    CLOCK,
    Origin,
    RecordingSink,
    check_timeline,
    folder_record,
    known_clock,
)
from persistent_state.sinks.values import Values
from persistent_state.windows import TIME

if TYPE_CHECKING:
    import deltalake

OWNER = "persistent-state.task"
"""The property of a table that names its owner, `<application>/<task>`. The table records its last clock under that name."""


class DeltaSink(RecordingSink):
    """A Delta Lake table to which each clock adds its values: the key columns, `clock` (a timestamp) and `value`.

    The table is created if it is missing. A table of your own, such as one with partitions, must have just these columns. A
    table belongs to one task: from the first start on, its property `persistent-state.task` names the task. A rewind deletes
    the rows above its clock in one commit.

    Args:
        url: A local path, or a URL that the package deltalake takes, such as "s3://bucket/table".
        storage_options: What deltalake needs to open the table. They appear in no message.

    Raises:
        InvalidInputError: The URL or an option is wrong.

    Example:
        >>> DeltaSink("s3://bucket/table", storage_options={"AWS_REGION": "eu-west-1"})
        DeltaSink('s3://bucket/table')
    """

    def __init__(self, url: str | os.PathLike[str], *, storage_options: Mapping[str, str] | None = None) -> None:
        url = os.fspath(url)
        # With these characters deltalake reads another place than it writes, or panics.
        if not url or set(url) & set(r"%[]\^|"):
            raise InvalidInputError(
                f"url={shown(url)!r} can't be a Delta table's; give one without any of % [ ] \\ ^ |."
            )
        if "://" not in url:
            url = os.path.abspath(os.path.expanduser(url))
        elif re.search("[?#]|//[^/]*:.*@", url):
            raise InvalidInputError(f"url={shown(url)!r} has more than a place; give the rest as storage_options.")
        self.url = url
        self._options = dict(storage_options or {})
        if wrong := [name for name, value in self._options.items() if not isinstance(value, str)]:
            raise InvalidInputError(f"storage options {wrong} of url={url!r} are not text; write them as strings.")
        self._origin: Origin | None = None

    def __repr__(self) -> str:
        return f"DeltaSink({self.url!r})"

    @property
    def name(self) -> str:
        return f"delta:{self.url}"

    def records(self, task: str) -> frozenset[Hashable]:
        return frozenset({folder_record(self.url, self._options)})

    def open(self, origin: Origin) -> int | None:
        try:
            from deltalake import CommitProperties, DeltaTable
        except ImportError:
            raise missing_package("deltalake", self.name, "delta") from None
        _check_columns(origin)
        mark = {OWNER: _owner(origin)}
        with self._asking():
            table = DeltaTable.create(
                self.url,
                origin.schema,
                mode="ignore",
                configuration=mark,
                storage_options=self._options,
                # A retry could meet a table that another start has created meanwhile.
                commit_properties=CommitProperties(max_commit_retries=0),
                raise_if_key_not_exists=False,
            )
            origin = self._origin = origin.with_whole(_whole(table))
            if OWNER not in table.metadata().configuration:
                self._check_table(table, origin)
                table.alter.set_table_properties(mark, raise_if_not_exists=False)
            return known_clock(self._last(origin)[1])

    def write_values(self, values: Values, clock: int) -> None:
        from deltalake import write_deltalake
        from deltalake.exceptions import CommitFailedError

        origin = self._origin
        assert origin is not None, "open comes first"
        with self._asking():
            table, last = self._last(origin)
        if clock <= last:
            return
        batches = values.batches()
        # Begin to read in this thread, as Spark's job needs the thread's settings. deltalake reads on in threads of its own.
        first = list(islice(batches, 1))
        failed: list[Exception] = []

        def cast() -> Iterator[pa.RecordBatch]:
            try:
                yield from (batch.cast(origin.schema) for batch in chain(first, batches))
            except Exception as error:
                failed.append(error)
                raise

        rows = pa.RecordBatchReader.from_batches(origin.schema, cast())
        commit = self._commit(table, origin, clock)
        with self._asking():
            try:
                # If several writers of one owner saw the same version of the table, deltalake lets only one commit.
                write_deltalake(table, rows, mode="append", commit_properties=commit)
            except Exception as error:
                if failed:
                    raise failed[0] from None
                if not isinstance(error, CommitFailedError) or self._last(origin)[1] < clock:
                    raise

    def rewind(self, clock: int, values: Values) -> None:
        from deltalake import write_deltalake

        origin = self._origin
        assert origin is not None, "open comes first"
        with self._asking():
            before, _ = self._last(origin)
            table, last = self._last(origin)
            if _timeline(table, origin) == origin.timeline:
                return
            commit = self._commit(table, origin, min(last, clock))
            table.delete(_above(origin, clock), commit_properties=commit)
            if _timeline(self._last(origin)[0], origin) != origin.timeline:
                # Nothing is above the clock, and nothing was committed. This fails if a writer has come meanwhile.
                write_deltalake(before, origin.schema.empty_table(), mode="append", commit_properties=commit)

    def rows_above(self, clock: int, origin: Origin) -> int | None:
        from deltalake import DeltaTable

        _check_columns(origin)
        with self._asking():
            if not DeltaTable.is_deltatable(self.url, self._options):
                return 0
            table = self._checked(origin)
            # This brings pandas, which takes half a second.
            import pyarrow.dataset as ds

            kind, at = pa.int64() if CLOCK in _whole(table) else TIME, ds.field(CLOCK)
            above = at.is_valid() if clock == BEGINNING else at > pa.scalar(clock, pa.int64()).cast(kind)
            return int(table.to_pyarrow_dataset().count_rows(filter=above))

    def last_clock(self, origin: Origin) -> int | None:
        from deltalake import DeltaTable

        with self._asking():
            if not DeltaTable.is_deltatable(self.url, self._options):
                return BEGINNING
            table = self._checked(origin)
            check_timeline(self.name, timeline := _timeline(table, origin), origin)
            last = table.transaction_version(_owner_in(origin, timeline))
        return BEGINNING if last is None else last

    def _checked(self, origin: Origin) -> deltalake.DeltaTable:
        """Return the table as it is now. Check its columns and its owner, if it has one."""
        from deltalake import DeltaTable

        table = DeltaTable(self.url, storage_options=self._options)
        self._check_table(table, origin.with_whole(_whole(table)))
        if OWNER in table.metadata().configuration:
            self._check_owner(table, origin)
        return table

    def _commit(self, table: deltalake.DeltaTable, origin: Origin, clock: int) -> deltalake.CommitProperties:
        """Return what a commit records: the clock in the timeline of the origin."""
        from deltalake import CommitProperties, Transaction

        owner, timeline = _owner(origin), origin.timeline
        if timeline == 0:
            return CommitProperties(app_transactions=[Transaction(owner, clock)])
        first = table.transaction_version(owner)
        numbers = {
            owner: BEGINNING if first is None else first,
            _owner_in(origin, timeline): clock,
            f"{owner} timeline": timeline,
        }
        return CommitProperties(app_transactions=[Transaction(name, number) for name, number in numbers.items()])

    def _last(self, origin: Origin) -> tuple[deltalake.DeltaTable, int]:
        """Return the table as it is now, and the last clock in it."""
        from deltalake import DeltaTable

        table = DeltaTable(self.url, storage_options=self._options)
        self._check_table(table, origin)
        self._check_owner(table, origin)
        check_timeline(self.name, timeline := _timeline(table, origin), origin)
        last = table.transaction_version(_owner_in(origin, timeline))
        return table, BEGINNING if last is None else last

    def _check_table(self, table: deltalake.DeltaTable, origin: Origin) -> None:
        columns, wanted = pa.schema(table.schema()), origin.schema
        if sorted(columns.names) != sorted(wanted.names) or any(columns.field(f.name).type != f.type for f in wanted):
            raise InvalidInputError(
                f"{self.name} has columns={_types(columns)}, not {_types(wanted)}; change it, or name another table."
            )

    def _check_owner(self, table: deltalake.DeltaTable, origin: Origin) -> None:
        owner = table.metadata().configuration.get(OWNER)
        if owner != _owner(origin):
            raise InvalidInputError(f"{self.name} is of task={owner!r}, not {_owner(origin)!r}; name another table.")

    def _asking(self) -> AbstractContextManager[None]:
        from deltalake.exceptions import DeltaError

        return translating((DeltaError, OSError), self._as_ours)

    def _as_ours(self, error: Exception) -> StoreUnavailableError:
        # Some errors are trees of coloured lines.
        what = re.sub(r"( ?(\x1b\[\d*m|↳))+", "", without_secrets(error, self._options))
        return StoreUnavailableError(f"{self.name}: {what}. Put it right, then try again.")


def _owner(origin: Origin) -> str:
    return f"{origin.application}/{origin.task}"


def _owner_in(origin: Origin, timeline: int) -> str:
    """Return the name by which the last clock of a timeline is recorded."""
    return f"{_owner(origin)}@{timeline}" if timeline else _owner(origin)


def _timeline(table: deltalake.DeltaTable, origin: Origin) -> int:
    """Return the timeline that is recorded."""
    return table.transaction_version(f"{_owner(origin)} timeline") or 0


def _above(origin: Origin, clock: int) -> str:
    """Return the condition for rows above a clock, as Delta takes it."""
    if clock == BEGINNING:
        # No timestamp stands for it.
        return f"{CLOCK} IS NOT NULL"
    is_whole = origin.schema.field(CLOCK).type == pa.int64()
    value = str(clock) if is_whole else f"arrow_cast({clock}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
    return f"{CLOCK} > {value}"


def _whole(table: deltalake.DeltaTable) -> set[str]:
    """Return the columns of a table that hold whole numbers."""
    return {field.name for field in pa.schema(table.schema()) if field.type == pa.int64()}


def _types(schema: pa.Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema}


def _check_columns(origin: Origin) -> None:
    """Refuse columns that a Delta table would return with another type."""
    from deltalake import Schema

    refusal = f"task={origin.task}: a Delta table can't hold columns={_types(origin.schema)}"
    if len({name.lower() for name in origin.schema.names}) < len(origin.schema):
        raise InvalidInputError(f"{refusal}, of which some differ only in case; rename the key's.")
    try:
        pq.write_table(origin.schema.empty_table(), pa.MockOutputStream())
        returned = pa.schema(Schema.from_arrow(origin.schema))
    except Exception as error:  # deltalake raises `Exception` itself
        # The lines below the first are a stack.
        why = str(error).splitlines()[0].rstrip(".")
        raise InvalidInputError(f"{refusal}: {why}; use another sink.") from None
    if returned.types != origin.schema.types:
        raise InvalidInputError(f"{refusal}, only {_types(returned)}; use another sink.")
