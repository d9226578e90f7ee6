"""The ingestor spec as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from tarn.core.avro_schema import parse_schema
from tarn.core.avro_values import column_type
from tarn.core.cast_rules import takes
from tarn.core.column_types import suggest
from tarn.core.completion import TOPIC_PREFIX as COMPLETE_PREFIX
from tarn.core.spec.base import SpecModel
from tarn.core.spec.fields import COLUMN_PATTERN, FieldSpec, SchemaSpec
from tarn.core.spec.mapping import FieldMapping
from tarn.core.spec.source import MessageFormat, Source
from tarn.core.spec.table import TableRef, TableSpec, check_partitioning

COMPLETE_PATTERN = rf"^{re.escape(COMPLETE_PREFIX)}[A-Za-z0-9._-]{{0,200}}$"
REPLICAS_MAX = 64
NAME_PATTERN = r"^[a-z][a-z0-9-]{0,62}$"
PRINCIPAL_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}$"
MEMORY_BYTES_MIN = 256 << 20
"""A writer without a record takes some 170 MiB."""
MEMORY_BYTES_MAX = 64 << 30


class Metadata(SpecModel):
    """Name of the ingestor, and of its stream, under which the table keeps offsets; by default the same."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    stream: Annotated[str | None, Field(pattern=NAME_PATTERN)] = None


class Batching(SpecModel):
    """When a batch is closed: at the first limit reached."""

    max_records: Annotated[int, Field(alias="maxRecords", ge=1, le=5_000_000)] = 100_000
    max_bytes: Annotated[int, Field(alias="maxBytes", ge=1_024, le=1_073_741_824)] = 16_777_216
    max_latency_seconds: Annotated[
        float, Field(alias="maxLatencySeconds", ge=0.05, le=3_600, strict=False)
    ] = 1.0
    merge_small_files: Annotated[bool, Field(alias="mergeSmallFiles")] = True


class EventTime(SpecModel):
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
    complete_topic: Annotated[str | None, Field(alias="completeTopic", pattern=COMPLETE_PATTERN)] = None


class RowRetention(SpecModel):
    """How long rows are kept, by a column of event time."""

    age: Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}[hd]$")]
    column: Annotated[str | None, Field(pattern=COLUMN_PATTERN)] = None

    @property
    def seconds(self) -> int:
        """The age in seconds."""
        return int(self.age[:-1]) * (3_600 if self.age.endswith("h") else 86_400)


class DeadLetters(SpecModel):
    """Where bad records are written."""

    table: TableRef = TableRef(namespace="ops", name="dead_letters")
    max_record_bytes: Annotated[int, Field(alias="maxRecordBytes", ge=1_024, le=104_857_600)] = 4_194_304


class Resources(SpecModel):
    """What one writer of the ingestor may take; with any of them, each writer is a process of its own."""

    memory: Annotated[str | None, Field(pattern=r"^[1-9][0-9]{0,5}(Mi|Gi)$")] = None
    threads: Annotated[int | None, Field(ge=1, le=64)] = None

    @field_validator("memory")
    @classmethod
    def _range(cls, value: str | None) -> str | None:
        if value is not None and not MEMORY_BYTES_MIN <= _bytes(value) <= MEMORY_BYTES_MAX:
            raise ValueError(f"memory is {value!r}; a writer needs at least 256Mi and may take 64Gi")
        return value

    @property
    def memory_bytes(self) -> int | None:
        """The most resident memory of a writer, in bytes; None: not limited."""
        return None if self.memory is None else _bytes(self.memory)

    @property
    def limited(self) -> bool:
        """Whether anything is limited."""
        return self.memory is not None or self.threads is not None


def _bytes(text: str) -> int:
    return int(text[:-2]) << (30 if text.endswith("Gi") else 20)


class WorkerTemplate(SpecModel):
    """How the writers of the ingestor run."""

    resources: Resources = Resources()


