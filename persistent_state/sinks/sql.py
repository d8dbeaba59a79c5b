"""The sink that is a table of a SQL database: values and clock change in one transaction."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from persistent_state.errors import (
    InvalidInputError,
    StateError,
    StoreUnavailableError,
    check_path,
    missing_package,
    translating,
)
from persistent_state.event_time.clocks import BEGINNING
from persistent_state.formatting import plain, show_clock, to_json
from persistent_state.redact import shown, without_secrets
from persistent_state.sinks.base import (
    CLOCK,
    VALUE,
    Origin,
    RecordingSink,
    ValuesThen,
    arrow_batches,
    check_timeline,
    known_clock,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from sqlalchemy import Column, ColumnElement, Connection, Engine, Row, Table
    from sqlalchemy.engine.interfaces import ReflectedColumn
    from sqlalchemy.engine.reflection import Inspector
    from sqlalchemy.types import TypeEngine

    Rows = list[dict[str, Any]]

CLOCKS = "persistent_state_clocks"
"""The table that records, for each table of values, its task, and the timeline and the last clock that were written to it."""

TIMELINE = "timeline"
"""Its column that tables of older versions do not have."""

_PATIENCE: dict[str, dict[str, Any]] = {
    "sqlite": {"timeout": 60},
    "postgresql": {"connect_timeout": 60, "options": "-c lock_timeout=60s"},
}
"""The options by which a writer waits for another one. In SQLite that may be the writer of another table."""

_PORTS = {"postgresql": "5432"}

_AWAY = ("locked", "busy", "unable to open", "disk I/O error", "disk is full", "readonly")
"""Words in errors of SQLite after which trying again may help. SQLite has one class for nearly all its errors."""


@dataclass(frozen=True)
class SqlSink(RecordingSink):
    """A table with the newest value of each key, or with `history` the values of each key at every clock.

    The table is created if it is missing: the key columns, `clock` (a timestamp) and `value`. A table of your own may have
    other columns too, and types and indexes that suit you. A clock is written as a whole or not at all, and once, whoever
    writes it. A rewind is one transaction: rows above its clock leave a table with `history`; without it, keys that changed
    since then get their values of then, and keys that were not there are deleted.

    Every value is kept exactly, but for NaN in SQLite, which makes it null. SQLite has no decimals and no time zones: decimals
    are text there, and times are in UTC. Lists, structs and maps are JSON. Keys are neither floats nor nested.

    Args:
        url: A URL of SQLAlchemy, such as "postgresql://user:password@host/database", or the path of a SQLite file.
        table: The table's name.
        history: Keep the values at every clock.

    Raises:
        InvalidInputError: The table is the one that records clocks.

    Example:
        >>> SqlSink("postgresql://ann:secret@host/bank", "balances")
        SqlSink('postgresql://host/bank', 'balances', history=False)
    """

    url: str
    table: str
    history: bool = field(default=False, kw_only=True)
    _whole: frozenset[str] = field(default=frozenset(), init=False, repr=False, compare=False)
    _origin: Origin | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", os.fspath(self.url))
        check_path("url", self.url)
        if "://" not in self.url:
            object.__setattr__(self, "url", os.path.abspath(os.path.expanduser(self.url)))
        if self.table.lower() == CLOCKS:
            raise InvalidInputError(f"table={self.table!r} is where clocks are recorded; name another.")

    def __repr__(self) -> str:
        return f"SqlSink({self._place!r}, {self.table!r}, history={self.history})"

    @property
    def name(self) -> str:
        return f"sql {self._place} {self.table}"

    def records(self, task: str) -> frozenset[Hashable]:
        dialect, is_url, rest = self.url.partition("://")
        kind = dialect.partition("+")[0]
        if not is_url or kind == "sqlite":
            path = rest.partition("?")[0].removeprefix("/") if is_url else self.url
            return frozenset({("sqlite", os.path.realpath(path), self.table.lower())})
        match = re.fullmatch(r"(?:([^/:@]*)(?::.*)?@)?([^/:@?]*)(?::(\d+))?([/?].*)?", rest)
        # The user is part of the record's name: another user may have a schema of its own that comes first.
        user, host, port, database = match.groups() if match else (rest, "", "", "")
        return frozenset({(kind, user, host.lower(), port or _PORTS.get(kind), database, self.table)})

    @property
    def _place(self) -> str:
        return shown(self.url)

    def open(self, origin: Origin) -> int | None:
        self._check_unique(origin)
        engine = self._engine()
        object.__setattr__(self, "_origin", origin)
        from sqlalchemy.exc import DBAPIError

        with self._asking():
            try:
                return known_clock(self._prepare(engine, origin))
            except DBAPIError as error:
                if self._is_away(error):
                    raise
                # Another start may have created the tables a moment before, so try once more.
                return known_clock(self._prepare(engine, origin))

    def write(self, values: DataFrame, clock: int) -> None:
        engine = self._engine()
        with self._asking(), engine.begin() as connection:
            if self._record(connection, clock):
                for batch in arrow_batches(values):
                    if batch.num_rows:
                        self._put(connection, self._with_whole(batch))

    def rewind(self, clock: int, values: ValuesThen) -> None:
        engine = self._engine()
        with self._asking(), engine.begin() as connection:
            if self._record_back(connection, clock) and self._count_above(connection, clock):
                if not self.history:
                    for batch in values():
                        if batch.num_rows:
                            self._put_back(connection, self._with_whole(batch), clock)
                self._delete_above(connection, clock)

    def rows_above(self, clock: int, origin: Origin) -> int | None:
        self._check_unique(origin)
        engine = self._engine()
        if _is_missing_file(engine):
            # To connect to it would make it.
            return 0
        with self._asking(), engine.begin() as connection:
            return self._count_above(connection, clock) if self._is_recorded(connection, origin) else 0

    def _engine(self) -> Engine:
        """Make an engine whose connections live for one transaction, because a connection that is kept could be dead later."""
        try:
            from sqlalchemy import URL, create_engine, make_url
            from sqlalchemy.exc import ArgumentError
            from sqlalchemy.pool import NullPool
        except ImportError:
            raise missing_package("sqlalchemy", self.name, "sql") from None
        # Not chained: what SQLAlchemy says of a url may show its password.
        try:
            url = make_url(self.url) if "://" in self.url else URL.create("sqlite", database=self.url)
            if "@" in (url.host or ""):
                raise ValueError("a part of the password would be read as the host, and shown")
            if url.drivername == "postgresql":
                url = url.set(drivername="postgresql+psycopg")
            backend = url.get_backend_name()
            patience = {name: value for name, value in _PATIENCE.get(backend, {}).items() if name not in url.query}
            engine = create_engine(url, poolclass=NullPool, json_serializer=to_json, connect_args=patience)
        except ImportError as error:
            if error.name == "psycopg":
                raise missing_package("psycopg", self.name, "postgresql") from None
            raise InvalidInputError(
                f"package={error.name!r} is missing for {self.name}; pip install the driver that your url names."
            ) from None
        except (ArgumentError, TypeError, ValueError):
            raise InvalidInputError(
                f"url={self._place!r} is not one of SQLAlchemy; say postgresql://user:password@host/database, or the like,"
                " with %40 for an @ in the password, or the path of a SQLite file."
            ) from None
        if backend == "sqlite" and url.database in (None, "", ":memory:"):
            raise InvalidInputError(f"url={self._place!r} is in memory and ends with its connection; name a file.")
        return engine

    def _check_unique(self, origin: Origin) -> None:
        if not (origin.is_unique or self.history):
            raise InvalidInputError(
                f"task={origin.task}: {self.name} keeps the newest row of each key, and emitted rows of one key stay apart; "
                "say history=True."
            )

    def _is_recorded(self, connection: Connection, origin: Origin) -> bool:
        """Return whether there is a record of the table. Check both as `open` does, and change nothing.

        Without a record, no rewind takes anything back: the table is another's, or is new.
        """
        from sqlalchemy import inspect, select

        clocks, inspector = _clocks(), inspect(connection)
        columns_there = self._columns_there(inspector)
        if columns_there is not None:
            self._check_columns(
                columns_there, _columns(origin.with_whole(_whole(columns_there)), connection.dialect.name)
            )
        if not inspector.has_table(CLOCKS):
            return False
        # Tables of older versions have no timeline.
        columns = [clocks.c[name] for name in ("application", "task", "history", "clock")]
        record = connection.execute(select(*columns).where(self._is_ours(clocks))).one_or_none()
        if record is not None:
            self._check_record(record, origin, columns_there is not None)
        return record is not None

    def _columns_there(self, inspector: Inspector) -> list[ReflectedColumn] | None:
        """Return the columns that the table has; None if there is none."""
        return inspector.get_columns(self.table) if inspector.has_table(self.table) else None

    def _prepare(self, engine: Engine, origin: Origin) -> int:
        """Check the table and its record, or make them."""
        from sqlalchemy import MetaData, Table, UniqueConstraint, insert, inspect, select, text

        clocks, columns = _clocks(), _columns(origin, engine.dialect.name)
        with engine.begin() as connection:
            if engine.dialect.name == "sqlite":
                # SQLite's driver begins a transaction before it changes rows, but not before it creates tables.
                connection.exec_driver_sql("BEGIN IMMEDIATE")
            columns_there = self._columns_there(inspect(connection))
            if columns_there is not None:
                whole = _whole(columns_there)
                columns = _columns(origin.with_whole(whole), engine.dialect.name)
                self._check_columns(columns_there, columns)
                object.__setattr__(self, "_whole", frozenset(whole.intersection(origin.times)))
            clocks.create(connection, checkfirst=True)
            if TIMELINE not in {column["name"] for column in inspect(connection).get_columns(CLOCKS)}:
                # It is of an older version, for which there was one timeline.
                connection.execute(text(f"ALTER TABLE {CLOCKS} ADD COLUMN {TIMELINE} BIGINT DEFAULT 0 NOT NULL"))
            record = connection.execute(select(clocks).where(self._is_ours(clocks))).one_or_none()
            if record is not None:
                self._check_record(record, origin, columns_there is not None)
                check_timeline(self.name, record.timeline, origin)
            if columns_there is None:
                unique = [CLOCK, *origin.key_columns] if self.history else origin.key_columns
                constraints = [UniqueConstraint(*unique)] if origin.is_unique else []
                Table(self.table, MetaData(), *columns, *constraints).create(connection)
            if record is not None:
                return int(record.clock)
            whose = {"application": origin.application, "task": origin.task, "history": self.history}
            connection.execute(
                insert(clocks).values(table_name=self.table, clock=BEGINNING, timeline=origin.timeline, **whose)
            )
            return BEGINNING

    def _check_columns(self, columns_there: Sequence[ReflectedColumn], columns: Sequence[Column[Any]]) -> None:
        types = {column["name"]: column["type"] for column in columns_there}
        for column in columns:
            if column.name not in types:
                raise InvalidInputError(f"{self.name} has no column={column.name!r}; add it, or name another table.")
            if _kind(types[column.name]) != _kind(column.type):
                raise InvalidInputError(
                    f"column={column.name!r} of {self.name} is {types[column.name]!r} and should be {column.type!r};"
                    " change it, or name another table."
                )

    def _check_record(self, record: Row[Any], origin: Origin, exists: bool) -> None:
        if (record.application, record.task) != (origin.application, origin.task):
            raise InvalidInputError(
                f"{self.name} has the values of task={record.task} of application={record.application}; name another table."
            )
        if record.history != self.history:
            raise InvalidInputError(
                f"{self.name} was made with history={record.history}; say so, or name another table."
            )
        if not exists and record.clock != BEGINNING:
            raise InvalidInputError(
                f"{self.name} is gone, with the values up to clock={show_clock(record.clock)}; restore it, or delete its row of"
                f" {CLOCKS} to go on without them."
            )

    def _record(self, connection: Connection, clock: int) -> bool:
        """Record the clock and return True, or return False if this clock or a later one is recorded.

        From now on other writers of the table wait for this transaction.
        """
        from sqlalchemy import update

        clocks, timeline = _clocks(), self._timeline
        is_due = self._is_ours(clocks), clocks.c.timeline <= timeline, clocks.c.clock < clock
        if connection.execute(update(clocks).where(*is_due).values(clock=clock, timeline=timeline)).rowcount:
            return True
        self._check_ours(connection)
        return False

    def _record_back(self, connection: Connection, clock: int) -> bool:
        """Record the timeline, and no clock above this one, and return True; or return False if the timeline is recorded.

        From now on other writers of the table wait for this transaction.
        """
        from sqlalchemy import case, update

        clocks, timeline = _clocks(), self._timeline
        is_due = self._is_ours(clocks), clocks.c.timeline < timeline
        last = case((clocks.c.clock < clock, clocks.c.clock), else_=clock)
        if connection.execute(update(clocks).where(*is_due).values(clock=last, timeline=timeline)).rowcount:
            return True
        self._check_ours(connection)
        return False

    def _check_ours(self, connection: Connection) -> None:
        """Refuse to write without a record, or in a timeline that has ended."""
        from sqlalchemy import select

        clocks = _clocks()
        record = connection.execute(select(clocks).where(self._is_ours(clocks))).one_or_none()
        if record is None:
            raise InvalidInputError(f"{self.name} has lost its row of {CLOCKS}; start the application again.")
        if self._origin is not None:
            check_timeline(self.name, record.timeline, self._origin)

    @property
    def _timeline(self) -> int:
        return 0 if self._origin is None else self._origin.timeline

    def _count_above(self, connection: Connection, clock: int) -> int:
        """Return how many rows are above a clock; 0 without a table."""
        from sqlalchemy import func, inspect, select, table

        if not inspect(connection).has_table(self.table):
            return 0
        count = select(func.count()).select_from(table(self.table)).where(self._is_above(connection, clock))
        return int(connection.execute(count).scalar_one())

    def _delete_above(self, connection: Connection, clock: int) -> None:
        from sqlalchemy import delete, table

        connection.execute(delete(table(self.table)).where(self._is_above(connection, clock)))

    def _is_above(self, connection: Connection, clock: int) -> ColumnElement[bool]:
        """Return the condition for rows above a clock."""
        from sqlalchemy import column, inspect, literal

        if clock == BEGINNING:
            # No timestamp stands for it.
            return column(CLOCK).is_not(None)
        kinds = {each["name"]: each["type"] for each in inspect(connection).get_columns(self.table)}
        is_whole, dialect = _kind(kinds[CLOCK])[0] is int, connection.dialect.name
        arrow = pa.int64() if is_whole else pa.timestamp("us", "UTC")
        (row,) = self._rows(pa.record_batch([pa.array([clock]).cast(arrow)], [CLOCK]), dialect)
        kind = _sql_type(arrow, dialect)
        return column(CLOCK, kind) > literal(row[CLOCK], kind)

    def _put_back(self, connection: Connection, batch: pa.RecordBatch, clock: int) -> None:
        """Give keys that changed since a clock their values of then."""
        from sqlalchemy import bindparam, column, table, update

        dialect = connection.dialect.name
        columns = {item.name: column(item.name, _sql_type(item.type, dialect)) for item in batch.schema}
        # A parameter that is named as a column is one that SQLAlchemy sets.
        given = {name: bindparam(f"_{place}", type_=each.type) for place, (name, each) in enumerate(columns.items())}
        keys = self._keys(columns)
        new = {name: given[name] for name in columns if name not in keys}
        place, above = table(self.table, *columns.values()), self._is_above(connection, clock)
        for nulls, rows in _by_nulls(keys, self._rows(batch, dialect)).items():
            same = [
                columns[key].is_(None) if null else columns[key] == given[key]
                for key, null in zip(keys, nulls, strict=True)
            ]
            some = [{given[name].key: value for name, value in row.items()} for row in rows]
            connection.execute(update(place).where(*same, above).values(new), some)

    def _keys(self, columns: Iterable[str]) -> list[str]:
        """Return the columns by which rows are told apart."""
        known = None if self._origin is None else self._origin.key_columns
        return [name for name in columns if (name in known if known is not None else name not in (CLOCK, VALUE))]

    def _with_whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with int64 for the times that the table has as whole numbers."""
        for name in self._whole:
            batch = batch.set_column(batch.schema.get_field_index(name), name, batch[name].cast(pa.int64()))
        return batch

    def _put(self, connection: Connection, batch: pa.RecordBatch) -> None:
        """Write rows. Without `history` they replace the rows of the same keys."""
        from sqlalchemy import bindparam, column, delete, insert, table

        dialect = connection.dialect.name
        columns = {item.name: column(item.name, _sql_type(item.type, dialect)) for item in batch.schema}
        place, rows = table(self.table, *columns.values()), self._rows(batch, dialect)
        if not self.history:
            keys = self._keys(columns)
            for nulls, some in _by_nulls(keys, rows).items():
                same = [
                    columns[key].is_(None) if null else columns[key] == bindparam(key)
                    for key, null in zip(keys, nulls, strict=True)
                ]
                connection.execute(delete(place).where(*same), some)
        connection.execute(insert(place), rows)

    def _is_ours(self, clocks: Table) -> ColumnElement[bool]:
        from sqlalchemy import func

        # SQLite takes names that differ only in case for one name.
        is_file = "://" not in self.url or self.url.startswith("sqlite")
        name = clocks.c.table_name
        return func.lower(name) == self.table.lower() if is_file else name == self.table

    def _rows(self, batch: pa.RecordBatch, dialect: str) -> Rows:
        names = batch.schema.names
        try:
            columns = [_python_values(column, dialect) for column in batch.columns]
        except (OverflowError, ValueError) as error:
            raise InvalidInputError(
                f"{self.name} takes no times beyond the years 1 to 9999: {error}; present them as whole numbers,"
                " and make columns of clocks and windows bigint."
            ) from error
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _asking(self) -> AbstractContextManager[None]:
        from sqlalchemy.exc import SQLAlchemyError

        return translating(SQLAlchemyError, self._as_ours)

    def _is_away(self, error: Exception) -> bool:
        """Return True if the database does not answer or is locked, so that trying again later may help."""
        from sqlalchemy.exc import InterfaceError, InternalError, OperationalError

        if getattr(error, "connection_invalidated", False):
            return True
        if "sqlite" in type(getattr(error, "orig", None)).__module__:
            return any(words in str(error) for words in _AWAY)
        return isinstance(error, (InterfaceError, InternalError, OperationalError))

    def _as_ours(self, error: Exception) -> StateError:
        from sqlalchemy import make_url

        secrets: dict[str, Any] = {}
        if "://" in self.url:
            url = make_url(self.url)
            secrets = {"password": url.password, **url.query}
        what = without_secrets(getattr(error, "orig", None) or error, secrets)
        if self._is_away(error):
            return StoreUnavailableError(f"{self.name}: {what}. Put it right, then try again.")
        return InvalidInputError(
            f"{self.name} does not take this: {what}. Change the table or the values, or name another table."
        )


