"""Specs: valid content, and error messages that name file, path, value and what is allowed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest
import yaml
from pydantic import BaseModel
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IcebergType

from tarn.core.column_types import SCALARS
from tarn.core.errors import InvalidSettingError, InvalidSpecError
from tarn.core.spec import (
    IngestorSpec,
    PartitionRule,
    clashes,
    parse_document,
    parse_spec,
    settle,
    spec_of,
)
from tarn.ingest.service import load_specs

SPECS = Path(__file__).resolve().parents[3] / "services" / "specs"
GOOD = (SPECS / "canary.yaml").read_text()


def test_the_shipped_specs_are_good():
    loaded = load_specs(SPECS)
    assert loaded.errors == {}
    canary = loaded.specs["canary.yaml"]
    assert canary.name == "canary"
    assert canary.spec.source.kafka.topic == "tarn.canary"
    assert str(canary.spec.table) == "ops.canary"
    assert canary.spec.batching.max_latency_seconds == 0.5
    assert [(f.name, f.type, f.required) for f in canary.spec.columns.fields] == [
        ("id", "string", True),
        ("sent_at", "timestamptz", False),
        ("note", "string", False),
    ]


def parts_of(kind: Any, path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every model within a type, by its path in a file."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield path, kind
        for name, info in kind.model_fields.items():
            yield from parts_of(info.annotation, f"{path}.{info.alias or name}".removeprefix("."))
    for inner in get_args(kind):
        yield from parts_of(inner, path)


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 7))
        + "metadata: {name: *a6}\n",
        f"a: &a {'x' * 1_000}\nb: [{', '.join(['*a'] * 1_100)}]\n",
        f"a: &a {'x' * 100}\n" + "".join(f"b{n}: {{? *a : {n}}}\n" for n in range(11_000)),
        "metadata: &m {name: *m}\n",
        "metadata: !!pairs &m [name: *m]\n",
    ],
    ids=["nine times, seven times over", "a long text", "a long key", "itself", "itself, in pairs"],
)
def test_aliases_that_make_more_than_a_file_holds_are_refused(text: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"^x: aliases .* more than 1048576 values"):
        parse_spec(text, file="x")


def test_merge_keys_that_make_more_than_a_file_holds_are_refused() -> None:
    levels = (f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 12))
    with pytest.raises(InvalidSpecError, match=r"^x, line \d+, .* merge keys .* more than 262144 keys"):
        parse_document("\n".join(["a0: &a0 {k: 1}", *levels]), file="x")
    found = parse_document("a: &a {k: 1, l: 2}\nb: {<<: *a, l: 3}\nc: {<<: [*a, *a]}", file="x")
    assert (found["b"], found["c"]) == ({"k": 1, "l": 3}, {"k": 1, "l": 2})


def test_an_alias_is_the_value_that_it_names() -> None:
    text = GOOD.replace("\n  name: canary", "\n  name: &named birds")
    text = text.replace("    name: canary", "    name: *named")
    assert text.count("named") == 2
    assert str(parse_spec(text, file="x").spec.table) == "ops.birds"


PARTS = dict(parts_of(IngestorSpec))
del PARTS["spec.table.partitioning"]  # written as texts


@pytest.mark.parametrize("path", PARTS)
def test_an_unknown_field_is_refused_with_those_that_are_allowed(path: str) -> None:
    document = yaml.safe_load(GOOD)
    at, shown = document, []
    for key in filter(None, path.split(".")):
        at = at.setdefault(key, {})
        shown.append(key)
        if isinstance(at, list):
            at = at[0]
            shown.append("0")
    at["zzz"] = 1
    allowed = ", ".join(info.alias or name for name, info in PARTS[path].model_fields.items())
    words = f"{'.'.join([*shown, 'zzz'])}: unknown field; allowed are {allowed}"
    with pytest.raises(InvalidSpecError, match=re.escape(words)):
        spec_of(document, file="x")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "maxLatencySeconds",
            "maxLatencySecs",
            ["spec.batching.maxLatencySecs", "did you mean maxLatencySeconds"],
        ),
        (
            "type: string",
            "type: strng",
            ["spec.schema.fields.0.type", "'strng'", "did you mean string", "decimal"],
        ),
        ("partitions: 1", "partitions: many", ["spec.source.kafka.partitions", "'many'", "integer"]),
        (
            "partitions: 1",
            "partitions: 0",
            ["spec.source.kafka.partitions", "0", "greater than or equal to 1"],
        ),
        ("create: true", "create: 'yes'", ["spec.source.kafka.create", "'yes'", "boolean"]),
        ("kind: Ingestor", "kind: Ingester", ["kind", "'Ingester'", "Ingestor"]),
        ("tarn/v1", "tarn/v2", ["apiVersion", "'tarn/v2'", "tarn/v1"]),
        ("name: canary\nspec", "name: Canary_1\nspec", ["metadata.name", "'Canary_1'"]),
        ("metadata:\n  name: canary\n", "", ["metadata", "missing"]),
        ("namespace: ops", "namespace: ops/x", ["spec.table.namespace", "ops/x", "letters, digits"]),
        ("maxLatencySeconds: 0.5", "maxLatencySeconds: 0", ["spec.batching.maxLatencySeconds", "0.05"]),
        ("name: note", "name: ID", ["spec.schema", "named twice", "id"]),
        ("name: note", "name: _tarn", ["spec.schema", "_tarn", "Tarn's own"]),
        ("name: note,", "name: note, from: id,", ["spec.schema", "'id'", "two columns"]),
        ("name: note,", "name: note, from: id.x,", ["spec.schema", "'id.x'", "column's own value"]),
        ("name: note,", "name: note, from: a..b,", ["spec.schema.fields.2", "'a..b'", "empty key"]),
        (
            "name: note,",
            "name: note, encoding: epoch-millis,",
            ["spec.schema.fields.2", "epoch-millis", "string"],
        ),
        (
            "name: sent_at, type: timestamptz",
            "name: sent_at, type: timestamptz, values: [now]",
            ["spec.schema.fields.1", "values", "string, int and long", "timestamptz"],
        ),
        ("name: note,", "name: note, values: [],", ["spec.schema.fields.2.values", "at least 1"]),
        ("name: note,", "name: note, values: [a, 1],", ["spec.schema.fields.2", "holds 1", "no string"]),
        ("name: note,", "name: note, values: [a, b, a],", ["spec.schema.fields.2", "'a' twice"]),
        ("name: note,", "name: note, values: [on],", ["spec.schema.fields.2.values.0", "True"]),
        (
            "name: note, type: string",
            "name: note, type: int, values: [3000000000]",
            ["spec.schema.fields.2", "3000000000", "does not fit int"],
        ),
        (
            "  schema:",
            "    partitioning: [day(sent)]\n  schema:",
            ["partitioning", "'sent'", "did you mean sent_at"],
        ),
        (
            "  schema:",
            "    partitioning: ['day(']\n  schema:",
            ["spec.table.partitioning", "'day('", "bucket(n"],
        ),
        (
            "  schema:",
            "    formatVersion: 1\n  schema:",
            ["spec.table.formatVersion", "greater than or equal to 2"],
        ),
        (
            "  batching:",
            "  deadLetters: {table: {namespace: ops, name: canary}}\n  batching:",
            ["deadLetters"],
        ),
    ],
)
def test_a_bad_spec_names_file_path_value_and_what_is_allowed(old, new, told):
    assert old in GOOD
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec(GOOD.replace(old, new, 1), file="canary.yaml")
    for part in ["canary.yaml: ", *told]:
        assert part in caught.value.message


@pytest.mark.long
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [1", "unreadable YAML"),
        ("a:\n\t- 1", "line 2"),
        ("- 1", "holds a list"),
        ("", "holds nothing"),
        ("just text", "holds a text"),
        ("a: " + "x" * 300_000, "262144 bytes"),
        ("!!python/object/apply:os.system ['true']", "unreadable YAML"),
        ("a: 2026-13-01", "unreadable YAML: month must be in 1..12; put text"),
        (f"a: {'1' * 5_000}", "unreadable YAML: Exceeds the limit"),
        ("[" * 2_000, "unreadable YAML: nested too deeply"),
        ("a: &a {<<: *a, k: 1}", "a merge key (<<) that names itself"),
        ("a: 1\nb: 2\na: 3", "bad.yaml, line 3, column 1: unreadable YAML: the key 'a' is there twice"),
        ("a: {b: {c: 1, d: 2, c: 3}}", "the key 'c' is there twice"),
        ("a: !!bool maybe", "unreadable YAML: a value has not the form of its tag (KeyError: 'maybe')"),
        ('a: !!int ""', "unreadable YAML: a value has not the form of its tag"),
        ("a: !!timestamp soon", "unreadable YAML: a value has not the form of its tag"),
    ],
)
def test_unreadable_files_say_where(text, told):
    with pytest.raises(InvalidSpecError, match=r"bad\.yaml") as caught:
        parse_spec(text, file="bad.yaml")
    assert told in caught.value.message


@pytest.mark.parametrize(
    ("text", "transform", "column", "width"),
    [
        ("at", "identity", "at", None),
        ("identity(at)", "identity", "at", None),
        ("day(at)", "day", "at", None),
        ("bucket(16, id)", "bucket", "id", 16),
        ("truncate(4,id)", "truncate", "id", 4),
    ],
)
def test_partition_rules_are_read(text, transform, column, width):
    assert PartitionRule.parse(text) == PartitionRule(transform=transform, column=column, width=width)


TYPES = [*SCALARS, "decimal(9, 2)"]
RULES = ["v", "year(v)", "month(v)", "day(v)", "hour(v)", "bucket(16, v)", "truncate(4, v)"]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", TYPES)
def test_a_partition_rule_that_does_not_fit_its_column_is_refused_with_what_does(kind: str, rule: str):
    text = GOOD.replace("name: note, type: string", f"name: v, type: '{kind}'").replace(
        "  schema:", f"    partitioning: ['{rule}']\n  schema:"
    )
    parsed = PartitionRule.parse(rule)
    iceberg = IcebergType.model_validate(kind)
    width = f"[{parsed.width}]" if parsed.width else ""
    if parse_transform(parsed.transform + width).can_transform(iceberg) and kind not in ("float", "double"):
        assert parse_spec(text, file="a.yaml").spec.table.partitioning == (parsed,)
        return
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec(text, file="a.yaml")
    assert f"a.yaml: spec: partitioning {parsed}: column v is {kind}" in caught.value.message
    if kind == "string":
        assert "for string use identity(v), truncate(n, v) or bucket(n, v)" in caught.value.message


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ("['day(sent_at)', 'day(sent_at)']", "partitioning has day(sent_at) and day(sent_at)"),
        ("['bucket(2, id)', 'bucket(4, id)']", "partitioning has bucket(2, id) and bucket(4, id)"),
        ("['day(sent_at)']", "its field in the table would be sent_at_day, which is a column"),
    ],
)
def test_partition_fields_that_the_table_could_not_name_are_refused(rules: str, told: str):
    text = GOOD.replace("  schema:", f"    partitioning: {rules}\n  schema:")
    if "sent_at_day" in told:
        text = text.replace("name: note", "name: sent_at_day")
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec(text, file="a.yaml")
    assert told in caught.value.message


def named(name: str, *, table: str = "canary", stream: str | None = None) -> IngestorSpec:
    text = GOOD.replace("  name: canary\nspec", f"  name: {name}\nspec").replace(
        "name: canary\n  schema", f"name: {table}\n  schema"
    )
    if stream:
        text = text.replace(f"  name: {name}\nspec", f"  name: {name}\n  stream: {stream}\nspec")
    return parse_spec(text, file=f"{name}.yaml")


@pytest.mark.parametrize(
    ("specs", "groups"),
    [
        ({"a": named("one"), "b": named("two", table="t2")}, {}),
        ({"a": named("one"), "b": named("two")}, {("a", "b"): "spec.table 'ops.canary' is written by two"}),
        (
            {"a": named("one"), "b": named("one", table="t2")},
            {("a", "b"): "metadata.name 'one' is used twice and stream 'one' is used twice"},
        ),
        (
            {"a": named("one"), "b": named("two", table="t2", stream="one")},
            {("a", "b"): "stream 'one' is used twice"},
        ),
        (
            {
                "c": named("one"),
                "b": named("two"),
                "a": named("two", table="t2"),
                "d": named("four", table="t4"),
            },
            {("a", "b", "c"): "metadata.name 'two' is used twice"},
        ),
    ],
)
def test_specs_that_want_the_same_are_found_as_a_group(specs: Any, groups: dict[tuple[str, ...], str]):
    for order in (specs, dict(reversed(specs.items()))):
        found = clashes(order)
        assert {c.files for c in found} == set(groups)
        assert all(groups[c.files] in c.about for c in found)


@pytest.mark.parametrize("holder", ["a", "b"])
def test_the_one_that_works_already_wins_whatever_its_file_is_called(holder: str):
    (clash,) = clashes({"a": named("one"), "b": named("two")})
    winner, errors = settle(clash, frozenset({holder}))
    (loser,) = {"a", "b"} - {holder}
    assert (winner, list(errors)) == (holder, [loser])
    assert errors[loser].message == (
        f"{loser}: spec.table 'ops.canary' is written by two; {holder} goes on, as its table holds its "
        f"stream already; change or remove this one. The other: {holder}"
    )


@pytest.mark.parametrize(
    ("holders", "told"), [(set(), "neither has begun"), ({"a", "b"}, "the tables of a, b hold their streams")]
)
def test_where_the_tables_do_not_tell_who_is_right_none_begins(holders: set[str], told: str):
    (clash,) = clashes({"a": named("one"), "b": named("two")})
    winner, errors = settle(clash, frozenset(holders))
    assert winner is None
    assert sorted(errors) == ["a", "b"]
    assert all(told in e.message for e in errors.values())


def test_a_stream_is_called_like_its_ingestor_unless_the_spec_says_else():
    assert named("one").stream == "one"
    assert named("one", stream="old").stream == "old"


def test_a_bad_file_does_not_stop_the_others(tmp_path):
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yml").write_text(GOOD.replace("kind", "knd"))
    (tmp_path / "latin.yaml").write_bytes(b"\xff\xfe")
    (tmp_path / "notes.txt").write_text("not a spec")
    loaded = load_specs(tmp_path)
    assert set(loaded.specs) == {"good.yaml"}
    assert set(loaded.errors) == {"bad.yml", "latin.yaml"}


def test_a_file_whose_name_is_no_text_stops_nothing_and_can_be_shown(tmp_path):
    """Stored as an owner, or shown as JSON, such a name would fail for all ingestors."""
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / os.fsdecode(b"b\xfcro.yaml")).write_text(GOOD.replace("canary", "other"))
    loaded = load_specs(tmp_path)
    assert (set(loaded.specs), loaded.files.invalid) == ({"good.yaml"}, {r"b\xfcro.yaml"})
    assert orjson.dumps(loaded.errors[r"b\xfcro.yaml"].message)
    assert "its name is not UTF-8; rename it" in loaded.errors[r"b\xfcro.yaml"].message


def test_a_missing_folder_names_the_setting(tmp_path):
    with pytest.raises(InvalidSettingError, match="TARN_SPECS_DIR"):
        load_specs(tmp_path / "none")


def test_a_date_in_an_avro_schema_is_named():
    avro = "format: avro, avro: {schema: {type: record, name: R, fields: [], doc: 2026-01-01}}"
    text = GOOD.replace("source:\n", f"source:\n    {avro.replace(', avro:', chr(10) + '    avro:')}\n")
    with pytest.raises(InvalidSpecError, match=r"spec\.source\.avro\.schema: .*date is not JSON.*in quotes"):
        parse_spec(text, file="f.yaml")


def test_a_key_of_an_anchor_may_be_said_once_more():
    text = "a: &x {k: 1, l: 2}\nb: {<<: *x, k: 3}\nc: {<<: *x, l: 4}"
    assert parse_document(text, file="f") == {
        "a": {"k": 1, "l": 2},
        "b": {"k": 3, "l": 2},
        "c": {"k": 1, "l": 4},
    }


def test_a_file_with_a_date_that_is_none_stops_only_its_own_ingestor(tmp_path):
    (tmp_path / "good.yaml").write_text(GOOD)
    (tmp_path / "bad.yaml").write_text(GOOD.replace("name: canary", "name: 2026-13-01", 1))
    loaded = load_specs(tmp_path)
    assert list(loaded.specs) == ["good.yaml"]
    assert "month must be in 1..12" in loaded.errors["bad.yaml"].message