class IngestorBody(SpecModel):
    """Definition of the ingestor."""

    source: Source
    table: TableSpec
    columns: Annotated[SchemaSpec | None, Field(alias="schema")] = None
    format: Literal["iceberg"] = "iceberg"
    batching: Batching = Batching()
    replicas: Annotated[int, Field(ge=1, le=REPLICAS_MAX)] = 1
    commit: Literal["bookkeeper", "direct"] = "bookkeeper"
    worker_template: Annotated[WorkerTemplate, Field(alias="workerTemplate")] = WorkerTemplate()
    dead_letters: Annotated[DeadLetters, Field(alias="deadLetters")] = DeadLetters()
    event_time: Annotated[EventTime | None, Field(alias="eventTime")] = None
    mapping: FieldMapping = FieldMapping()
    retention: RowRetention | None = None
    trace: bool = True
    run_as: Annotated[str | None, Field(alias="runAs", pattern=PRINCIPAL_PATTERN)] = None

    @field_validator("columns", mode="before")
    @classmethod
    def _short(cls, value: object) -> object:
        return {"infer": True} if value == "infer" else value

    @field_validator("retention", mode="before")
    @classmethod
    def _age(cls, value: object) -> object:
        return {"age": value} if isinstance(value, str) else value

    @property
    def retention_column(self) -> str | None:
        """The column by which rows are kept; None if all are."""
        if self.retention is None:
            return None
        return self.retention.column or (self.event_time.column if self.event_time is not None else None)

    @model_validator(mode="after")
    def _retention(self) -> IngestorBody:
        if self.retention is None:
            return self
        column = self.retention_column
        if column is None:
            raise ValueError("retention needs a column of event time: retention.column, or eventTime")
        if not self.trace:
            raise ValueError("retention needs trace: true: rows that are dropped are accounted for")
        return self

    @model_validator(mode="after")
    def _processes(self) -> IngestorBody:
        if self.worker_template.resources.limited and self.event_time is not None and self.replicas > 1:
            raise ValueError(
                f"workerTemplate.resources makes a process of each of the {self.replicas} replicas, and "
                "eventTime needs them in one: whether a stream has stopped is for all of them to say; set "
                "replicas: 1, or leave the resources out"
            )
        return self

    @model_validator(mode="after")
    def _references(self) -> IngestorBody:
        fields = self.fields
        if fields is not None:
            self.check_columns(fields)
        elif not self.infers and (self.table.partitioning or self.table.properties):
            raise ValueError(
                "partitioning and properties are for a table that ingest creates, which needs a schema; "
                "without one, the columns are those of a table that is there already"
            )
        if str(self.table) == str(self.dead_letters.table):
            raise ValueError(f"deadLetters.table is the table itself ({self.table}); choose another")
        return self

    @property
    def infers(self) -> bool:
        """Whether a table that does not exist is created with the columns of the first messages."""
        return self.columns is not None and self.columns.infer

    @property
    def fields(self) -> tuple[FieldSpec, ...] | None:
        """The columns as the mapping fills them; None if they are the table's own.

        Raises:
            ValueError: the mapping does not go with them.
        """
        if self.columns is None or self.columns.infer:
            return None
        return self.mapping.of_spec(self.columns.fields)

    def check_columns(self, fields: Sequence[FieldSpec], *, of_table: frozenset[str] = frozenset()) -> None:
        """Require that messages can have these columns, and that the table can be made with them.

        Args:
            fields: the columns.
            of_table: those that the table has already; what messages have for them is for the decoder.

        Raises:
            ValueError: they cannot, or it cannot.
        """
        _check_format(self.source, [field for field in fields if field.name not in of_table])
        types = {field.name: field.type for field in fields}
        if self.event_time is not None:
            _check_event_time(self.event_time.column, types)
        if (column := self.retention_column) is not None:
            _check_event_time(column, types, what="retention")
        check_partitioning(self.table.partitioning, types)


def _check_format(messages: MessageFormat, fields: Iterable[FieldSpec]) -> None:
    """Require that messages of this format can have the columns.

    Raises:
        ValueError: they cannot.
    """
    if messages.format == "json":
        return
    schema = messages.avro.avro_schema if messages.avro is not None else None
    for field in fields:
        if field.encoding == "json":
            raise ValueError(f"schema.fields: {field.name} has encoding json, which is for format: json")
        if schema is None:
            continue
        try:
            kind = column_type(parse_schema(schema), field.path)
        except ValueError as e:
            raise ValueError(f"schema.fields: {field.name} cannot be read from the Avro schema: {e}") from e
        if kind is None:
            names = [name for name, _ in parse_schema(schema).fields]
            raise ValueError(
                f"schema.fields: {field.name} is from {'.'.join(field.path)!r}, which the Avro schema lacks"
                f"{suggest(field.path[0], names)}; its fields are {', '.join(names)}"
            )
        if field.cast and not takes(field.type, field.encoding, kind):
            raise ValueError(
                f"mapping.cast makes {field.name} a {field.type}, and its values in the Avro schema, at "
                f"{'.'.join(field.path)}, are {kind}: no such value can be cast; choose another type, or "
                "leave the cast out"
            )


def _check_event_time(column: str, types: dict[str, str], *, what: str = "eventTime") -> None:
    """Require that the column of the event time is there and a timestamp.

    Raises:
        ValueError: it is not.
    """
    if column not in types:
        raise ValueError(
            f"{what} names column {column!r}, which schema.fields lacks{suggest(column, list(types))}; "
            f"columns are {', '.join(types)}"
        )
    if types[column] not in ("timestamp", "timestamptz"):
        raise ValueError(f"{what}: column {column} is {types[column]}; it must be a timestamp or timestamptz")


class IngestorSpec(SpecModel):
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
        """One spec for each of the topics, as each is a stream of its own; one if it names one topic.

        Name and stream are followed by a dot, which neither has otherwise, and the topic; those of a spec of
        one topic stay as they are. The log of a table has the table's columns as JSON, whatever the spec says
        of other messages: the gateway judged the rows by them, and has answered.
        """
        if self.spec.source.kafka.topic is not None:
            return (self._with_columns_of_log(),)
        return tuple(self._of_topic(topic)._with_columns_of_log() for topic in topics)

    def _of_topic(self, topic: str) -> IngestorSpec:
        names = {"name": f"{self.name}.{topic}", "stream": f"{self.stream}.{topic}"}
        kafka = {"topic": topic, "topics": None, "topic_pattern": None}
        source = self.spec.source.model_copy(
            update={"kafka": self.spec.source.kafka.model_copy(update=kafka)}
        )
        return self.model_copy(
            update={
                "metadata": self.metadata.model_copy(update=names),
                "spec": self.spec.model_copy(update={"source": source}),
            }
        )

    def _with_columns_of_log(self) -> IngestorSpec:
        """The same without what says how messages become columns, if they are rows of a table's log."""
        body = self.spec
        if "rows" in body.source.kafka.fills:
            return self
        return self.model_copy(
            update={
                "spec": body.model_copy(
                    update={
                        "source": Source(kafka=body.source.kafka),
                        "table": body.table.model_copy(update={"partitioning": (), "properties": {}}),
                        "columns": None,
                        "mapping": FieldMapping(),
                    }
                )
            }
        )
