"""Where the rows of a spec come from: Kafka topics."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from tarn.core.completion import TOPIC_PREFIX as COMPLETE_PREFIX
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
        if self.topic_pattern is None or topic.startswith(COMPLETE_PREFIX):
            return False
        return re.fullmatch(self.topic_pattern, topic) is not None

    def __str__(self) -> str:
        return f"topics like {self.topic_pattern}" if self.topic_pattern else ", ".join(self.names)


class Source(SpecModel):
    """Source of the rows."""

    kafka: KafkaSource


def _twice(values: tuple[str, ...]) -> str:
    return next(value for value in values if values.count(value) > 1)
