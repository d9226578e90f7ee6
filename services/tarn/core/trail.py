"""The trail: what the catalog did, as logs of immutable objects that ingest turns into tables. Pure.

A log is read as a topic with one partition. Its segments are objects of lines of JSON, numbered without gaps;
line `i` of segment `n` has the offset `n * LINES_MAX + i`. A segment is written if absent, and only by who
knows that the one before exists: all replicas of the catalog write one log, and no line appears before one
that was read.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "trail/v1/"
TOPIC_PREFIX = "_tarn_trail."
"""Topics of this prefix are logs of the trail; Kafka reserves names that begin with an underscore."""
LINES_MAX = 4_096
"""Lines of a segment, at most: what is between two segments' offsets is never used."""
_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TrailLog:
    """One log of the trail.

    Attributes:
        name: its name, in keys and as a topic.
        table: name of its table, in the namespace `ops`.
        kept: how long its table keeps rows, as in a spec.
    """

    name: str
    table: str
    kept: str

    @property
    def topic(self) -> str:
        """Name of the log as a topic."""
        return f"{TOPIC_PREFIX}{self.name}"

    @property
    def prefix(self) -> str:
        """Key prefix of its segments."""
        return f"{PREFIX}{self.name}/segments/"

    @property
    def start_key(self) -> str:
        """Key of the object with the number of its first segment ever."""
        return f"{PREFIX}{self.name}/start"

    def key(self, segment: int) -> str:
        """Key of a segment."""
        return f"{self.prefix}{segment:0{_DIGITS}}.ndjson"

    def segment_of(self, key: str) -> int | None:
        """Number of the segment with a key; None for a key of another form."""
        number = key.removeprefix(self.prefix).removesuffix(".ndjson")
        return int(number) if self.prefix + number + ".ndjson" == key and number.isdecimal() else None


NAMESPACE = "ops"
AUDIT = TrailLog(name="audit", table="audit", kept="90d")
METRICS = TrailLog(name="metrics", table="metrics", kept="30d")
LOGS = (AUDIT, METRICS)
TABLES = frozenset((NAMESPACE, log.table) for log in LOGS)
"""Names of the tables: commits to them are not in the trail, or each would cause the next."""

_COLUMNS = {
    AUDIT: """
      - {name: event_id, type: string, required: true}
      - {name: at, type: timestamptz, required: true}
      - {name: principal, type: string}
      - {name: client_id, type: string}
      - {name: action, type: string}
      - {name: object, type: string}
      - {name: outcome, type: string}
      - {name: error, type: string}
      - {name: details, type: string, encoding: json}""",
    METRICS: """
      - {name: event_id, type: string, required: true}
      - {name: at, type: timestamptz, required: true}
      - {name: principal, type: string}
      - {name: table_name, type: string}
      - {name: report_type, type: string}
      - {name: snapshot_id, type: long}
      - {name: report_bytes, type: long}
      - {name: report, type: string, encoding: json}""",
}


def spec_text(log: TrailLog) -> str:
    """Return the spec of the ingestor that turns a log into its table, as YAML."""
    return f"""
apiVersion: tarn/v1
kind: Ingestor
metadata:
  name: tarn-{log.name}
spec:
  source:
    kafka: {{topic: {log.topic}}}
  table: {{namespace: {NAMESPACE}, name: {log.table}, partitioning: ["day(at)"]}}
  schema:
    fields:{_COLUMNS[log]}
  batching: {{maxLatencySeconds: 1}}
  retention: {{age: {log.kept}, column: at}}
"""
