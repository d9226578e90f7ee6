"""docs/first-stream.md: its spec is valid, and its messages become the promised row and dead letter."""

from __future__ import annotations

import datetime
import decimal

from tarn.core.batch import RawBatch
from tarn.core.decode import Decoder
from tarn.core.spec import parse_spec
from tests.support.documents import blocks
from tests.support.pages import text_of

BLOCKS = list(blocks(text_of("docs/first-stream.md")))


def written(file: str) -> str:
    """The text that a block writes to a file."""
    (found,) = [one.text for one in BLOCKS if one.text.startswith(f"cat > {file} <<'END'\n")]
    return found.partition("\n")[2].removesuffix("END\n")


def test_the_messages_become_a_row_and_a_dead_letter() -> None:
    spec = parse_spec(written("orders.yaml"), file="orders.yaml").spec
    values: list[bytes | None] = [line.encode() for line in written("orders.json").splitlines()]
    batch = RawBatch(
        partitions=[0] * len(values),
        offsets=list(range(len(values))),
        times_ms=[0] * len(values),
        keys=[None] * len(values),
        values=values,
        ranges=(),
    )
    decoder = Decoder(
        spec.columns.fields, source=spec.source.kafka.topic, trace=spec.trace, record_bytes_max=10_000
    )
    decoded = decoder.decode(batch)
    (row,) = decoded.rows.drop_columns("_tarn").to_pylist()
    assert row == {
        "id": 1,
        "customer": "Ada",
        "amount": decimal.Decimal("12.50"),
        "ordered_at": datetime.datetime(2026, 11, 21, 8, tzinfo=datetime.UTC),
    }
    assert list(decoded.bad) == [1]


def test_the_commands_use_the_topic_and_the_tables_of_the_spec() -> None:
    spec = parse_spec(written("orders.yaml"), file="orders.yaml").spec
    commands = text_of("docs/first-stream.md")
    assert f"scripts/tarn produce {spec.source.kafka.topic} < orders.json\n" in commands
    assert f"scripts/tarn consume {spec.source.kafka.topic}\n" in commands
    assert f"`scripts/tarn init --from-topic {spec.source.kafka.topic}`" in commands
    assert f"FROM {spec.table} " in commands.replace('"\n', " \n")
    assert f"FROM {spec.dead_letters.table} " in commands
