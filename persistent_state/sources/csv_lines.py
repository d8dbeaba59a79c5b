"""Parse the lines of CSV files, by the options of their source."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from numpy.typing import NDArray

from persistent_state.errors import InvalidInputError
from persistent_state.formatting import shortened
from persistent_state.sources.casts import Unfit, of_column

Parser: TypeAlias = Callable[[bytes, NDArray[np.int64], NDArray[np.int64]], tuple[pa.Table, dict[int, Any]]]
"""Makes rows of lines, given with their starts and ends. Returns why lines are bad, by number from 0: an `Unfit` or a text."""

HEADERS = ("name", "position", "none")

_LINE_END = re.compile(rb"\r\n|\n|\r(?=[^\n])")
_NO_TEXT = "\uffff"
"""The character that stands in for bytes that are no text of an encoding: no character, so that no text has it."""

codecs.register_error("persistent-state.no-text", lambda error: (_NO_TEXT, error.end))  # type: ignore[attr-defined]


class _CommaText(pa.ExtensionType):  # type: ignore[misc]
    """The type of a column of numbers with decimal commas, which stay, so that a bad value is shown as it was written."""

    def __init__(self) -> None:
        super().__init__(pa.string(), "persistent-state.comma-text")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, serialized: bytes) -> _CommaText:
        return cls()


@dataclass(frozen=True)
class CsvOptions:
    r"""The way in which the CSV files of a `FileSource` are written.

    Attributes:
        delimiter: The character between two fields.
        quote: The character around a field that may hold delimiters; it is doubled within. None: no character does that.
        escape: The character that takes its meaning from the one behind it; None: no character does that.
        encoding: The name by which Python knows the encoding, such as "cp1252" or "utf-16". A file that begins with a byte
            order mark of UTF-8 is UTF-8, unless the encoding has other bytes for ASCII, as UTF-16 has.
        decimal: The decimal mark of numbers in columns of floats and decimals, "." or ",".
        null: The texts that are null, unless they are quoted. One that has the escape character, as `\N`, is compared with a
            field before escapes are taken out of it.
        header: "name": the first line names the columns. "position": the first line is passed over, and the columns are those
            of the schema in its order. "none": the same, and the first line is a record. A first line that can't be a header is
            a bad record.

    Raises:
        InvalidInputError: An option is wrong.

    Example:
        >>> CsvOptions(delimiter=";", decimal=",", encoding="cp1252").null
        ('',)
    """

    delimiter: str = ","
    quote: str | None = '"'
    escape: str | None = None
    encoding: str = "utf-8"
    decimal: str = "."
    null: tuple[str, ...] = ("",)
    header: str = "name"

    def __post_init__(self) -> None:
        marks = {"delimiter": self.delimiter, "quote": self.quote, "escape": self.escape}
        for name, mark in marks.items():
            is_left_out = mark is None and name != "delimiter"
            if not is_left_out and not (
                isinstance(mark, str) and len(mark) == 1 and mark.isascii() and mark not in "\r\n\0"
            ):
                raise InvalidInputError(f"{name}={mark!r} of CsvOptions is not one ASCII character; give one.")
        given = [mark for mark in marks.values() if mark is not None]
        if len(set(given)) < len(given):
            raise InvalidInputError(f"CsvOptions has one character for two of {marks}; give each its own.")
        if not isinstance(self.decimal, str) or self.decimal not in (".", ","):
            raise InvalidInputError(f"decimal={self.decimal!r} of CsvOptions; say '.' or ','.")
        if not isinstance(self.header, str) or self.header not in HEADERS:
            raise InvalidInputError(f"header={self.header!r} of CsvOptions; say 'name', 'position' or 'none'.")
        null: Any = self.null
        if not isinstance(null, (tuple, list, set, frozenset)) or not all(isinstance(text, str) for text in null):
            raise InvalidInputError(
                f"null={self.null!r} of CsvOptions is not a tuple of texts; give one, as ('', 'NA')."
            )
        object.__setattr__(self, "null", tuple(self.null))
        for text in self.null:
            if not self._may_be_field(text):
                raise InvalidInputError(
                    f"null={text!r} of CsvOptions is never a whole field without quotes; give the text that stands there, "
                    "or leave it out."
                )
        try:
            "".encode(self.encoding)
            codecs.getincrementaldecoder(self.encoding)
        except (LookupError, TypeError, ValueError) as error:
            raise InvalidInputError(
                f"encoding={self.encoding!r} of CsvOptions is not an encoding that Python knows; say one, as 'cp1252'."
            ) from error

    def _may_be_field(self, text: str) -> bool:
        """Return whether a text can be a field without quotes, as it stands or by means of escapes."""
        if self.escape and not _is_escaped(self, text):
            return not {"\r", "\n"} & {*text}
        marks = "".join(map(re.escape, (self.delimiter, self.escape or "")))
        pair = f"|{re.escape(self.escape)}[^\r\n]" if self.escape else ""
        is_whole = re.fullmatch(f"(?:[^\r\n{marks}]{pair})*", text) is not None
        return is_whole and not (self.quote and text.startswith(self.quote))


def csv_texts(options: CsvOptions, parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the parts of a file as UTF-8 with a line feed at each line's end."""
    is_utf8 = codecs.lookup(options.encoding).name == "utf-8"
    return _line_feeds(parts if is_utf8 else _encoded(parts, options.encoding))


