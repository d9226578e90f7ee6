"""docs/ingestion.md: fields, defaults and types of a spec, reasons to stop and metrics are the code's own."""

from __future__ import annotations

import re
import textwrap
import typing
from collections.abc import Iterator
from decimal import Decimal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tarn.core import errors
from tarn.core.batch import RawBatch
from tarn.core.column_types import SCALARS, parse_type
from tarn.core.decode import Decoder
from tarn.core.spec import IngestorSpec, TableRef, parse_spec
from tarn.core.spec.fields import SchemaSpec
from tarn.core.spec.ingestor import MEMORY_BYTES_MAX, MEMORY_BYTES_MIN
from tarn.core.spec.parse import REPEATED_MAX, SPEC_BYTES_MAX
from tarn.ingest.metrics import to_metrics
from tarn.ingest.sampling import SAMPLE_BYTES_MAX, SAMPLE_RECORDS_MAX
from tarn.ingest.status import StatusRegistry
from tests.support.documents import blocks
from tests.support.pages import ROOT, section, tables, text_of

PAGE = text_of("docs/ingestion.md")
ALWAYS_THE_SAME = {"apiVersion", "kind"}
NO_DEFAULT = "\u2013"
IF_NOT_SAID = {
    "metadata.stream": "the name",
    "spec.source.kafka.topic": "one of the three",
    "spec.source.kafka.topics": "one of the three",
    "spec.source.kafka.topicPattern": "one of the three",
    "spec.source.avro": "none",
    "spec.source.avro.schema": "none",
    "spec.schema": "the table's columns",
    "spec.eventTime": "no watermark",
    "spec.mapping.rest": "none",
    "spec.retention": "all rows are kept",
    "spec.retention.column": "that of `eventTime`",
    "spec.eventTime.completeTopic": "no events",
    "spec.schema.fields[].values": "any",
    "spec.workerTemplate.resources.memory": "not limited",
    "spec.workerTemplate.resources.threads": "not limited",
    "spec.schema.fields[].from": "the name",
    "spec.runAs": "ingest itself",
}
"""How the page words a default of None: what takes its place."""
QUOTED = re.compile(r"`([^`]+)`")
BOUNDS = (("ge", "min_length"), ("le", "max_length"))


