"""The ingestor spec: the schema of its YAML file, and messages that name what is wrong in one.

One file defines one ingestor. Nothing is guessed: an unknown field, a wrong type or a reference to a missing
column is an `InvalidSpecError` that names the file, the path in it, the value and what is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from tarn.core import transforms
from tarn.core.column_types import FIELD_NAME, ColumnType, Primitive, parse_type, suggest
from tarn.core.errors import InvalidSpecError
from tarn.core.offsets import TRACE_COLUMN as TRACE_COLUMN

API_VERSION = "tarn/v1"
SPEC_BYTES_MAX = 256 * 1024
FIELDS_MAX = 1_000
VALUES_MAX = 1_000
NAME_PATTERN = r"^[a-z][a-z0-9-]{0,62}$"
COLUMN_PATTERN = f"^{FIELD_NAME}$"
TOPIC_PATTERN = r"^[A-Za-z0-9._-]{1,249}$"
LEVEL_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,127}$"
REST = "*"
"""In place of a path: the keys of the message that no column reads."""
EPOCHS = ("epoch-seconds", "epoch-millis", "epoch-micros")

_SUFFIX = {"identity": "", "bucket": "_bucket", "truncate": "_trunc"}
_TRANSFORM = re.compile(
    r"(?:(?P<unary>identity|year|month|day|hour)\((?P<column>\w+)\)"
    r"|(?P<wide>bucket|truncate)\((?P<width>\d{1,9}),\s*(?P<wide_column>\w+)\)"
    r"|(?P<plain>\w+))"
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=True)


class Metadata(_Model):
    """Name of the ingestor, and of its stream, under which the table keeps offsets; by default the same."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    stream: Annotated[str | None, Field(pattern=NAME_PATTERN)] = None


TopicName = Annotated[str, Field(pattern=TOPIC_PATTERN)]


class KafkaSource(_Model):
    """Topics with all their partitions: one, several, or all whose whole name matches a pattern."""

    topic: TopicName | None = None
    topics: Annotated[tuple[TopicName, ...] | None, Field(min_length=1, max_length=100, strict=False)] = None
    topic_pattern: Annotated[str | None, Field(alias="topicPattern", min_length=1, max_length=500)] = None
    create: bool = False
    partitions: Annotated[int, Field(ge=1, le=1_000)] = 1

    @field_validator("topic_pattern")
    @classmethod
    def _expression(cls, value: str | None) -> str | None:
        try:
            re.compile(value or "")
        except (re.error, OverflowError, RecursionError) as e:
            raise ValueError(f"{value!r} is not a regular expression: {e}") from e
        return value

    @model_validator(mode="after")
    def _one_way(self) -> KafkaSource:
        given = [
            name
            for name, value in (
                ("topic", self.topic),
                ("topics", self.topics),
                ("topicPattern", self.topic_pattern),
            )
            if value is not None
        ]
        if len(given) != 1:
            found = " and ".join(given) or "none of them"
            raise ValueError(f"give topic, topics or topicPattern; found {found}")
        if self.topics is not None and len(set(self.topics)) < len(self.topics):
            raise ValueError(f"topics names {_twice(self.topics)} twice; name each once")
        if self.topic_pattern is not None and self.create:
            raise ValueError("create needs the names of the topics: give topic or topics, not topicPattern")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The topics that are named; empty if they are given by a pattern."""
        return self.topics or ((self.topic,) if self.topic is not None else ())

    def matches(self, topic: str) -> bool:
        """Whether the pattern matches the whole name of a topic."""
        return self.topic_pattern is not None and re.fullmatch(self.topic_pattern, topic) is not None

    def __str__(self) -> str:
        return f"topics like {self.topic_pattern}" if self.topic_pattern else ", ".join(self.names)


class Source(_Model):
    """Source of the rows."""

    kafka: KafkaSource


class PartitionRule(_Model):
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


class TableRef(_Model):
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


class FieldSpec(_Model):
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
            raise ValueError(f"values holds {_show(value)}, which is no {kind}; quote text, not numbers")
        if isinstance(value, int) and not -(2 ** (bits - 1)) <= value < 2 ** (bits - 1):
            raise ValueError(f"values holds {value}, which does not fit {kind}")
        if values.count(value) > 1:
            raise ValueError(f"values holds {_show(value)} twice; name each once")


class SchemaSpec(_Model):
    """The columns, in order, and whether an existing table is altered to have them."""

    fields: Annotated[tuple[FieldSpec, ...], Field(min_length=1, max_length=FIELDS_MAX, strict=False)]
    evolution: Literal["strict", "evolve"] = "strict"

    @model_validator(mode="after")
    def _distinct(self) -> SchemaSpec:
        names = [f.name.lower() for f in self.fields]
        doubles = sorted({n for n in names if names.count(n) > 1})
        if doubles:
            raise ValueError(f"columns named twice (upper and lower case count as one): {', '.join(doubles)}")
        if TRACE_COLUMN in names:
            raise ValueError(f"{TRACE_COLUMN} is Tarn's own column; choose another name")
        paths = [f.path for f in self.fields if f.encoding != "json"]
        for path in sorted(paths):
            if paths.count(path) > 1:
                raise ValueError(f"from {'.'.join(path)!r} is read by two columns; a value fills one column")
            for cut in range(1, len(path)):
                if path[:cut] in paths:
                    raise ValueError(
                        f"from {'.'.join(path)!r} goes through {'.'.join(path[:cut])!r}, "
                        "which is a column's own value"
                    )
        return self


class Batching(_Model):
    """When a batch is closed: at the first limit reached."""

    max_records: Annotated[int, Field(alias="maxRecords", ge=1, le=5_000_000)] = 100_000
    max_bytes: Annotated[int, Field(alias="maxBytes", ge=1_024, le=1_073_741_824)] = 33_554_432
    max_latency_seconds: Annotated[
        float, Field(alias="maxLatencySeconds", ge=0.05, le=3_600, strict=False)
    ] = 1.0
    merge_small_files: Annotated[bool, Field(alias="mergeSmallFiles")] = True


class EventTime(_Model):
    """The event time of a row, which the stream's watermark follows; see `tarn.core.watermark`."""

    column: Annotated[str, Field(pattern=COLUMN_PATTERN)]
    max_out_of_orderness_seconds: Annotated[
        float, Field(alias="maxOutOfOrdernessSeconds", ge=0, le=31_536_000, strict=False)
    ] = 0.0
    idle_timeout_seconds: Annotated[
        float, Field(alias="idleTimeoutSeconds", ge=1, le=31_536_000, strict=False)
    ] = 60.0
    max_ahead_seconds: Annotated[float, Field(alias="maxAheadSeconds", ge=0, le=31_536_000, strict=False)] = (
        3_600.0
    )


