"""`mapping`: which value of a message fills which column, in another form than it has, and what is left out.

A mapping is applied to columns before anything is decoded: those of the spec, or those of the table if the
spec names none. The result says for each column where its value is, and whether it is cast.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from tarn.core.column_types import Primitive, parse_type, suggest
from tarn.core.offsets import TRACE_COLUMN
from tarn.core.spec.base import SpecModel, shown
from tarn.core.spec.fields import COLUMN_PATTERN, FIELDS_MAX, REST, FieldSpec, check_paths

Entries = Annotated[dict[str, str], Field(max_length=FIELDS_MAX)]


class FieldMapping(SpecModel):
    """How columns are filled.

    Attributes:
        rename: path of a value in the message, keys joined by dots, to its column.
        cast: column to its type; text is read as a number or truth value, and these as text.
        drop: keys of the message that fill no column.
        rest: column that keeps, as the text of one JSON object, the keys that no column reads.
    """

    rename: Entries = Field(default_factory=dict)
    cast: Entries = Field(default_factory=dict)
    drop: Annotated[tuple[str, ...], Field(max_length=FIELDS_MAX, strict=False)] = ()
    rest: Annotated[str | None, Field(pattern=COLUMN_PATTERN)] = None

    @field_validator("cast")
    @classmethod
    def _types(cls, value: dict[str, str]) -> dict[str, str]:
        found = {}
        for column, kind in value.items():
            parsed = parse_type(kind)
            if not isinstance(parsed, Primitive):
                raise ValueError(
                    f"cast of {column} to {kind}: a cast gives a primitive type; struct, list and map are "
                    "read as they are sent"
                )
            found[column] = str(parsed)
        return found

    @model_validator(mode="after")
    def _whole(self) -> FieldMapping:
        for column in (*self.rename.values(), *self.cast):
            if not re.fullmatch(COLUMN_PATTERN, column):
                raise ValueError(f"{shown(column)} is no column name; letters, digits and _ are allowed")
            if column.lower() == TRACE_COLUMN:
                raise ValueError(f"{TRACE_COLUMN} is Tarn's own column; nothing else fills it")
        for path in self.rename:
            if path == REST or not all(path.split(".")):
                raise ValueError(f"rename {shown(path)}: write the keys of a value, joined by single dots")
        columns = Counter(self.rename.values())
        for column in sorted(column for column, count in columns.items() if count > 1):
            paths = " and ".join(path for path, one in self.rename.items() if one == column)
            raise ValueError(f"rename fills column {column} from {paths}; one value fills a column")
        for what, taken in (("rename", self.rename.values()), ("cast", self.cast)):
            if self.rest is not None and self.rest in taken:
                raise ValueError(
                    f"{what} and rest both name column {self.rest}; rest fills it with what no column reads"
                )
        if self.rest is not None and self.rest.lower() == TRACE_COLUMN:
            raise ValueError(f"{TRACE_COLUMN} is Tarn's own column; choose another for rest")
        for key in self.drop:
            if not key or "." in key or key == REST:
                raise ValueError(f"drop {shown(key)}: name a key of the message itself, not a part of one")
            if self.drop.count(key) > 1:
                raise ValueError(f"drop names {key} twice; name each once")
        for path, column in self.rename.items():
            if path.split(".")[0] in self.drop:
                raise ValueError(
                    f"rename fills {column} from {path}, and drop leaves {path.split('.')[0]} out; keep one"
                )
        return self

    def of_spec(self, fields: Sequence[FieldSpec]) -> tuple[FieldSpec, ...]:
        """The columns of a spec with this mapping.

        Raises:
            ValueError: it does not go with them.
        """
        renamed = {column: path for path, column in self.rename.items()}
        for field in fields:
            if field.name in renamed and field.source is not None:
                raise ValueError(
                    f"column {field.name} is from {field.source!r} in schema.fields and from "
                    f"{renamed[field.name]!r} in mapping.rename; keep one"
                )
            first = field.path[0]
            if field.name not in renamed and field.name != self.rest and first in self.drop:
                need = "is required" if field.required else "reads it"
                raise ValueError(
                    f"mapping.drop leaves {first} out, and column {field.name} of schema.fields {need}; "
                    "remove one of them"
                )
        found = self._apply(fields, "schema.fields lacks")
        check_paths(found)
        return found

    def of_table(self, fields: Sequence[FieldSpec]) -> tuple[FieldSpec, ...]:
        """The columns of a table with this mapping, each read from the key of its name where it says nothing.

        Columns whose key is dropped, or fills another column, are not filled.

        Raises:
            ValueError: it does not go with them.
        """
        renamed = {path.split(".")[0] for path in self.rename}
        targets = frozenset(self.rename.values())
        kept: list[FieldSpec] = []
        for field in fields:
            gone = field.name in self.drop or field.name in renamed
            if field.name in targets or field.name == self.rest or not gone:
                kept.append(field)
            elif field.required:
                why = "leaves out" if field.name in self.drop else "gives to another column"
                raise ValueError(
                    f"column {field.name} is required in the table, and mapping {why} the key that fills it; "
                    "rename another value to it, or make the column optional"
                )
        left = {field.name for field in fields} - {field.name for field in kept}
        for column in sorted(left & self.cast.keys()):
            raise ValueError(f"mapping.cast names {column}, which mapping leaves empty; remove the cast")
        found = self._apply(kept, "the table lacks")
        check_paths(found)
        return found

    def _apply(self, fields: Sequence[FieldSpec], lacks: str) -> tuple[FieldSpec, ...]:
        known = {field.name: field for field in fields}
        rest = () if self.rest is None else (self.rest,)
        for what, columns in (("rename", self.rename.values()), ("cast", self.cast), ("rest", rest)):
            for column in columns:
                if column not in known:
                    raise ValueError(
                        f"mapping.{what} names column {column!r}, which {lacks}"
                        f"{suggest(column, list(known))}; columns are {', '.join(known)}"
                    )
        for column, kind in self.cast.items():
            _check_cast(known[column], kind)
        renamed = {column: path for path, column in self.rename.items()}
        return tuple(self._mapped(field, renamed.get(field.name)) for field in fields)

    def _mapped(self, field: FieldSpec, path: str | None) -> FieldSpec:
        if path is not None:
            if field.source == REST:
                raise ValueError(f"mapping.rename fills {field.name}, which is for what no column reads")
            field = field.model_copy(update={"source": path})
        if field.name in self.cast:
            field = field.as_cast()
        if field.name == self.rest and field.source != REST:
            field = _as_rest(field)
        return field.passing(self.drop) if field.source == REST else field


def _as_rest(field: FieldSpec) -> FieldSpec:
    """The column, filled with what no column reads.

    Raises:
        ValueError: it is no column for that.
    """
    if field.type != "string" or field.required or field.source is not None or field.values is not None:
        raise ValueError(
            f"mapping.rest fills column {field.name} with the text of JSON: it is an optional string without "
            "from and values"
        )
    return field.model_copy(update={"source": REST, "encoding": "json"})


def _check_cast(field: FieldSpec, kind: str) -> None:
    """Require that a column can be filled by a cast to this type.

    Raises:
        ValueError: it cannot.
    """
    if field.encoding == "json":
        raise ValueError(f"mapping.cast names {field.name}, which keeps the text of JSON as it is sent")
    if field.type != kind:
        raise ValueError(
            f"mapping.cast makes {field.name} a {kind}, and the column is {field.type}; cast it to "
            f"{field.type}, or change the column"
        )
