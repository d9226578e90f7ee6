"""`tarn init`: the spec drafted for a topic is valid and decodes its messages; what it lacks is named."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tarn.cli import draft as module
from tarn.cli import wiring
from tarn.cli.clients.kafka_topics import Message, TopicDetails
from tarn.cli.draft import Draft, draft, show
from tarn.cli.ports import Bounds
from tarn.core.errors import InvalidError
from tarn.core.spec import TOPIC_PATTERN, parse_spec
from tests.support.lake import Lake
from tests.unit.cli.test_topics import run

ORDERS: tuple[Any, ...] = (
    {"id": 1, "customer": {"name": "Ada", "tags": ["new"]}, "at": "2026-11-21T08:00:00Z", "no": "yes"},
    {"id": 2, "customer": {"name": "Grace"}, "at": "2026-11-21T08:00:01Z", "a key": 2.5},
    {"id": "three", "empty": None},
    "text",
)


def messages(*values: Any) -> list[Message]:
    return [
        Message(
            partition=0,
            offset=n,
            time_ms=0,
            key=None,
            value=v if isinstance(v, bytes | None) else json.dumps(v).encode(),
        )
        for n, v in enumerate(values)
    ]


def drafted(*values: Any, name: str | None = None, table: str | None = None) -> Draft:
    return draft("shop.orders", messages(*values), name=name, table=table)


def test_the_table_of_a_topic_with_capital_letters_has_small_ones() -> None:
    """Trino has every name in lower case, and found no such table."""
    found = draft("Shop.Orders-EU", messages(*ORDERS), name=None, table=None)
    assert (found.spec.topic, str(found.spec.spec.table)) == ("Shop.Orders-EU", "bronze.shop_orders_eu")
    named = draft("Shop.Orders", messages(*ORDERS), name=None, table="Own.Orders")
    assert str(named.spec.spec.table) == "Own.Orders"


def test_the_draft_is_a_spec_with_the_columns_of_the_messages() -> None:
    found = drafted(*ORDERS)
    assert parse_spec(found.text, file="orders.yaml") == found.spec
    body = found.spec.spec
    assert (found.spec.name, body.source.kafka.topic, str(body.table)) == (
        "shop-orders",
        "shop.orders",
        "bronze.shop_orders",
    )
    assert [(f.name, f.type, f.path) for f in body.columns.fields] == [
        ("id", "long", ("id",)),
        ("customer", "struct<name: string, tags: list<string>>", ("customer",)),
        ("at", "timestamptz", ("at",)),
        ("no", "string", ("no",)),
        ("a_key", "double", ("a key",)),
    ]
    assert "such as [day(at)]" in found.text
    assert [row["id"] for row in found.rows] == [1, 2]
    assert [reason for reason, _ in found.bad] == [
        "id: expected a whole number, found text 'three'",
        "the message is text 'text', not an object",
    ]


def test_what_the_user_sees_names_rows_bad_records_and_the_next_step() -> None:
    found, out = drafted(*ORDERS), io.StringIO()
    show(found, 4, Console(file=out, width=100))
    text = out.getvalue()
    assert "name': 'Ada'" in text or '"name": "Ada"' in text
    assert "(2 of the 2 rows that 4 messages give)" in text
    assert "1 of the messages would be bad records: id: expected a whole number" in text
    assert "'id': number in 2 values, text in 1: the latter would be bad records" in text
    assert "'empty': left out" in text
    assert "scripts/tarn apply -f shop-orders.yaml" in text


def test_only_the_first_rows_and_reasons_are_shown() -> None:
    wrong = [{"id": f"x{n}"} for n in range(9)]
    found, out = drafted(*({"id": n} for n in range(25)), *wrong), io.StringIO()
    show(found, 34, Console(file=out, width=100))
    assert out.getvalue().count("row ") == 10
    assert "(10 of the 25 rows that 34 messages give)" in out.getvalue()
    assert "and others, for 4 more reasons" in out.getvalue()


def test_a_sample_of_long_messages_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand messages of a megabyte are more than the container has."""
    monkeypatch.setattr(module, "SAMPLE_BYTES_MAX", 100)
    taken: list[int] = []

    def log() -> Iterator[Message]:
        for message in messages(*[b"x" * 30] * 20):
            taken.append(message.offset)
            yield message

    assert [m.offset for m in module.sampled(log(), 20)] == taken == [0, 1, 2, 3]
    assert len(list(module.sampled(log(), 2))) == 2
    assert len(list(module.sampled(iter(messages(*[None] * 20)), 20))) == 20


@pytest.mark.parametrize(
    "word",
    [
        "yes",
        "null",
        "1e3",
        "0x1",
        "2026",
        "a b",
        "a: b",
        "#x",
        "é",
        "-",
        "~",
        "\U0001f600",
        "\u2028",
        'a"b\\',
        "x" * 300,
    ],
)
def test_words_with_a_meaning_in_yaml_are_texts(word: str) -> None:
    held = yaml.safe_load(drafted({word: 1}).text)["spec"]["schema"]["fields"][0]
    assert held.get("from", held["name"]) == word


@pytest.mark.long
@given(topic=st.from_regex(TOPIC_PATTERN, fullmatch=True).filter(lambda t: t not in (".", "..")))
def test_any_topic_gives_valid_names(topic: str) -> None:
    found = draft(topic, messages({"a": 1}), name=None, table=None)
    assert found.spec.spec.source.kafka.topic == topic