def _is_missing_file(engine: Engine) -> bool:
    """Return whether a database is a file of SQLite that is not there."""
    path = (engine.url.database or "").removeprefix("file:").partition("?")[0]
    return engine.dialect.name == "sqlite" and not os.path.exists(path)


def _whole(columns: Iterable[ReflectedColumn]) -> set[str]:
    """Return the columns of a table that hold whole numbers."""
    return {column["name"] for column in columns if _kind(column["type"])[0] is int}


def _by_nulls(keys: Sequence[str], rows: Rows) -> dict[tuple[bool, ...], Rows]:
    """Return rows by which of their keys are null.

    `=` never finds null, and few databases use an index for an expression that finds null and values.
    """
    alike: dict[tuple[bool, ...], Rows] = defaultdict(list)
    for row in rows:
        alike[tuple(row[key] is None for key in keys)].append(row)
    return alike


def _clocks() -> Table:
    from sqlalchemy import BigInteger, Boolean, Column, MetaData, String, Table, Text

    return Table(
        CLOCKS,
        MetaData(),
        Column("table_name", String(255), primary_key=True),
        Column("application", Text, nullable=False),
        Column("task", Text, nullable=False),
        Column("history", Boolean, nullable=False),
        Column("clock", BigInteger, nullable=False),
        Column(TIMELINE, BigInteger, nullable=False, server_default="0"),
    )


