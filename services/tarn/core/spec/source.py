"""Where the rows of a spec come from: Kafka topics, and the format of their messages."""

from __future__ import annotations

import json
import re
from typing import Annotated, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator, model_validator

from tarn.core.avro_schema import parse_schema
from tarn.core.completion import TOPIC_PREFIX as COMPLETE_PREFIX
from tarn.core.log_claims import TOPIC_PREFIX as LOG_PREFIX
from tarn.core.spec.base import SpecModel

TOPIC_PATTERN = r"^[A-Za-z0-9._-]{1,249}$"


TopicName = Annotated[str, Field(pattern=TOPIC_PATTERN)]


class KafkaSource(SpecModel):
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
        try:
            _match(value or "", "")
        except pa.ArrowInvalid as e:
            raise ValueError(
                f"{value!r} is not a regular expression of RE2, which has neither lookarounds nor back "
                f"references: {str(e).removeprefix('Invalid regular expression: ')}"
            ) from e
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

    @property
    def fills(self) -> frozenset[Literal["rows", "log"]]:
        """What its topics bring into a table: rows of topics, a table's log (docs/gateway.md), or both."""
        if not self.names:
            return frozenset({"rows"})
        return frozenset("log" if topic.startswith(LOG_PREFIX) else "rows" for topic in self.names)

    def matches(self, topic: str) -> bool:
        """Whether the pattern matches the whole name of a topic."""
        if self.topic_pattern is None or topic.startswith((COMPLETE_PREFIX, LOG_PREFIX)):
            return False
        return _match(self.topic_pattern, topic)

    def __str__(self) -> str:
        return f"topics like {self.topic_pattern}" if self.topic_pattern else ", ".join(self.names)


class AvroMessages(SpecModel):
    """How messages are written in Avro.

    Attributes:
        avro_schema: the schema of the writer, as JSON text or as the same in YAML; containers have their own.
        encoding: what a message is: a datum and nothing else, one in single-object encoding, or a container
            file with one datum.
    """

    avro_schema: Annotated[str | None, Field(alias="schema")] = None
    encoding: Literal["binary", "single-object", "container"] = "binary"

    @field_validator("avro_schema", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        try:
            return json.dumps(value) if isinstance(value, dict | list) else value
        except (TypeError, RecursionError) as e:
            raise ValueError(f"the Avro schema cannot be JSON: {e}; put dates in it in quotes") from e

    @field_validator("avro_schema")
    @classmethod
    def _record(cls, value: str | None) -> str | None:
        if value is not None and (found := parse_schema(value)).kind != "record":
            raise ValueError(f"the Avro schema is {found}; a message is a record")
        return value

    @model_validator(mode="after")
    def _one_schema(self) -> AvroMessages:
        if (self.avro_schema is None) != (self.encoding == "container"):
            raise ValueError(
                "schema is missing: Avro is not readable without the schema of its writer"
                if self.avro_schema is None
                else "schema is for other encodings: a container file has its own"
            )
        return self


class MessageFormat(SpecModel):
    """Format of the messages."""

    format: Literal["json", "arrow", "avro"] = "json"
    avro: AvroMessages | None = None

    @model_validator(mode="after")
    def _avro(self) -> MessageFormat:
        if (self.avro is not None) != (self.format == "avro"):
            raise ValueError(
                "avro is for format: avro" if self.avro is not None else "format avro needs avro: {schema: …}"
            )
        return self


class Source(MessageFormat):
    """Source of the rows."""

    kafka: KafkaSource


def _match(pattern: str, topic: str) -> bool:
    """Whether an expression matches a whole name, by RE2: in linear time, whatever the expression.

    Kafka's own patterns of subscriptions are RE2's, too (KIP-848).
    """
    found = pc.match_substring_regex(pa.array([topic]), rf"^(?:{pattern})$")
    return bool(found[0].as_py())


def _twice(values: tuple[str, ...]) -> str:
    return next(value for value in values if values.count(value) > 1)
