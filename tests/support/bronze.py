"""A bronze table as ingest leaves it, without ingest: rows with their trace, offset map in the summary."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa
from pyarrow import json as arrow_json

STREAM = "flights"
TABLE = "bronze.flight_events"
SOURCE = {"cluster": "test-cluster", "topic": "flight-events", "topic-id": "test-topic-id"}

_INSTANT = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("event_id", pa.string()),
        ("event", pa.string()),
        ("event_time", _INSTANT),
        ("produced_at", _INSTANT),
        ("time_hour", _INSTANT),
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("date", pa.date32()),
        ("sched_dep_time", pa.int32()),
        ("sched_arr_time", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("distance", pa.int32()),
        ("dep_time", pa.int32()),
        ("dep_delay", pa.int32()),
        ("arr_time", pa.int32()),
        ("arr_delay", pa.int32()),
        ("air_time", pa.int32()),
    ]
)
KINDS = frozenset({"scheduled", "departed", "arrived", "cancelled"})
TRACE = pa.struct(
    [("source", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("time", _INSTANT)]
)


class Record(Protocol):
    """A Kafka message as produced."""

    @property
    def key(self) -> bytes: ...
    @property
    def value(self) -> bytes: ...


@dataclass
class Log:
    """Fake of topic and ingest: assigns offsets, separates good from bad messages, keeps the offset map.

    An event of a kind not in `kinds` is bad, as the spec says; None accepts all, as an older spec did.
    """

    partitions: int = 4
    kinds: frozenset[str] | None = KINDS
    source: dict[str, str] = field(default_factory=lambda: dict(SOURCE))
    next: dict[int, int] = field(default_factory=dict)
    dead: int = 0

    def take(self, messages: Iterable[Record]) -> pa.Table:
        """The rows that bronze gets for these messages; bad ones advance the offsets too."""
        lines: list[bytes] = []
        trace: list[tuple[int, int]] = []
        for message in messages:
            partition = zlib.crc32(message.key) % self.partitions
            offset = self.next.get(partition, 0)
            self.next[partition] = offset + 1
            if _is_event(message.value, self.kinds):
                lines.append(message.value)
                trace.append((partition, offset))
            else:
                self.dead += 1
        now = datetime.now(UTC)
        struct = pa.StructArray.from_arrays(
            [
                pa.repeat(self.source["topic"], len(trace)),
                pa.array([p for p, _ in trace], pa.int32()),
                pa.array([o for _, o in trace], pa.int64()),
                pa.array([now] * len(trace), _INSTANT),
            ],
            fields=list(TRACE),
        )
        return _parse(lines).append_column("_tarn", struct)

    def map_json(self) -> str:
        """The offset map in the form that ingest writes."""
        return json.dumps({"v": 1, **self.source, "next": {str(p): o for p, o in sorted(self.next.items())}})


def append(lake: Any, log: Log, messages: Iterable[Record], *, create: bool = True) -> int:
    """Commit messages to bronze in one snapshot, rows and offset map together; returns the number of rows."""
    rows = log.take(messages)
    lake.ensure_namespaces(("bronze",))
    # Spark Connect cannot create a DataFrame from an empty Arrow table; the Iceberg table knows its columns.
    empty = rows.num_rows == 0
    frame = lake.spark.table(lake.name(TABLE)).limit(0) if empty else lake.spark.createDataFrame(rows)
    conf = f"spark.sql.iceberg.snapshot-property.tarn.offsets.{STREAM}"
    lake.spark.conf.set(conf, log.map_json())
    try:
        name = lake.name(TABLE)
        if lake.exists(TABLE):
            frame.writeTo(name).append()
        else:
            frame.writeTo(name).using("iceberg").tableProperty("format-version", "2").create()
    finally:
        lake.spark.conf.unset(conf)
    return rows.num_rows


def _parse(lines: list[bytes]) -> pa.Table:
    if not lines:
        return SCHEMA.empty_table()
    day = SCHEMA.get_field_index("date")
    as_text = SCHEMA.set(day, pa.field("date", pa.string()))  # Arrow's JSON reader has no dates
    rows = arrow_json.read_json(
        pa.py_buffer(b"\n".join(lines)),
        parse_options=arrow_json.ParseOptions(explicit_schema=as_text, unexpected_field_behavior="ignore"),
    )
    return rows.select(SCHEMA.names).cast(SCHEMA)


def _is_event(value: bytes, kinds: frozenset[str] | None) -> bool:
    try:
        event = json.loads(value)
        return (
            isinstance(event, dict)
            and (kinds is None or event.get("event") in kinds)
            and bool(event.get("event_id"))
            and isinstance(event["flight"], int)
            and event["carrier"] is not None
            and datetime.fromisoformat(event["event_time"]) is not None
        )
    except (ValueError, KeyError, TypeError):
        return False
