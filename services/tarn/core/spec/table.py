"""Where the rows of a spec go: the table, and how it is partitioned."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import Field, field_validator

from tarn.core import transforms
from tarn.core.column_types import Primitive, parse_type, suggest
from tarn.core.spec.base import SpecModel

LEVEL_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,127}$"

_SUFFIX = {"identity": "", "bucket": "_bucket", "truncate": "_trunc"}
_TRANSFORM = re.compile(
    r"(?:(?P<unary>identity|year|month|day|hour)\((?P<column>\w+)\)"
    r"|(?P<wide>bucket|truncate)\((?P<width>\d{1,9}),\s*(?P<wide_column>\w+)\)"
    r"|(?P<plain>\w+))"
)


class PartitionRule(SpecModel):
    """One partition field: `day(at)`, `bucket(16, id)`, `truncate(4, name)`, `identity(x)` or just `x`."""

    transform: Literal["identity", "year", "month", "day", "hour", "bucket", "truncate"]
    column: str
    width: int | None = None

    @staticmethod
    def parse(text: str) -> PartitionRule:
        """Parse the short form.

        Raises:
            ValueError: the text is not a partition rule.
        """
        found = _TRANSFORM.fullmatch(text.strip())
        if found is None:
            raise ValueError(
                f"{text!r} is no partition rule; write column, identity(column), year(column), "
                "month(column), day(column), hour(column), bucket(n, column) or truncate(n, column)"
            )
        if found["plain"]:
            return PartitionRule(transform="identity", column=found["plain"])
        if found["unary"]:
            return PartitionRule(transform=found["unary"], column=found["column"])  # type: ignore[arg-type]
        width = int(found["width"])
        if width < 1:
            raise ValueError(f"{text!r}: the width is at least 1")
        return PartitionRule(transform=found["wide"], column=found["wide_column"], width=width)  # type: ignore[arg-type]

    @property
    def name(self) -> str:
        """Name of the partition field in the table."""
        return self.column + _SUFFIX.get(self.transform, f"_{self.transform}")

    def __str__(self) -> str:
        width = f"{self.width}, " if self.width is not None else ""
        return f"{self.transform}({width}{self.column})"


class TableRef(SpecModel):
    """Table identifier; namespace levels are separated by dots."""

    namespace: str
    name: Annotated[str, Field(pattern=LEVEL_PATTERN)]

    @field_validator("namespace")
    @classmethod
    def _levels(cls, value: str) -> str:
        for level in value.split("."):
            if not re.fullmatch(LEVEL_PATTERN, level):
                raise ValueError(
                    f"{level!r} is no namespace level; allowed are letters, digits, _ and -, "
                    "levels joined by a dot"
                )
        return value

    @property
    def levels(self) -> tuple[str, ...]:
        """Levels of the namespace."""
        return tuple(self.namespace.split("."))

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"


class TableSpec(TableRef):
    """The target table; created from the spec if it does not exist."""

    partitioning: tuple[PartitionRule, ...] = ()
    properties: dict[str, str] = Field(default_factory=dict)
    format_version: Annotated[int, Field(alias="formatVersion", ge=2, le=3)] = 2

    @field_validator("partitioning", mode="before")
    @classmethod
    def _rules(cls, value: object) -> object:
        if not isinstance(value, list):
            return value
        return tuple(PartitionRule.parse(v) if isinstance(v, str) else v for v in value)


def check_partitioning(rules: tuple[PartitionRule, ...], types: dict[str, str]) -> None:
    """Require that a table with these columns can be partitioned so, and that every engine can read it.

    Raises:
        ValueError: it cannot.
    """
    seen: dict[str, PartitionRule] = {}
    for rule in rules:
        kind = types.get(rule.column)
        if kind is None:
            raise ValueError(
                f"partitioning names column {rule.column!r}, which schema.fields lacks"
                f"{suggest(rule.column, list(types))}; columns are {', '.join(types)}"
            )
        if not isinstance(parse_type(kind), Primitive):
            raise ValueError(
                f"partitioning {rule}: column {rule.column} is {kind}; only a column of a primitive "
                "type can be a partition"
            )
        if not transforms.fits(rule.transform, kind):
            raise ValueError(
                f"partitioning {rule}: column {rule.column} is {kind}, and {rule.transform} takes "
                f"{transforms.types_for(rule.transform)}; for {kind} use {_fitting(rule.column, kind)}"
            )
        if kind in ("float", "double"):
            raise ValueError(
                f"partitioning {rule}: column {rule.column} is {kind}; a {kind} is no partition, as equal "
                "ones are luck: leave it out, or make the column a decimal"
            )
        if rule.name in seen:
            raise ValueError(f"partitioning has {seen[rule.name]} and {rule}; name each once")
        if rule.name in types and rule.transform != "identity":
            raise ValueError(
                f"partitioning {rule}: its field in the table would be {rule.name}, which is a column; "
                "rename the column"
            )
        seen[rule.name] = rule


def _fitting(column: str, kind: str) -> str:
    found = []
    for name in transforms.transforms_for(kind):
        wide = "n, " if name in ("bucket", "truncate") else ""
        found.append(f"{name}({wide}{column})")
    return " or ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)