class DeadLetters(_Model):
    """Where bad records are written."""

    table: TableRef = TableRef(namespace="ops", name="dead_letters")
    max_record_bytes: Annotated[int, Field(alias="maxRecordBytes", ge=1_024, le=104_857_600)] = 4_194_304


class IngestorBody(_Model):
    """Definition of the ingestor."""

    source: Source
    table: TableSpec
    columns: Annotated[SchemaSpec | None, Field(alias="schema")] = None
    format: Literal["iceberg"] = "iceberg"
    batching: Batching = Batching()
    dead_letters: Annotated[DeadLetters, Field(alias="deadLetters")] = DeadLetters()
    event_time: Annotated[EventTime | None, Field(alias="eventTime")] = None
    trace: bool = True

    @model_validator(mode="after")
    def _references(self) -> IngestorBody:
        if self.columns is not None and self.event_time is not None:
            _check_event_time(self.event_time.column, {f.name: f.type for f in self.columns.fields})
        if self.columns is not None:
            _check_partitioning(self.table.partitioning, {f.name: f.type for f in self.columns.fields})
        elif self.table.partitioning or self.table.properties:
            raise ValueError(
                "partitioning and properties are for a table that ingest creates, which needs a schema; "
                "without one, the columns are those of a table that is there already"
            )
        if str(self.table) == str(self.dead_letters.table):
            raise ValueError(f"deadLetters.table is the table itself ({self.table}); choose another")
        return self


def _check_event_time(column: str, types: dict[str, str]) -> None:
    """Require that the column of the event time is there and a timestamp.

    Raises:
        ValueError: it is not.
    """
    if column not in types:
        raise ValueError(
            f"eventTime names column {column!r}, which schema.fields lacks{suggest(column, list(types))}; "
            f"columns are {', '.join(types)}"
        )
    if types[column] not in ("timestamp", "timestamptz"):
        raise ValueError(
            f"eventTime: column {column} is {types[column]}; it must be a timestamp or timestamptz"
        )


def _check_partitioning(rules: tuple[PartitionRule, ...], types: dict[str, str]) -> None:
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


class IngestorSpec(_Model):
    """One ingestor: one topic, or several, into one table."""

    api_version: Annotated[Literal["tarn/v1"], Field(alias="apiVersion")]
    kind: Literal["Ingestor"]
    metadata: Metadata
    spec: IngestorBody

    @property
    def name(self) -> str:
        """Name of the ingestor."""
        return self.metadata.name

    @property
    def stream(self) -> str:
        """Name of the stream, under which the table keeps its offsets."""
        return self.metadata.stream or self.metadata.name

    @property
    def topic(self) -> str:
        """The topic, of a spec with one."""
        topic = self.spec.source.kafka.topic
        assert topic is not None, f"{self.name}: its topics are {self.spec.source.kafka}"
        return topic

    def per_topic(self, topics: Iterable[str]) -> tuple[IngestorSpec, ...]:
        """One spec for each of the topics, as each is a stream of its own; itself if it names one topic.

        Name and stream are followed by a dot, which neither has otherwise, and the topic.
        """
        if self.spec.source.kafka.topic is not None:
            return (self,)
        return tuple(self._of_topic(topic) for topic in topics)

    def _of_topic(self, topic: str) -> IngestorSpec:
        names = {"name": f"{self.name}.{topic}", "stream": f"{self.stream}.{topic}"}
        kafka = {"topic": topic, "topics": None, "topic_pattern": None}
        source = Source(kafka=self.spec.source.kafka.model_copy(update=kafka))
        return self.model_copy(
            update={
                "metadata": self.metadata.model_copy(update=names),
                "spec": self.spec.model_copy(update={"source": source}),
            }
        )