def test_names_may_be_given() -> None:
    found = drafted({"a": 1}, name="mine", table="shop.eu.orders")
    assert (found.spec.name, str(found.spec.spec.table)) == ("mine", "shop.eu.orders")
    with pytest.raises(InvalidError, match=r"write namespace\.name"):
        drafted({"a": 1}, table="orders")
    with pytest.raises(InvalidError, match=r"the draft: metadata\.name"):
        drafted({"a": 1}, name="Not A Name")


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ((), "it has no messages yet"),
        ((b"junk", None, 1), "no message is a JSON object with a value"),
        (({"a": None},), "'a': left out, as every value is null or empty"),
        (({"m": {"k-0": True}}, {"m": {"k-1": 1}}), "shop.orders: m.'k-0': left out"),
    ],
)
def test_a_topic_without_columns_is_refused_with_what_to_do(values: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(InvalidError) as caught:
        drafted(*values)
    assert reason in str(caught.value)
    assert "scripts/tarn produce" in str(caught.value)


class Topics:
    """Topic `shop.orders` with two partitions of 600 messages and an empty one."""

    def __init__(self) -> None:
        self.asked: dict[int, int] = {}

    def details(self, topic: str) -> TopicDetails:
        bounds: Bounds = {0: (100, 700), 1: (0, 600), 2: (5, 5)}
        return TopicDetails(name=topic, topic_id="i", bounds=bounds, configs={})

    def consume(self, topic: str, positions: Mapping[int, int], *, follow: bool) -> Iterator[Message]:
        assert not follow
        self.asked = dict(positions)
        return iter(messages(*({"id": n} for n in range(1_200))))


def test_the_command_prints_nothing_but_the_spec_on_stdout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    held = Topics()
    monkeypatch.setattr(wiring, "topics", lambda _settings: held)
    assert run("init", "--from-topic", "shop.orders") == 0
    assert held.asked == {0: 200, 1: 100, 2: 5}, "the last half of the sample from each that has any"
    printed = capsys.readouterr()
    assert parse_spec(printed.out, file="x").name == "shop-orders"
    assert "(10 of the 1,000 rows that 1,000 messages give)" in printed.err
    assert run("init", "--from-topic", "shop.orders", "--sample", "2000") == 0
    assert held.asked == {0: 100, 1: 0, 2: 5}
    assert run("init", "--from-topic", "no topic") == 2


def test_a_draft_is_applied_where_every_message_of_the_sample_is_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    specs, woken = Lake().specs(), []
    monkeypatch.setattr(wiring, "specs", lambda _settings: specs)
    monkeypatch.setattr(wiring, "wake_ingest", lambda _settings: woken.append(1))
    held = Topics()
    monkeypatch.setattr(wiring, "topics", lambda _settings: held)
    assert run("init", "--from-topic", "shop.orders", "--apply") == 0
    printed = capsys.readouterr()
    assert "(10 of the 1,000 rows that 1,000 messages give)" in printed.err
    assert "save it as" not in printed.err
    assert "ingestor shop-orders created" in printed.err
    there = specs.get("shop-orders")
    assert there is not None
    assert there.spec == parse_spec(printed.out, file="x")
    assert woken == [1]

    def consume(topic: str, positions: Mapping[int, int], *, follow: bool) -> Iterator[Message]:
        return iter(messages({"number": 1}, {"number": 1}, b"junk"))

    monkeypatch.setattr(held, "consume", consume)
    assert run("init", "--from-topic", "shop.sales", "--apply") == 2
    assert "nothing is applied: 1 of the messages would be bad records" in capsys.readouterr().err
    assert set(specs.list()) == {"shop-orders"}


def test_a_draft_is_not_applied_in_place_of_another_ingestor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several topics give one name: `shop.tills`, `shop_tills`, `Shop.Tills`; and long ones are cut."""
    specs = Lake().specs()
    monkeypatch.setattr(wiring, "specs", lambda _settings: specs)
    monkeypatch.setattr(wiring, "wake_ingest", lambda _settings: None)
    monkeypatch.setattr(wiring, "topics", lambda _settings: Topics())
    assert run("init", "--from-topic", "shop.tills", "--sample", "5", "--apply") == 0
    made = specs.get("shop-tills")
    for topic in ("shop_tills", "Shop.Tills"):
        capsys.readouterr()
        assert run("init", "--from-topic", topic, "--sample", "5", "--apply") == 2
        printed = capsys.readouterr().err
        assert "there is an ingestor shop-tills, which brings shop.tills into bronze.shop_tills" in printed, (
            printed
        )
        assert f"for topic {topic} with --name and --table" in printed
    assert (
        run("init", "--from-topic", "shop.tills", "--table", "silver.tills", "--sample", "5", "--apply") == 2
    )
    assert specs.get("shop-tills") == made
    assert run("init", "--from-topic", "shop.tills", "--sample", "5", "--apply") == 0, (
        "the same topic and table"
    )
    other = ("--name", "tills-2", "--table", "bronze.tills_2")
    assert run("init", "--from-topic", "shop_tills", *other, "--sample", "5", "--apply") == 0
    assert set(specs.list()) == {"shop-tills", "tills-2"}
