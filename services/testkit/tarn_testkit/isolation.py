"""Specs and names of one namespace of the tests, so that suites share a lake without meeting. Pure."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Mapping
from typing import Any

from tarn.core.completion import TOPIC_PREFIX as COMPLETE_PREFIX
from tarn_testkit.errors import KitError

NAME_CHARS_MAX = 63
SLUG_CHARS_MAX = 30
_FLAGS = re.compile(r"\(\?[a-zA-Z]+\)")
_ESCAPED = re.compile(r"\\[^A]")
_CLASS = re.compile(r"\[\^?\]?[^\]]*\]")


def slug(text: str) -> str:
    """A part of a namespace's name made of any text: lower-case letters, digits and `_`, 30 at most."""
    found = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return found[:SLUG_CHARS_MAX].strip("_") or "test"


def ingestor_name(namespace: str, name: str) -> str:
    """Name of an ingestor in a namespace of the tests: 63 characters at most, still unique if it is cut."""
    found = f"{namespace.replace('_', '-')}-{name}"
    if len(found) <= NAME_CHARS_MAX:
        return found
    digest = hashlib.sha256(found.encode()).hexdigest()[:8]
    return f"{found[: NAME_CHARS_MAX - 9].rstrip('-')}-{digest}"


def topic_name(namespace: str, topic: str) -> str:
    """Name of a topic in a namespace of the tests; one that has it already stays as it is."""
    return topic if topic.startswith(f"{namespace}.") else f"{namespace}.{topic}"


def topic_pattern(namespace: str, pattern: str) -> str:
    r"""Pattern for topics in a namespace of the tests whose own names match one as a whole.

    Flags of the whole pattern, as in `(?i)orders-.*`, stay in front, and `^` at its begin, which says nothing
    about a match as a whole, is left out.

    Raises:
        KitError: there is another `^` in it, or a `\A`: it would mean another place if moved.
    """
    flags = _FLAGS.match(pattern)
    begin = flags.group() if flags else ""
    plain = pattern[len(begin) :].lstrip("^")
    if re.search(r"\^|\\A", _CLASS.sub("", _ESCAPED.sub("", plain))):
        raise KitError(
            f"topicPattern {pattern!r} has a ^ or \\A within, and cannot be moved into a namespace of the "
            "tests: leave it out, as a pattern has to match the whole name of a topic anyway"
        )
    return rf"{begin}{re.escape(namespace)}\.(?:{plain})"


def moved_into(document: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The spec with its name, stream, topics, table and dead letters in a namespace of the tests.

    The rest is as it was. What is not of the form of a spec is left alone: the check of the spec says what is
    wrong with it.

    Args:
        document: the spec, as the values of its YAML.
        namespace: name of the namespace.
    """
    found: dict[str, Any] = copy.deepcopy(dict(document))
    metadata, body = found.get("metadata"), found.get("spec")
    if isinstance(metadata, dict):
        for field in ("name", "stream"):
            if isinstance(metadata.get(field), str):
                metadata[field] = ingestor_name(namespace, metadata[field])
    if not isinstance(body, dict):
        return found
    source = body.get("source")
    kafka = source.get("kafka") if isinstance(source, dict) else None
    if isinstance(kafka, dict):
        _move_topics(kafka, namespace)
    if isinstance(body.get("table"), dict):
        body["table"]["namespace"] = namespace
    letters = body.setdefault("deadLetters", {})
    if isinstance(letters, dict):
        table = letters.setdefault("table", {"name": "dead_letters"})
        if isinstance(table, dict):
            table["namespace"] = namespace
    event_time = body.get("eventTime")
    complete = event_time.get("completeTopic") if isinstance(event_time, dict) else None
    if isinstance(event_time, dict) and isinstance(complete, str) and complete.startswith(COMPLETE_PREFIX):
        event_time["completeTopic"] = f"{COMPLETE_PREFIX}.{namespace}{complete.removeprefix(COMPLETE_PREFIX)}"
    return found


def _move_topics(kafka: dict[str, Any], namespace: str) -> None:
    if isinstance(kafka.get("topic"), str):
        kafka["topic"] = topic_name(namespace, kafka["topic"])
    if isinstance(kafka.get("topics"), list):
        kafka["topics"] = [
            topic_name(namespace, one) if isinstance(one, str) else one for one in kafka["topics"]
        ]
    if isinstance(kafka.get("topicPattern"), str):
        kafka["topicPattern"] = topic_pattern(namespace, kafka["topicPattern"])