def fields_of(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Every field that a file may hold, by path; list items have `[]`, a table reference is one field."""
    for name, info in model.model_fields.items():
        path = prefix + (info.alias or name)
        kind = info.annotation
        items = [one for one in typing.get_args(kind) if isinstance(one, type) and issubclass(one, BaseModel)]
        if isinstance(kind, type) and issubclass(kind, BaseModel) and kind is not TableRef:
            yield from fields_of(kind, f"{path}.")
        elif items and path.endswith("fields"):
            yield from fields_of(items[0], f"{path}[].")
        elif items and path in ("spec.schema", "spec.eventTime", "spec.retention", "spec.source.avro"):
            yield path, info
            yield from fields_of(items[0], f"{path}.")
        else:
            yield path, info


def default_of(path: str, info: FieldInfo) -> str:
    if info.is_required():
        return NO_DEFAULT
    value = info.get_default(call_default_factory=True)
    if value is None:
        return IF_NOT_SAID[path]
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, int | float):
        return str(value)
    return {(): "`[]`"}.get(value, f"`{value}`") if isinstance(value, tuple) else f"`{value}`"


def documented() -> dict[str, str]:
    """Field -> default; a second name in a cell is a field beside the first."""
    found = {}
    for row in tables(section(PAGE, "A spec"))[0]:
        paths = QUOTED.findall(row["field"])
        for path in paths:
            full = (
                path if path.startswith(("metadata.", "spec.")) else f"{paths[0].rpartition('.')[0]}.{path}"
            )
            found[full] = row["default"]
    return found


def test_the_fields_and_defaults_are_those_of_the_model() -> None:
    wanted = {path: default_of(path, info) for path, info in fields_of(IngestorSpec)}
    assert documented() == {path: default for path, default in wanted.items() if path not in ALWAYS_THE_SAME}


def test_the_types_are_those_that_a_spec_may_name() -> None:
    rows = tables(section(PAGE, "A spec"))[1]
    for example in ("struct<name: string, more: int>", "list<int>", "map<string, int>"):
        parse_type(example)
    assert sorted(name for row in rows for name in QUOTED.findall(row["type"])) == sorted(
        [*SCALARS, "decimal(p, s)", "struct<name: type, …>", "list<type>", "map<string, type>"]
    )


def bounds_of(path: str, info: FieldInfo) -> str:
    """The bounds of a field as the page words them; empty if it has none."""
    found: dict[str, float] = {}
    for one in info.metadata:
        for name in ("ge", "le", "min_length", "max_length"):
            if getattr(one, name, None) is not None:
                found[name] = getattr(one, name)
    if not found:
        return ""
    low, high = (found.get(bound, found.get(length)) for bound, length in BOUNDS)
    assert high is not None, f"{path} has no upper bound"
    return f"at most {high:,}" if low is None else f"{low:,} to {high:,}"


def test_the_bounds_of_numbers_and_lists_are_those_of_the_model() -> None:
    text = section(PAGE, "Bounds of a spec")
    stated = {path: row["allowed"] for row in tables(text)[0] for path in QUOTED.findall(row["field"])}
    given = {**dict(fields_of(IngestorSpec)), "spec.schema.fields": SchemaSpec.model_fields["fields"]}
    bounded = {path: bounds_of(path, info) for path, info in given.items()}
    assert len([words for words in bounded.values() if words]) > 10
    wrong = [path for path, words in bounded.items() if words and not stated.get(path, "").startswith(words)]
    assert not wrong
    assert set(stated) <= set(given)
    assert stated["spec.workerTemplate.resources.memory"] == (
        f"{MEMORY_BYTES_MIN >> 20}Mi to {MEMORY_BYTES_MAX >> 30}Gi"
    )
    assert f"A file has at most {SPEC_BYTES_MAX >> 10} KiB." in text
    assert f"at most {REPEATED_MAX:,} values and characters." in text


def test_each_reason_to_stop_is_an_error_of_the_code() -> None:
    rows = tables(section(PAGE, "When it stops"))[0]
    reasons = [reason for row in rows for reason in QUOTED.findall(row["reason"])]
    assert len(reasons) >= 5
    assert [reason for reason in reasons if not hasattr(errors, f"{reason}Error")] == []


def test_the_metrics_are_those_that_are_published() -> None:
    rows = [row for found in tables(section(PAGE, "Monitoring")) for row in found]
    documented = {row["metric"].strip("`"): row["type"] for row in rows}
    assert documented == dict(re.findall(r"^# TYPE (\w+) (\w+)$", to_metrics(StatusRegistry()), re.MULTILINE))


def test_the_block_of_a_mapping_does_what_the_page_says() -> None:
    (block,) = [one.text for one in blocks(section(PAGE, "Mapping")) if one.language == "yaml"]
    canary = (ROOT / "services/specs/canary.yaml").read_text().partition("  schema:")[0]
    columns = "{name: id, type: long}, {name: price, type: 'decimal(9, 2)'}, {name: rest, type: string}"
    text = f"{canary}  schema: {{fields: [{columns}]}}\n{textwrap.indent(block, '  ')}"
    fields = parse_spec(text, file="x").spec.fields
    assert fields is not None
    decoder = Decoder(fields, source="x", trace=False, record_bytes_max=1_000)
    values: list[bytes | None] = [
        b'{"order": {"no": "7"}, "price": 1.50, "debug": 1, "more": [2]}',
        b'{"order": {"no": "12.5"}}',
        b'{"order": {"no": "012"}}',
    ]
    found = decoder.decode(
        RawBatch(
            partitions=[0] * 3, offsets=[0, 1, 2], times_ms=[0] * 3, keys=[None] * 3, values=values, ranges=()
        )
    )
    assert found.rows.to_pylist() == [{"id": 7, "price": Decimal("1.50"), "rest": '{"more":[2]}'}]
    assert list(found.bad) == [1, 2], "what would change is a bad record"


def test_the_sample_has_the_size_that_the_page_states() -> None:
    text = section(PAGE, "Columns of the first messages")
    assert f"{SAMPLE_RECORDS_MAX:,} messages or {SAMPLE_BYTES_MAX >> 20} MiB" in text
