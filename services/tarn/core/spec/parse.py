"""Reading a spec from YAML, with messages that name what is wrong in it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from yaml.composer import ComposerError

from tarn.core.column_types import suggest
from tarn.core.errors import InvalidSpecError
from tarn.core.spec.base import shown
from tarn.core.spec.fields import FieldSpec, SchemaSpec
from tarn.core.spec.ingestor import (
    Batching,
    DeadLetters,
    EventTime,
    IngestorBody,
    IngestorSpec,
    Metadata,
    Resources,
    RowRetention,
    WorkerTemplate,
)
from tarn.core.spec.mapping import FieldMapping
from tarn.core.spec.source import AvroMessages, KafkaSource, Source
from tarn.core.spec.table import TableRef, TableSpec

SPEC_BYTES_MAX = 256 * 1024
REPEATED_MAX = 4 * SPEC_BYTES_MAX
"""What YAML's aliases may make of a file: values and characters. Without them it has half of that at most."""

_ALLOWED: dict[str, type[BaseModel]] = {
    "": IngestorSpec,
    "metadata": Metadata,
    "spec": IngestorBody,
    "spec.source": Source,
    "spec.source.avro": AvroMessages,
    "spec.source.kafka": KafkaSource,
    "spec.table": TableSpec,
    "spec.schema": SchemaSpec,
    "spec.schema.fields": FieldSpec,
    "spec.mapping": FieldMapping,
    "spec.batching": Batching,
    "spec.eventTime": EventTime,
    "spec.retention": RowRetention,
    "spec.workerTemplate": WorkerTemplate,
    "spec.workerTemplate.resources": Resources,
    "spec.deadLetters": DeadLetters,
    "spec.deadLetters.table": TableRef,
}


class _EachKeyOnce(yaml.SafeLoader):
    """Refuses a key that is there twice, of which YAML's library takes the last one without a word.

    And merge keys (`<<`) that multiply: the library copies what they name, level by level.
    """

    _merged = 0

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        for key, value in node.value:
            if not key.tag.endswith(":merge"):
                continue
            for one in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                if isinstance(one, yaml.MappingNode):
                    self.flatten_mapping(one)
                    self._merged += len(one.value)
                if self._merged > SPEC_BYTES_MAX:
                    raise ComposerError(
                        None,
                        None,
                        f"merge keys (<<) make it more than {SPEC_BYTES_MAX} keys; write out what they "
                        "repeat",
                        key.start_mark,
                    )
        super().flatten_mapping(node)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        found: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in found.value:
            plain = isinstance(key, yaml.ScalarNode) and not key.tag.endswith(":merge")
            name = (key.tag, key.value) if plain else None
            if name in seen:
                raise ComposerError(None, None, f"the key {key.value!r} is there twice", key.start_mark)
            if name is not None:
                seen.add(name)
        return found


def parse_spec(text: str, *, file: str) -> IngestorSpec:
    """Parse a spec from YAML.

    Raises:
        InvalidSpecError: names the file, the path in it, the value, and what is allowed.
    """
    return spec_of(parse_document(text, file=file), file=file)


def parse_document(text: str, *, file: str) -> dict[str, Any]:
    """Parse the YAML of a spec, and nothing more.

    Raises:
        InvalidSpecError: it is not one mapping of YAML.
    """
    if len(text.encode()) > SPEC_BYTES_MAX:
        raise InvalidSpecError(f"{file}: more than {SPEC_BYTES_MAX} bytes; a spec is a small text", file=file)
    try:
        value = yaml.load(text, Loader=_EachKeyOnce)  # noqa: S506 - it is a SafeLoader
        size = _size(value, {})
    except yaml.YAMLError as e:
        mark = getattr(e, "problem_mark", None)
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark is not None else ""
        problem = getattr(e, "problem", None) or str(e)
        raise InvalidSpecError(
            f"{file}{where}: unreadable YAML: {problem}; fix the text there", file=file
        ) from e
    except RecursionError as e:
        raise InvalidSpecError(
            f"{file}: unreadable YAML: nested too deeply, or a merge key (<<) that names itself", file=file
        ) from e
    except ValueError as e:
        # Of a value that looks like a date or a number, and is none.
        raise InvalidSpecError(
            f"{file}: unreadable YAML: {e}; put text that only looks like a date or number in quotes",
            file=file,
        ) from e
    except (LookupError, AttributeError, TypeError, ArithmeticError) as e:
        raise InvalidSpecError(
            f"{file}: unreadable YAML: a value has not the form of its tag ({type(e).__name__}: {e}); write "
            "it without !!bool, !!int and the like",
            file=file,
        ) from e
    if size > REPEATED_MAX:
        raise InvalidSpecError(
            f"{file}: aliases (*name) make it more than {REPEATED_MAX} values and characters; write out what "
            "they repeat",
            file=file,
        )
    if not isinstance(value, dict):
        raise InvalidSpecError(
            f"{file}: holds {_kind(value)}, not a mapping with apiVersion, kind, metadata and spec", file=file
        )
    return value


def spec_of(document: Mapping[str, Any], *, file: str) -> IngestorSpec:
    """Parse a spec from the values of its YAML.

    Raises:
        InvalidSpecError: names the file, the path in it, the value, and what is allowed.
    """
    try:
        return IngestorSpec.model_validate(dict(document))
    except ValidationError as e:
        problems = [_tell(error) for error in e.errors(include_url=False)]
        raise InvalidSpecError(f"{file}: {'; '.join(problems)}", file=file, problems=problems) from e


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
    return f"{path}: {shown(error['input'])} is not allowed: {error['msg'][:1].lower()}{error['msg'][1:]}"


def _size(value: object, known: dict[int, float]) -> float:
    """Number of values and characters, as often as aliases repeat them; infinite if one contains itself.

    Args:
        value: what YAML was read as.
        known: sizes of the values that were counted, by their identity.
    """
    if isinstance(value, str | bytes):
        return 1 + len(value)
    if not isinstance(value, dict | list | tuple | set):
        return 1
    if id(value) not in known:
        known[id(value)] = math.inf  # until it is counted: who meets it meanwhile is a part of it
        parts = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        known[id(value)] = 1 + sum(_size(part, known) for part in parts)
    return known[id(value)]


def _kind(value: object) -> str:
    return {type(None): "nothing", list: "a list", str: "a text"}.get(
        type(value), f"a {type(value).__name__}"
    )