def _columns(origin: Origin, dialect: str) -> list[Column[Any]]:
    """Return the columns of a table for the values of a task.

    Raises:
        InvalidInputError: SQL has no exact type for a column, or a database can't find rows for sure by the type of a key.
    """
    from sqlalchemy import Column

    columns: list[Column[Any]] = []
    for item in origin.schema:
        if (sql_type := _sql_type(item.type, dialect)) is None:
            raise InvalidInputError(
                f"column={item.name!r} is {item.type}, which SQL has no type for; present it as another."
            )
        if item.name in origin.key_columns and (pa.types.is_floating(item.type) or pa.types.is_nested(item.type)):
            raise InvalidInputError(
                f"key={item.name!r} is {item.type}, by which databases don't find a row for sure; use text, a whole number,"
                " a decimal or a time."
            )
        columns.append(Column(item.name, sql_type, nullable=item.name != CLOCK))
    return columns


def _sql_type(kind: pa.DataType, dialect: str) -> TypeEngine[Any] | None:
    """Return the SQL type that holds an Arrow type exactly, or None."""
    import sqlalchemy as sql

    is_ = pa.types
    if is_.is_boolean(kind):
        return sql.Boolean()
    if is_.is_integer(kind) and kind != pa.uint64():
        return sql.BigInteger()
    if is_.is_floating(kind):
        return sql.Double()
    if is_.is_string(kind) or is_.is_large_string(kind):
        return sql.Text()
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind):
        return sql.LargeBinary()
    if is_.is_date(kind):
        return sql.Date()
    if is_.is_timestamp(kind):
        return sql.DateTime(timezone=kind.tz is not None and dialect != "sqlite")
    if is_.is_decimal(kind):
        return sql.Text() if dialect == "sqlite" else sql.Numeric(kind.precision, kind.scale)
    if is_.is_nested(kind):
        return sql.JSON(none_as_null=True)
    return None


def _kind(sql_type: TypeEngine[Any]) -> tuple[type | None, bool]:
    """Return what is equal for two SQL types that hold the same values."""
    try:
        return sql_type.python_type, getattr(sql_type, "timezone", False)
    except NotImplementedError:
        return None, False


def _python_values(column: pa.Array, dialect: str) -> list[Any]:
    """Return the values of an Arrow column as the SQL column of `_sql_type` takes them."""
    kind = column.type
    if pa.types.is_nested(kind):
        return [plain(value) for value in column]
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz and "UTC"))
        if dialect == "sqlite":
            column = column.cast(pa.timestamp("us"))
    values: list[Any] = column.to_pylist()
    if pa.types.is_decimal(kind) and dialect == "sqlite":
        return [None if value is None else f"{value:f}" for value in values]
    return values