def header_names(options: CsvOptions, header: bytes) -> list[str]:
    """Return the names that a first line says.

    Raises:
        Unfit: It says none.
    """
    try:
        whole = pa_csv.ReadOptions(block_size=len(header) + 1)
        table = pa_csv.read_csv(io.BytesIO(header + b"\n"), whole, pa_csv.ParseOptions(**_marks(options)))
        return list(table.column_names)
    except UnicodeDecodeError:
        raise Unfit("its header is not UTF-8") from None
    except pa.ArrowInvalid:
        raise Unfit("a name in its header does not end on the first line") from None


def _marks(options: CsvOptions) -> dict[str, Any]:
    return {
        "delimiter": options.delimiter,
        "quote_char": options.quote or False,
        "escape_char": options.escape or False,
    }


def csv_parser(options: CsvOptions, header: bytes, schema: pa.Schema) -> tuple[list[str], Parser]:
    """Return the names of the columns, and a parser of the lines below this header."""
    names, why = schema.names, "not as many fields as columns in the schema"
    if options.header == "name":
        names, why = header_names(options, header), "not as many fields as in the header"
    wanted = [name for name in names if name in schema.names]
    names_read = wanted or names[:1]
    check_once(wanted)
    marked = [] if options.decimal == "." else [name for name in wanted if _has_mark(schema.field(name).type)]
    # Read all columns as text. Parsing them later is as fast, and finds bad values instead of bad lines.
    # A line with one field too many. The parser reports it, unless a quote before it is not closed.
    sentinel = options.delimiter.encode() * len(names) + b"\n"

    def parse(text: bytes, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> tuple[pa.Table, dict[int, Any]]:
        # To the parser a carriage return within a line ends a line, so one line might make two rows.
        if b"\r" in text and text.count(b"\r") != text.count(b"\r\n"):
            raise Unfit("a carriage return within a line")
        odd: list[int] = []
        shown = _utf8(text)
        is_utf8 = shown is text

        def skip(row: pa_csv.InvalidRow) -> Literal["skip"]:
            odd.append((row.number or 0) - 1)
            return "skip"

        # The parser takes a byte order mark at the start away, which is of the first value here.
        shown = codecs.BOM_UTF8 * shown.startswith(codecs.BOM_UTF8) + shown + sentinel
        shown, restored = _with_null_marks(options, shown)
        source: Any = pa.BufferReader(shown)
        read = pa_csv.ReadOptions(column_names=names, block_size=len(shown), use_threads=False)
        convert = pa_csv.ConvertOptions(
            column_types={name: pa.string() for name in wanted},
            include_columns=names_read,
            null_values=[*(text for text in options.null if not _is_escaped(options, text)), *restored],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        # An empty line has one field, too.
        parse_options = pa_csv.ParseOptions(
            **_marks(options), invalid_row_handler=skip, ignore_empty_lines=len(names) > 1
        )
        try:
            table = pa_csv.read_csv(source, read_options=read, parse_options=parse_options, convert_options=convert)
        except pa.ArrowInvalid as error:
            raise Unfit("not a CSV record") from error
        if not odd:
            raise Unfit("a quote is not closed")
        bad: dict[int, Any] = dict.fromkeys(odd[:-1], why)
        for mark, as_text in restored.items():
            for name in wanted:
                column = pc.replace_substring(table[name], mark, as_text)
                table = table.set_column(names_read.index(name), name, column)
        if not is_utf8 and len(table) + len(bad) == len(starts):
            lines = np.delete(np.arange(len(starts)), list(bad))
            is_text = np.ones(len(table), np.bool_)
            for name in wanted:
                mask = pc.match_substring(table[name], _NO_TEXT).fill_null(False).to_numpy()
                texts = table[name].filter(pa.array(mask & is_text)).to_pylist()
                shown_texts = (shortened(text.replace(_NO_TEXT, "\ufffd")) for text in texts)
                faults = (Unfit(of_column(name, "is not UTF-8"), each) for each in shown_texts)
                bad.update(zip(lines[mask & is_text].tolist(), faults, strict=True))
                is_text &= ~mask
            table = table.filter(pa.array(is_text))
        for name in marked:
            texts = [pa.ExtensionArray.from_storage(_CommaText(), chunk) for chunk in table[name].chunks]
            table = table.set_column(names_read.index(name), name, pa.chunked_array(texts, _CommaText()))
        return table, bad

    return names, parse


def _is_escaped(options: CsvOptions, text: str) -> bool:
    return options.escape is not None and options.escape in text


def _with_null_marks(options: CsvOptions, text: bytes) -> tuple[bytes, dict[str, str]]:
    """Return a text in which other fields stand for those that are null before escapes are taken out of them.

    The parser takes escapes out first. Within quotes such a field may be a part of one: each mark comes with its text there.
    """
    nulls = [null for null in options.null if _is_escaped(options, null)]
    if not nulls:
        return text, {}
    escape = re.escape(options.escape or "")
    bare = text.translate(None, f"{options.escape}{options.quote or ''}".encode())
    run = "\ufdd0"
    while run.encode() in bare:
        run += "\ufdd0"
    delimiter, restored = re.escape(options.delimiter.encode()), {}
    for i, null in enumerate(nulls):
        mark = run + i * "\ufdd1" + "\ufdd0"
        # The text of the null comes first, since that is searched fast.
        whole = re.escape(null.encode())
        field = rb"%b(?<![^%b\n]%b)(?=%b|\r?\n)" % (whole, delimiter, whole, delimiter)
        text = re.sub(field, mark.encode(), text)
        restored[mark] = re.sub(f"{escape}(.)", r"\1", null)
    return text, restored


def with_point(column: pa.Array[Any]) -> pa.Array[Any]:
    """Return a column of what a parser read, with the decimal points that Arrow knows."""
    if isinstance(column.type, _CommaText):
        # Then a text with a point is not a number.
        return pc.replace_substring(pc.replace_substring(column.storage, ".", "?"), ",", ".")
    return column


def check_once(names: list[str]) -> None:
    """Refuse a file of which a column that is read stands twice."""
    for name in names:
        if names.count(name) > 1:
            raise Unfit(f"column {name} stands twice in it")


def _has_mark(type: pa.DataType) -> bool:
    return bool(pa.types.is_floating(type) or pa.types.is_decimal(type))


def _utf8(text: bytes) -> bytes:
    """Return a text in which something else stands in for bytes that are not UTF-8: it may lie in a column that is not read."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return text.decode(errors="persistent-state.no-text").encode()
    return text


def _encoded(parts: Iterable[bytes], encoding: str) -> Iterator[bytes]:
    """Yield a text of another encoding as UTF-8; if it begins with a byte order mark of UTF-8, it is UTF-8."""
    parts, head = iter(parts), b""
    for data in parts:
        head += data
        if len(head) >= len(codecs.BOM_UTF8):
            break
    # Where letters of ASCII are other bytes, as in UTF-16, the mark may be a text.
    if head.startswith(codecs.BOM_UTF8) and "a".encode(encoding) == b"a":
        yield head
        yield from parts
        return
    decoder = codecs.getincrementaldecoder(encoding)("persistent-state.no-text")
    for data in chain([head] if head else [], parts, [b""]):
        try:
            text = decoder.decode(data, not data)
        except UnicodeError as error:
            raise Unfit(f"it is not {encoding}") from error
        # Half a surrogate is not UTF-8, so that the rows of what is no text are bad.
        yield text.replace(_NO_TEXT, "\udcff").encode(errors="surrogatepass")


def _line_feeds(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a text as it came, or with a line feed for each carriage return if its first line ends with one, as on old Macs."""
    parts, head, first = iter(parts), b"", b""
    for data in parts:
        head += data
        if match := _LINE_END.search(head):
            first = match[0]
            break
    if first != b"\r":
        yield head
        # A block is large: its memory is for the next one.
        head, data, match = b"", b"", None
        yield from parts
        return
    waits = b""
    for data in chain([head], parts):
        data = waits + data
        # A line feed behind it is of the same line's end.
        waits = b"\r" if data.endswith(b"\r") else b""
        yield data.removesuffix(waits).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    yield waits.replace(b"\r", b"\n")
