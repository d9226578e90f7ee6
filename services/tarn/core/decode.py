"""Decoding of JSON records to typed columns: one parse for many records if provably equal, else one each.

A joined parse is trusted only under the rules in `_joinable` and `_parse_joined`. If one of them does not
hold, the records that violate it on their own are removed and the others parsed in blocks; a block that still
cannot be trusted is parsed record by record, whose result is authoritative. Every path produces strings,
integers, doubles and booleans first; `convert` turns them into the spec's types.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tarn.core.batch import RawBatch
from tarn.core.convert import convert
from tarn.core.spec import TRACE_COLUMN, FieldSpec
from tarn.core.years import LOG_TIME, log_times

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
EXACT_FLOAT_END = 2**53
"""From this value on, a double may represent a different integer than the message contains."""
REASON_CHARS_MAX = 300
BLOCK_BYTES_MIN = 1 << 20
BLOCK_RECORDS = 1_024
TRACE_TYPE = pa.struct(
    [
        pa.field("source", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("time", LOG_TIME),
    ]
)


_NUMBER = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """Result of decoding a batch; rows and bad records together are all of its records.

    Attributes:
        rows: good records in order, one column per field, and the trace column if requested.
        index: row index to index in the batch, ascending.
        bad: index in the batch to the reason of rejection, ascending.
        joined: whether a single parse served all candidates.
    """

    rows: pa.Table
    index: Sequence[int]
    bad: dict[int, str]
    joined: bool


@dataclass(frozen=True, slots=True)
class _Node:
    """One key on a path to columns: either a column or an object with further keys."""

    column: int | None
    children: dict[str, _Node]


class Decoder:
    """Decodes the batches of one ingestor.

    Args:
        fields: columns of the spec.
        source: name shown in the trace column.
        trace: whether to add the trace column.
        record_bytes_max: a value longer than this many bytes is a bad record.
    """

    def __init__(
        self, fields: Sequence[FieldSpec], *, source: str, trace: bool, record_bytes_max: int
    ) -> None:
        self._fields = tuple(fields)
        self._source = source
        self._trace = trace
        self._record_bytes_max = record_bytes_max
        self._tree = _tree(self._fields)
        self._source_schema = pa.schema(_arrow_fields(self._tree, self._fields))

    def decode(self, batch: RawBatch) -> Decoded:
        """Decode every record of the batch, to a row or to a bad record with its reason."""
        bad = self._unusable(batch.values)
        index = [i for i in range(len(batch)) if i not in bad] if bad else list(range(len(batch)))
        values = [v for i in index if (v := batch.values[i]) is not None]

        columns = self._parse_joined(values)
        joined = columns is not None
        if columns is None:
            columns, kept, reasons = self._parse_in_parts(values)
            bad.update({index[i]: reason for i, reason in reasons.items()})
            index = [index[i] for i in kept]

        good: list[pa.Array] = []
        wrong: dict[int, str] = {}
        for field, column in zip(self._fields, columns, strict=True):
            converted, reasons = convert(field, column)
            good.append(converted)
            for i, reason in reasons.items():
                wrong.setdefault(i, reason)
        bad.update({index[i]: reason for i, reason in wrong.items()})
        if wrong:
            keep = pa.array([i for i in range(len(index)) if i not in wrong], pa.int64())
            good = [c.take(keep) for c in good]
            index = [i for n, i in enumerate(index) if n not in wrong]

        names = [f.name for f in self._fields]
        if self._trace:
            good.append(self._trace_column(batch, index))
            names.append(TRACE_COLUMN)
        rows = pa.Table.from_arrays(good, names=names)
        told = {i: bad[i][:REASON_CHARS_MAX] for i in sorted(bad)}
        return Decoded(rows=rows, index=index, bad=told, joined=joined)

    def _unusable(self, values: Sequence[bytes | None]) -> dict[int, str]:
        """Values that are rejected without parsing, as {index: reason}."""
        if None not in values and max(map(len, values), default=0) <= self._record_bytes_max:  # type: ignore[arg-type]
            return {}
        bad = {}
        for i, value in enumerate(values):
            if value is None:
                bad[i] = "no value (a tombstone); this table takes none"
            elif len(value) > self._record_bytes_max:
                bad[i] = (
                    f"{len(value)} bytes, more than deadLetters.maxRecordBytes = {self._record_bytes_max}"
                )
        return bad

    def _trace_column(self, batch: RawBatch, index: list[int]) -> pa.Array:
        whole = len(index) == len(batch)
        pick: Callable[[list[int]], list[int]] = (
            (lambda column: column) if whole else (lambda column: [column[i] for i in index])
        )
        return pa.StructArray.from_arrays(
            [
                pa.repeat(pa.scalar(self._source, pa.string()), len(index)),
                pa.array(pick(batch.partitions), pa.int32()),
                pa.array(pick(batch.offsets), pa.int64()),
                log_times(pick(batch.times_ms)),
            ],
            fields=list(TRACE_TYPE),
        )

    def _parse_joined(self, values: Sequence[bytes]) -> list[pa.Array] | None:
        """Source columns of all messages from one parse; None if that would not be safe."""
        joined = _joinable(values)
        if joined is None:
            return None
        try:
            table = pj.read_json(
                io.BytesIO(joined),
                read_options=pj.ReadOptions(
                    use_threads=False, block_size=max(len(joined) + 1, BLOCK_BYTES_MIN)
                ),
                parse_options=pj.ParseOptions(
                    explicit_schema=self._source_schema,
                    newlines_in_values=False,
                    unexpected_field_behavior="ignore",
                ),
            )
        except (pa.ArrowException, UnicodeDecodeError):
            # The parser reports only the first bad row, by its own count; parsing each alone finds which and
            # why.
            return None
        if table.num_rows != len(values):
            return None
        found: dict[int, pa.Array] = {}
        _collect(self._tree, table, found)
        columns = [found[i] for i in range(len(self._fields))]
        for column in columns:
            # The parser accepts NaN and infinities, which are not JSON.
            if pa.types.is_float64(column.type) and not pc.all(pc.is_finite(column), min_count=0).as_py():
                return None
        return columns

    def _parse_in_parts(self, values: Sequence[bytes]) -> tuple[list[pa.Array], list[int], dict[int, str]]:
        """Like `_parse_each`, with one parse per block where allowed, so that few bad records cost little.

        Returns:
            Source columns of the parsed messages in the order of the second value, indexes of these messages
            (ascending), and {index: reason} of the others.
        """
        plain = [i for i, value in enumerate(values) if _joinable([value]) is not None]
        odd = sorted(set(range(len(values))) - set(plain))
        blocks = [plain[at : at + BLOCK_RECORDS] for at in range(0, len(plain), BLOCK_RECORDS)]
        parts: list[list[pa.Array]] = []
        kept: list[int] = []
        reasons: dict[int, str] = {}
        for block in (odd, *blocks):
            held = [values[i] for i in block]
            columns = self._parse_joined(held) if block is not odd else None
            here: Sequence[int] = range(len(block))
            if columns is None:
                columns, here, why = self._parse_each(held)
                reasons.update({block[i]: reason for i, reason in why.items()})
            parts.append(columns)
            kept += [block[i] for i in here]
        order = pa.array(sorted(range(len(kept)), key=kept.__getitem__), pa.int64())
        columns = [pa.concat_arrays(column).take(order) for column in zip(*parts, strict=True)]
        return columns, sorted(kept), reasons

    def _parse_each(self, values: Sequence[bytes]) -> tuple[list[pa.Array], list[int], dict[int, str]]:
        """Parse each message alone.

        Returns:
            Source columns of the parsed messages, indexes of these messages, and {index: reason} of the
            others.
        """
        rows: list[list[object]] = []
        kept: list[int] = []
        reasons: dict[int, str] = {}
        for i, value in enumerate(values):
            try:
                message = orjson.loads(value)
            except orjson.JSONDecodeError as e:
                # The joined parser accepts it: it allows any depth, and fields that no column reads.
                deep = self._parse_joined([value]) if "depth limit" in str(e) else None
                if deep is None:
                    reasons[i] = f"not JSON: {e}"
                    continue
                rows.append([column[0].as_py() for column in deep])
                kept.append(i)
                continue
            row: list[object] = [None] * len(self._fields)
            reason = (
                _read(self._tree, message, "", row, self._fields)
                if isinstance(message, dict)
                else f"the message is {_name(message)}, not an object"
            )
            if reason is None and _NUMBER in row:
                _fill_numbers(row, value, self._fields)
            if reason is not None:
                reasons[i] = reason
                continue
            rows.append(row)
            kept.append(i)
        columns = [
            pa.array([row[c] for row in rows], _source_type(field)) for c, field in enumerate(self._fields)
        ]
        return columns, kept, reasons


def _joinable(values: Sequence[bytes]) -> bytes | None:
    """The messages as lines; None if a message could parse differently as one line among others."""
    joined = _lines(values)
    if joined is None:
        joined = _lines([v.strip(b" \t\r\n") for v in values])
    if joined is None or b"\r" in joined:
        return None
    # Literals that only one of the two parsers accepts, even in fields that no column reads.
    if b"NaN" in joined or b"Inf" in joined:
        return None
    if not joined.isascii():
        try:
            joined.decode("utf-8")
        except UnicodeDecodeError:
            return None
    return joined


def _lines(values: Sequence[bytes]) -> bytes | None:
    """The values joined by newlines, if each is `{...}` without a newline inside; checked by counting.

    The joined text must have as many newlines as joints, each between a } and a {. (A newline inside a
    message is whitespace outside of strings and an error inside of them.)
    """
    joined = b"\n".join(values)
    joints = len(values) - 1
    if not (joined.startswith(b"{") and joined.endswith(b"}")):
        return None
    return joined if joined.count(b"\n") == joints == joined.count(b"}\n{") else None


def _source_type(field: FieldSpec) -> pa.DataType:
    """Arrow type of a value as parsed from JSON, before conversion to the column's type."""
    if field.type == "boolean":
        return pa.bool_()
    if field.type in ("int", "long") or field.encoding != "iso8601":
        return pa.int64()
    if field.type in ("float", "double"):
        return pa.float64()
    return pa.string()


def _tree(fields: Sequence[FieldSpec]) -> _Node:
    root = _Node(None, {})
    for column, field in enumerate(fields):
        node = root
        for key in field.path[:-1]:
            node = node.children.setdefault(key, _Node(None, {}))
        node.children[field.path[-1]] = _Node(column, {})
    return root


def _arrow_fields(node: _Node, fields: Sequence[FieldSpec]) -> list[pa.Field]:
    found = []
    for key, child in node.children.items():
        if child.column is not None:
            found.append(pa.field(key, _source_type(fields[child.column])))
        else:
            found.append(pa.field(key, pa.struct(_arrow_fields(child, fields))))
    return found


def _collect(node: _Node, holder: pa.Table | pa.StructArray, found: dict[int, pa.Array]) -> None:
    """Collect the leaf columns of the parsed structs; below a null object everything is null."""
    for key, child in node.children.items():
        array = (
            holder.column(key).combine_chunks()
            if isinstance(holder, pa.Table)
            else pc.struct_field(holder, key)
        )
        if child.column is not None:
            found[child.column] = array
        else:
            _collect(child, array, found)


def _read(
    node: _Node, holder: dict[str, object], path: str, row: list[object], fields: Sequence[FieldSpec]
) -> str | None:
    """Fill a row from one message.

    Args:
        node: tree of the columns' keys.
        holder: the object at that node.
        path: keys so far, for the reason.
        row: receives the values, by column.
        fields: columns of the spec.

    Returns:
        The reason if a value has the wrong type, else None.
    """
    for name, child in node.children.items():
        value = holder.get(name)
        if value is None:
            continue
        where = f"{path}{name}"
        if child.column is None:
            if not isinstance(value, dict):
                return f"{where}: expected an object, found {_name(value)}"
            reason = _read(child, value, f"{where}.", row, fields)
            if reason is not None:
                return reason
            continue
        source = _source_type(fields[child.column])
        if pa.types.is_boolean(source):
            if not isinstance(value, bool):
                return f"{where}: expected true or false, found {_name(value)}"
        elif pa.types.is_int64(source):
            if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_FLOAT_END:
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                return f"{where}: expected a whole number, found {_name(value)}"
            if not INT64_MIN <= value <= INT64_MAX:
                return f"{where}: {value} does not fit 64 bits"
        elif pa.types.is_float64(source):
            if isinstance(value, bool) or not isinstance(value, int | float):
                return f"{where}: expected a number, found {_name(value)}"
            value = float(value)
        elif fields[child.column].type.startswith("decimal") and type(value) in (int, float):
            value = _NUMBER
        elif not isinstance(value, str):
            return f"{where}: expected text, found {_name(value)}"
        row[child.column] = value
    return None


def _fill_numbers(row: list[object], value: bytes, fields: Sequence[FieldSpec]) -> None:
    """Replace the numbers that `_read` left for decimals by their text: a double would lose digits."""
    message = json.loads(value, parse_float=str, parse_int=str)
    for column, field in enumerate(fields):
        if row[column] is _NUMBER:
            found = message
            for key in field.path:
                found = found[key]
            row[column] = found


def _name(value: object) -> str:
    kinds: dict[type, str] = {dict: "an object", list: "a list", bool: "a truth value", type(None): "null"}
    if type(value) in kinds:
        return kinds[type(value)]
    text = repr(value)
    return f"{'text' if isinstance(value, str) else 'the number'} {text[:60]}"
