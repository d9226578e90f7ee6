"""The columns of a spec, and where in a message their values are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from tarn.core.column_types import FIELD_NAME, ColumnType, parse_type
from tarn.core.offsets import TRACE_COLUMN
from tarn.core.spec.base import SpecModel, shown

FIELDS_MAX = 1_000
VALUES_MAX = 1_000
COLUMN_PATTERN = f"^{FIELD_NAME}$"
REST = "*"
"""In place of a path: the keys of the message that no column reads."""
EPOCHS = ("epoch-seconds", "epoch-millis", "epoch-micros")


class FieldSpec(SpecModel):
    """One column.

    Attributes:
        name: column name.
        type: Iceberg type: a primitive one, or struct, list or map; see `tarn.core.column_types`.
        required: whether a record without a value is a bad record.
        source: path of the value in the message, keys separated by dots; by default the column name; REST for
            what no column reads.
        encoding: encoding of a timestamp: ISO 8601 string, or an integer since 1970-01-01T00:00Z; `json` for
            a string that is the text of any JSON value.
        values: allowed values, for strings and integers; by default any. A record with another value is a bad
            record; one without a value is not.
    """

    name: Annotated[str, Field(pattern=COLUMN_PATTERN)]
    type: str
    required: bool = False
    source: Annotated[str | None, Field(alias="from")] = None
    encoding: Literal["iso8601", "epoch-seconds", "epoch-millis", "epoch-micros", "json"] = "iso8601"
    values: Annotated[
        tuple[str | int, ...] | None, Field(min_length=1, max_length=VALUES_MAX, strict=False)
    ] = None
    _cast: bool = PrivateAttr(default=False)
    _passes: tuple[str, ...] = PrivateAttr(default=())

    @field_validator("type")
    @classmethod
    def _known(cls, value: str) -> str:
        return str(parse_type(value))

    @model_validator(mode="after")
    def _whole(self) -> FieldSpec:
        if self.encoding in EPOCHS and self.type not in ("timestamp", "timestamptz"):
            raise ValueError(
                f"encoding {self.encoding!r} is for timestamp and timestamptz, not for {self.type}"
            )
        if self.encoding == "json" and self.type != "string":
            raise ValueError(f"encoding 'json' is for string, not for {self.type}: the text is kept")
        if self.encoding == "json" and self.values is not None:
            raise ValueError("values is for a text that is sent, not for one with encoding 'json'")
        if self.source == REST and self.encoding != "json":
            raise ValueError(f"from {REST!r} is what no column reads; it needs type string, encoding json")
        if any(not part for part in self.path):
            raise ValueError(f"from {self.source!r} has an empty key; write keys joined by single dots")
        if self.values is not None:
            _check_values(self.type, self.values)
        return self

    @property
    def kind(self) -> ColumnType:
        """The type, parsed."""
        return parse_type(self.type)

    @property
    def path(self) -> tuple[str, ...]:
        """Keys that lead to the value."""
        return tuple((self.source if self.source is not None else self.name).split("."))

    @property
    def cast(self) -> bool:
        """Whether the value may have another form than the type asks for; see `tarn.core.casts`."""
        return self._cast

    @property
    def passes(self) -> tuple[str, ...]:
        """Keys that a column for what no column reads passes over."""
        return self._passes

    def as_cast(self) -> FieldSpec:
        """The same column, filled by a cast."""
        found = self.model_copy()
        found._cast = True
        return found

    def passing(self, keys: tuple[str, ...]) -> FieldSpec:
        """The same column, for what no column reads but these keys."""
        found = self.model_copy()
        found._passes = keys
        return found


def _check_values(kind: str, values: tuple[str | int, ...]) -> None:
    """Require that the values suit the column's type and are distinct.

    Raises:
        ValueError: they do not.
    """
    wanted = {"string": str, "int": int, "long": int}.get(kind)
    if wanted is None:
        raise ValueError(f"values is for string, int and long, not for {kind}")
    bits = 32 if kind == "int" else 64
    for value in values:
        if not isinstance(value, wanted):
            raise ValueError(f"values holds {shown(value)}, which is no {kind}; quote text, not numbers")
        if isinstance(value, int) and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError(f"values holds {value}, which does not fit {kind}")
        if values.count(value) > 1:
            raise ValueError(f"values holds {shown(value)} twice; name each once")


class SchemaSpec(SpecModel):
    """The columns, in order, or that they are inferred; and whether an existing table is altered.

    Attributes:
        fields: columns; none if they are inferred.
        infer: whether a table that does not exist is created with the columns of the first messages.
        evolution: whether an existing table gets the columns that it lacks.
    """

    fields: Annotated[tuple[FieldSpec, ...], Field(max_length=FIELDS_MAX, strict=False)] = ()
    infer: bool = False
    evolution: Literal["strict", "evolve"] = "strict"

    @model_validator(mode="after")
    def _distinct(self) -> SchemaSpec:
        if self.infer and self.fields:
            raise ValueError(
                "give fields or infer: true, not both; a mapping gives inferred columns other names and types"
            )
        if not self.infer and not self.fields:
            raise ValueError("name at least one column in fields, or write infer: true")
        names = [f.name.lower() for f in self.fields]
        doubles = sorted({n for n in names if names.count(n) > 1})
        if doubles:
            raise ValueError(f"columns named twice (upper and lower case count as one): {', '.join(doubles)}")
        if TRACE_COLUMN in names:
            raise ValueError(f"{TRACE_COLUMN} is Tarn's own column; choose another name")
        check_paths(self.fields)
        return self


def check_paths(fields: Sequence[FieldSpec]) -> None:
    """Require that a value fills one column, and that no column reads within another's value.

    Raises:
        ValueError: a path is read twice.
    """
    paths = [f.path for f in fields if f.encoding != "json"]
    for path in sorted(paths):
        if paths.count(path) > 1:
            raise ValueError(f"from {'.'.join(path)!r} is read by two columns; a value fills one column")
        for cut in range(1, len(path)):
            if path[:cut] in paths:
                raise ValueError(
                    f"from {'.'.join(path)!r} goes through {'.'.join(path[:cut])!r}, "
                    "which is a column's own value"
                )