def parse_spec(text: str, *, file: str) -> IngestorSpec:
    """Parse a spec from YAML.

    Raises:
        InvalidSpecError: names the file, the path in it, the value, and what is allowed.
    """
    if len(text.encode()) > SPEC_BYTES_MAX:
        raise InvalidSpecError(f"{file}: more than {SPEC_BYTES_MAX} bytes; a spec is a small text", file=file)
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = getattr(e, "problem", None) or str(e)
        raise InvalidSpecError(
            f"{file}{where}: unreadable YAML: {problem}; fix the text there", file=file
        ) from e
    if not isinstance(value, dict):
        raise InvalidSpecError(
            f"{file}: holds {_kind(value)}, not a mapping with apiVersion, kind, metadata and spec", file=file
        )
    try:
        return IngestorSpec.model_validate(value)
    except ValidationError as e:
        problems = [_tell(error) for error in e.errors(include_url=False)]
        raise InvalidSpecError(f"{file}: {'; '.join(problems)}", file=file, problems=problems) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """Specs that are valid alone but exclude each other: they share a name, stream or table.

    Attributes:
        files: file names, sorted; the order implies no precedence.
        about: what they share, for messages.
    """

    files: tuple[str, ...]
    about: str

    def refusal(self, file: str, *, why: str) -> InvalidSpecError:
        """The error of one of the files."""
        others = ", ".join(f for f in self.files if f != file)
        return InvalidSpecError(f"{file}: {self.about}; {why}. The other: {others}", file=file)


def clashes(specs: Mapping[str, IngestorSpec]) -> list[Clash]:
    """Groups of files of which at most one can be used; files without conflicts are in none."""
    wants: dict[str, list[str]] = {}
    for file, spec in sorted(specs.items()):
        wants.setdefault(f"metadata.name {spec.name!r} is used twice", []).append(file)
        wants.setdefault(f"stream {spec.stream!r} is used twice", []).append(file)
        wants.setdefault(f"spec.table {str(spec.spec.table)!r} is written by two", []).append(file)
    groups: list[tuple[set[str], list[str]]] = []
    for about, files in wants.items():
        if len(files) < 2:
            continue
        joined: tuple[set[str], list[str]] = (set(files), [about])
        apart = []
        for group in groups:
            if group[0] & joined[0]:
                joined = (group[0] | joined[0], [*group[1], *joined[1]])
            else:
                apart.append(group)
        groups = [*apart, joined]
    return [Clash(files=tuple(sorted(files)), about=" and ".join(about)) for files, about in groups]


def settle(clash: Clash, holders: frozenset[str]) -> tuple[str | None, dict[str, InvalidSpecError]]:
    """Decide which file of a clash may be used.

    Args:
        clash: the conflicting files.
        holders: files whose table already has their stream.

    Returns:
        The file that may be used, and the errors of the others. It is the only holder, so that a new file
        never stops a working ingestor; None if there is no holder or more than one.
    """
    winner = next(iter(holders)) if len(holders) == 1 else None
    if winner is not None:
        why = f"{winner} goes on, as its table holds its stream already; change or remove this one"
    elif holders:
        why = f"the tables of {', '.join(sorted(holders))} hold their streams already; remove all but one"
    else:
        why = "neither has begun, so neither begins; change or remove one"
    return winner, {file: clash.refusal(file, why=why) for file in clash.files if file != winner}


_ALLOWED: dict[str, type[BaseModel]] = {
    "": IngestorSpec,
    "metadata": Metadata,
    "spec": IngestorBody,
    "spec.source": Source,
    "spec.source.kafka": KafkaSource,
    "spec.table": TableSpec,
    "spec.schema": SchemaSpec,
    "spec.schema.fields": FieldSpec,
    "spec.batching": Batching,
    "spec.deadLetters": DeadLetters,
    "spec.deadLetters.table": TableRef,
}


def _tell(error: Any) -> str:
    """One problem as a message: path, value, what is allowed."""
    parts = [str(p) for p in error["loc"]]
    path = ".".join(parts) or "the file"
    kind = error["type"]
    if kind == "extra_forbidden":
        parent = ".".join(p for p in parts[:-1] if not p.isdigit())
        model = _ALLOWED.get(parent)
        allowed = [f.alias or n for n, f in model.model_fields.items()] if model is not None else []
        return f"{path}: unknown field{suggest(parts[-1], allowed)}; allowed are {', '.join(allowed)}"
    if kind == "missing":
        return f"{path}: missing; it has no default"
    if kind == "value_error":
        return f"{path}: {error['ctx']['error']}"
    return f"{path}: {_show(error['input'])} is not allowed: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _twice(values: tuple[str, ...]) -> str:
    return next(value for value in values if values.count(value) > 1)


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _kind(value: object) -> str:
    return {type(None): "nothing", list: "a list", str: "a text"}.get(
        type(value), f"a {type(value).__name__}"
    )
