"""The sink that is a table of a SQL database: values and clock change in one transaction."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

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
from persistent_state.sinks import sql_columns
from persistent_state.sinks.base import (
    CLOCK,
    VALUE,
    Origin,
    RecordingSink,
    check_timeline,
    known_clock,
)
from persistent_state.sinks.values import Values, reader_of

if TYPE_CHECKING:
    from sqlalchemy import URL, ColumnElement, Connection, Engine, Row, Select, Table
    from sqlalchemy.engine.interfaces import ReflectedColumn
    from sqlalchemy.engine.reflection import Inspector

    from persistent_state.sinks.sql_columns import Rows

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

_LOCKED = ("locked", "busy", "lock timeout")
"""Words in errors of a writer that has waited in vain for another one."""

_ALIKE = ("a", "A", "a ")
"""Texts that are equal for a key's column which ignores case or spaces at the end."""

_NOT_DETERMINISTIC = """
SELECT attname FROM pg_attribute JOIN pg_collation AS c ON c.oid = attcollation
WHERE attrelid = CAST(:table AS regclass) AND NOT collisdeterministic
"""

_holders: dict[str, SqlSink] = {}
"""By file of SQLite: the sink of this process whose transaction has the file's lock."""


@dataclass(frozen=True)
class SqlSink(RecordingSink):
    """A table with the newest value of each key, or with `history` the values of each key at every clock.

    The table is created if it is missing: the key columns, `clock` (a timestamp) and `value`. A table of your own may have
    other columns too, and types and indexes that suit you; a column that would change values in silence is refused, and so is
    a key's that takes different texts for equal. A clock is written as a whole or not at all, and only once, even if two
    drivers try. A rewind is one transaction: rows above its clock leave a table with `history`; without it, keys that changed
    since then get their values of then, keys that were not there are deleted, and keys that an earlier rewind has deleted come
    back.

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
    _longest: Mapping[str, int] = field(default_factory=dict, init=False, repr=False, compare=False)
    _numbered: str = field(default="", init=False, repr=False, compare=False)
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

    def write_values(self, values: Values, clock: int) -> None:
        engine = self._engine()
        with self._asking(), engine.connect() as connection:
            # Look first: a job that makes the rows may take long.
            if clock <= self._own_record(connection).clock:
                return
        with _kept(values.batches()) as batches, self._asking(), self._transaction(engine) as connection:
            if self._record(connection, clock):
                for batch in batches:
                    self._put(connection, self._with_whole(batch))

    def rewind(self, clock: int, values: Values) -> None:
        engine = self._engine()
        with self._asking(), engine.connect() as connection:
            if self._own_record(connection).timeline == self._timeline:
                return
        then = () if self.history else reader_of(values)()
        with _kept(then) as batches, self._asking(), self._transaction(engine) as connection:
            last = self._record_back(connection, clock)
            # A table that was never given the clock keeps what it has: what changed up to the clock is yet to come.
            if last is not None and last >= clock:
                self._delete_above(connection, clock)
                for batch in batches:
                    self._put_missing(connection, self._with_whole(batch))

    def rows_above(self, clock: int, origin: Origin) -> int | None:
        self._check_unique(origin)
        engine = self._engine()
        if _is_missing_file(engine):
            # To connect to it would make it.
            return 0
        with self._asking(), engine.begin() as connection:
            return 0 if self._recorded(connection, origin) is None else self._count_above(connection, clock)

    def last_clock(self, origin: Origin) -> int | None:
        self._check_unique(origin)
        engine = self._engine()
        if _is_missing_file(engine):
            return BEGINNING
        with self._asking(), engine.begin() as connection:
            record = self._recorded(connection, origin)
        if record is None:
            return BEGINNING
        check_timeline(self.name, getattr(record, TIMELINE, 0), origin)
        return int(record.clock)

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Connection]:
        """Run the block in a transaction. In SQLite it has the file's lock from the beginning, and is known as its holder."""
        file = _file(engine.url)
        try:
            with engine.begin() as connection:
                if engine.dialect.name == "sqlite":
                    # SQLite's driver begins a transaction before it changes rows, but not before it creates tables.
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                    _holders[file] = self
                yield connection
        finally:
            if _holders.get(file) is self:
                del _holders[file]

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

    def _recorded(self, connection: Connection, origin: Origin) -> Row[Any] | None:
        """Return the record of the table. Check both as `open` does, and change nothing.

        Without a record, no rewind takes anything back: the table is another's, or is new.
        """
        from sqlalchemy import inspect, select

        clocks, inspector = _clocks(), inspect(connection)
        columns_there = self._columns_there(inspector)
        if columns_there is not None:
            self._check_columns(connection, columns_there, origin)
        if not inspector.has_table(CLOCKS):
            return None
        # Tables of older versions have no timeline.
        there = {column["name"] for column in inspector.get_columns(CLOCKS)}
        columns = [each for each in clocks.c if each.name != TIMELINE or TIMELINE in there]
        record = connection.execute(select(*columns).where(self._is_ours(clocks))).one_or_none()
        if record is not None:
            self._check_record(record, origin, columns_there is not None)
        return record

    def _columns_there(self, inspector: Inspector) -> list[ReflectedColumn] | None:
        """Return the columns of the table; None if the table does not exist."""
        return inspector.get_columns(self.table) if inspector.has_table(self.table) else None

    def _prepare(self, engine: Engine, origin: Origin) -> int:
        """Check the table and its record, or make them."""
        from sqlalchemy import MetaData, Table, UniqueConstraint, insert, inspect, select, text

        clocks, columns = _clocks(), sql_columns.columns_for(origin, engine.dialect.name)
        with self._transaction(engine) as connection:
            columns_there = self._columns_there(inspect(connection))
            if columns_there is not None:
                self._check_columns(connection, columns_there, origin)
                object.__setattr__(
                    self, "_whole", frozenset(sql_columns.whole_numbers(columns_there).intersection(origin.times))
                )
                object.__setattr__(self, "_longest", sql_columns.most_characters(columns_there, engine.dialect.name))
                object.__setattr__(self, "_numbered", sql_columns.numbered_column(columns_there, engine.dialect.name))
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

    def _check_columns(self, connection: Connection, columns_there: Sequence[ReflectedColumn], origin: Origin) -> None:
        """Refuse a table that does not hold each value as it is, or would take a key for another one."""
        origin, dialect = origin.with_whole(sql_columns.whole_numbers(columns_there)), connection.dialect.name
        types = {column["name"]: column["type"] for column in columns_there}
        for column, item in zip(sql_columns.columns_for(origin, dialect), origin.schema, strict=True):
            if column.name not in types:
                raise InvalidInputError(f"{self.name} has no column={column.name!r}; add it, or name another table.")
            there = types[column.name]
            if sql_columns.kind_of(there) != sql_columns.kind_of(column.type):
                raise InvalidInputError(
                    f"column={column.name!r} of {self.name} is {there!r} and should be {column.type!r};"
                    " change it, or name another table."
                )
            if change := sql_columns.silent_change(there, item.type, dialect):
                raise InvalidInputError(
                    f"column={column.name!r} of {self.name} is {there!r}, which {change}; make it {column.type!r}, or name"
                    " another table."
                )
        loose = set() if self.history else self._loose(connection, origin)
        if loose:
            raise InvalidInputError(
                f"column={min(loose)!r} of {self.name} takes different texts for equal, so that keys would lose each other's "
                "rows; give it a type and a collation that compare exactly, or name another table."
            )

    def _loose(self, connection: Connection, origin: Origin) -> set[str]:
        """Return the columns of the key for which the database takes different texts for equal."""
        from sqlalchemy import column, false, func, literal_column, select, table, text, union

        texts = {
            item.name for item in origin.schema if item.name in origin.key_columns and sql_columns.is_text(item.type)
        }
        # A union keeps one of those that are equal by its first column.
        others: list[Select[Any]] = [select(literal_column(f"'{value}'")) for value in _ALIKE]
        place, loose = table(self.table), set[str]()
        for name in texts:
            alike = union(select(column(name)).select_from(place).where(false()), *others).subquery()
            if connection.scalar(select(func.count()).select_from(alike)) != len(_ALIKE):
                loose.add(name)
        if connection.dialect.name == "postgresql":
            # Which texts a collation of ICU takes for equal can't be tried out, but the catalogue knows whether there are any.
            quoted = connection.dialect.identifier_preparer.quote(self.table)
            loose |= texts.intersection(connection.scalars(text(_NOT_DETERMINISTIC), {"table": quoted}))
        return loose

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
        self._own_record(connection)
        return False

    def _record_back(self, connection: Connection, clock: int) -> int | None:
        """Record the timeline, and no clock above this one, and return the last clock; or None if the timeline is recorded.

        From now on other writers of the table wait for this transaction.
        """
        from sqlalchemy import select, update

        clocks, timeline = _clocks(), self._timeline
        is_due = self._is_ours(clocks), clocks.c.timeline < timeline
        if not connection.execute(update(clocks).where(*is_due).values(timeline=timeline)).rowcount:
            self._own_record(connection)
            return None
        last = int(connection.scalars(select(clocks.c.clock).where(self._is_ours(clocks))).one())
        connection.execute(update(clocks).where(self._is_ours(clocks)).values(clock=min(last, clock)))
        return last

    def _own_record(self, connection: Connection) -> Row[Any]:
        """Return the record of the table. Refuse to write without one, or in a timeline that has ended."""
        from sqlalchemy import select

        clocks = _clocks()
        record = connection.execute(select(clocks).where(self._is_ours(clocks))).one_or_none()
        if record is None:
            raise InvalidInputError(f"{self.name} has lost its row of {CLOCKS}; start the application again.")
        if self._origin is not None:
            check_timeline(self.name, record.timeline, self._origin)
        return record

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
        is_whole, dialect = sql_columns.kind_of(kinds[CLOCK])[0] is int, connection.dialect.name
        arrow = pa.int64() if is_whole else pa.timestamp("us", "UTC")
        (row,) = self._rows(pa.record_batch([pa.array([clock]).cast(arrow)], [CLOCK]), dialect)
        kind = sql_columns.type_of_values(arrow, dialect)
        return column(CLOCK, kind) > literal(row[CLOCK], kind)

    def _put_missing(self, connection: Connection, batch: pa.RecordBatch) -> None:
        """Write the rows of keys that have none."""
        from sqlalchemy import bindparam, exists, insert, literal_column, select, table

        dialect = connection.dialect.name
        columns = sql_columns.columns_of(batch.schema, dialect)
        place, keys = table(self.table, *columns.values()), self._keys(columns)
        values = [bindparam(name, type_=each.type) for name, each in columns.items()]
        for nulls, rows in sql_columns.rows_by_nulls(keys, self._rows(batch, dialect)).items():
            there = exists(literal_column("1")).select_from(place).where(*sql_columns.conditions(columns, keys, nulls))
            connection.execute(insert(place).from_select([*columns], select(*values).where(~there)), rows)

    def _keys(self, columns: Iterable[str]) -> list[str]:
        """Return the columns that identify a row."""
        known = None if self._origin is None else self._origin.key_columns
        return [name for name in columns if (name in known if known is not None else name not in (CLOCK, VALUE))]

    def _with_whole(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with int64 for the times that the table has as whole numbers."""
        for name in self._whole:
            batch = batch.set_column(batch.schema.get_field_index(name), name, batch[name].cast(pa.int64()))
        return batch

    def _put(self, connection: Connection, batch: pa.RecordBatch) -> None:
        """Write rows. Without `history` they replace the rows of the same keys."""
        from sqlalchemy import delete, insert, table

        dialect = connection.dialect.name
        columns = sql_columns.columns_of(batch.schema, dialect)
        place, rows = table(self.table, *columns.values()), self._rows(batch, dialect)
        if not self.history:
            keys = self._keys(columns)
            for nulls, some in sql_columns.rows_by_nulls(keys, rows).items():
                connection.execute(delete(place).where(*sql_columns.conditions(columns, keys, nulls)), some)
        connection.execute(insert(place), rows)

    def _is_ours(self, clocks: Table) -> ColumnElement[bool]:
        from sqlalchemy import func

        # SQLite takes names that differ only in case for one name.
        is_file = "://" not in self.url or self.url.startswith("sqlite")
        name = clocks.c.table_name
        return func.lower(name) == self.table.lower() if is_file else name == self.table

    def _rows(self, batch: pa.RecordBatch, dialect: str) -> Rows:
        names = batch.schema.names
        if self._numbered in names and batch[self._numbered].null_count:
            raise InvalidInputError(
                f"column={self._numbered!r} of {self.name} is an INTEGER PRIMARY KEY, in which SQLite puts a number of its own "
                "for a key that is null; make it an INTEGER UNIQUE, or name another table."
            )
        for name in self._longest.keys() & names:
            most = self._longest[name]
            if (pc.max(pc.utf8_length(batch[name])).as_py() or 0) > most:
                # PostgreSQL cuts spaces from the end of a longer text in silence.
                raise InvalidInputError(f"column={name!r} of {self.name} takes {most} characters; make it longer.")
        if dialect == "postgresql":
            self._check_texts(batch)
        columns = [self._python_values(batch, name, dialect) for name in names]
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]

    def _python_values(self, batch: pa.RecordBatch, name: str, dialect: str) -> list[Any]:
        try:
            # Clocks are compared, and as a text the year 10000 is before 2026.
            return sql_columns.python_values(batch[name], dialect, of_any_year=name != CLOCK)
        except pa.ArrowInvalid as error:
            raise InvalidInputError(
                f"column={name!r} of {self.name} has a time with digits below a microsecond, which it can't keep: {error}; "
                "cut it in the source's transform, or present it as a whole number."
            ) from error
        except (OverflowError, ValueError) as error:
            raise InvalidInputError(
                f"{self.name} takes no times beyond the years 1 to 9999: {error}; present them as whole numbers,"
                " and make columns of clocks and windows bigint."
            ) from error

    def _check_texts(self, batch: pa.RecordBatch) -> None:
        """Refuse a text that PostgreSQL does not take: its own error names neither column nor row."""
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if not pa.types.is_string(column.type) and not pa.types.is_large_string(column.type):
                continue
            if (row := pc.index(pc.match_substring(column, "\0"), True).as_py()) >= 0:
                key = {each: plain(batch[each][row]) for each in self._keys(batch.schema.names)}
                raise InvalidInputError(
                    f"column={name!r} of {self.name} has a text with the character U+0000 at key={key!r}, and PostgreSQL takes "
                    "none; leave the character out, as in the transform of the source, or take another sink."
                )

    def _asking(self) -> AbstractContextManager[None]:
        from sqlalchemy.exc import SQLAlchemyError

        return translating(SQLAlchemyError, self._as_ours)

    def _is_away(self, error: Exception) -> bool:
        """Return True if the database does not answer or is locked, so that trying again later may help."""
        from sqlalchemy.exc import InterfaceError, InternalError, OperationalError

        if getattr(error, "connection_invalidated", False):
            return True
        own = getattr(error, "orig", None)
        if "sqlite" in type(own).__module__:
            return any(words in str(own) for words in _AWAY)
        return isinstance(error, (InterfaceError, InternalError, OperationalError))

    def _as_ours(self, error: Exception) -> StateError:
        from sqlalchemy import make_url

        secrets: dict[str, Any] = {}
        if "://" in self.url:
            url = make_url(self.url)
            secrets = {"password": url.password, **url.query}
        what = without_secrets(getattr(error, "orig", None) or error, secrets)
        if any(words in str(getattr(error, "orig", "")) for words in _LOCKED):
            holder = _holders.get(_file(self._engine().url))
            who = "another process or connection" if holder is None else f"{holder.name} of this process"
            return StoreUnavailableError(f"{self.name}: {what}: {who} is writing. Try again when that has ended.")
        if self._is_away(error):
            return StoreUnavailableError(f"{self.name}: {what}. Put it right, then try again.")
        return InvalidInputError(
            f"{self.name} does not take this: {what}. Change the table or the values, or name another table."
        )


@contextmanager
def _kept(batches: Iterable[pa.RecordBatch]) -> Iterator[Iterator[pa.RecordBatch]]:
    """Read all batches into a file, and give the block those that have rows.

    Other writers wait for a transaction. So it must not wait for the job that makes its rows.
    """
    writer = None
    with tempfile.TemporaryFile() as file:
        for batch in batches:
            if batch.num_rows:
                writer = writer or pa.ipc.new_stream(file, batch.schema)
                writer.write_batch(batch)
        if writer is None:
            yield iter(())
            return
        writer.close()
        file.seek(0)
        yield iter(pa.ipc.open_stream(file))


def _file(url: URL) -> str:
    """Return the path of the file that is a database of SQLite."""
    return os.path.realpath((url.database or "").removeprefix("file:").partition("?")[0])


def _is_missing_file(engine: Engine) -> bool:
    """Return whether a database is a file of SQLite that is not there."""
    return engine.dialect.name == "sqlite" and not os.path.exists(_file(engine.url))


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
