"""The metrics of the service in the Prometheus text format."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate

from tarn.ingest.status import FRESHNESS_S, AuditStatus, State, StatusRegistry

_VALUES = (
    ("rows_total", "counter", "Rows committed since the process started.", lambda s: s.rows),
    (
        "bad_records_total",
        "counter",
        "Records sent to dead letters since the process started.",
        lambda s: s.bad_records,
    ),
    ("bytes_total", "counter", "Bytes of data files committed since the start.", lambda s: s.bytes),
    ("commits_total", "counter", "Batches committed since the process started.", lambda s: s.commits),
    (
        "snapshots_total",
        "counter",
        "Snapshots with these batches; one with batches of several readers counts for one of them.",
        lambda s: s.snapshots,
    ),
    ("events_total", "counter", "Events about complete partitions that were sent.", lambda s: s.events),
    (
        "events_failed_total",
        "counter",
        "Tries to send such events that failed.",
        lambda s: s.events_failed,
    ),
    ("retired_rows_total", "counter", "Rows dropped by age since the start.", lambda s: s.retired_rows),
    ("retired_files_total", "counter", "Data files dropped with them.", lambda s: s.retired_files),
    ("merges_total", "counter", "Commits that merged small files since the start.", lambda s: s.merges),
    (
        "conflicts_total",
        "counter",
        "Commit requests refused because another writer had committed.",
        lambda s: s.conflicts,
    ),
    ("unknown_outcomes_total", "counter", "Commit requests without a usable answer.", lambda s: s.unknowns),
    (
        "unknown_outcomes_resolved_total",
        "counter",
        "Commit requests without a usable answer whose outcome was found out.",
        lambda s: s.resolved,
    ),
    ("retries_total", "counter", "Commit requests sent again, changed or not.", lambda s: s.retries),
    (
        "lag_offsets",
        "gauge",
        "Offsets between the log's end and the table; absent while that is not known.",
        lambda s: s.lag,
    ),
    ("last_commit_seconds", "gauge", "Duration of the last commit.", lambda s: s.commit_ms / 1_000),
    ("running", "gauge", "1 while the ingestor runs.", lambda s: int(s.state is State.RUNNING)),
    ("ready_replicas", "gauge", "Readers of the ingestor that run.", lambda s: s.ready),
    (
        "table_data_files",
        "gauge",
        "Data files of the table after the last commit.",
        lambda s: s.figures and s.figures.files,
    ),
    ("table_bytes", "gauge", "Bytes of the table's data files.", lambda s: s.figures and s.figures.bytes),
    (
        "table_snapshots",
        "gauge",
        "Snapshots of the table after the last commit.",
        lambda s: s.figures and s.figures.snapshots,
    ),
    (
        "table_manifests",
        "gauge",
        "Manifests of the table's snapshot after the last commit.",
        lambda s: s.figures and s.figures.manifests,
    ),
    (
        "table_metadata_bytes",
        "gauge",
        "Bytes of the table's metadata, manifest list and manifests after the last commit.",
        lambda s: s.figures and s.figures.metadata_bytes,
    ),
    (
        "watermark_timestamp_seconds",
        "gauge",
        "The stream's watermark, in seconds since the epoch; absent while it is not known.",
        lambda s: None if s.watermark_us is None else s.watermark_us / 1_000_000,
    ),
    (
        "complete_through_timestamp_seconds",
        "gauge",
        "The watermark, floored to the table's partitions; absent if they are not by event time.",
        lambda s: None if s.complete_us is None else s.complete_us // 1_000_000,
    ),
)
_AUDITS: tuple[tuple[str, str, str, Callable[[AuditStatus], float]], ...] = (
    (
        "missing_offsets",
        "gauge",
        "Offsets without row or dead letter that had a record.",
        lambda a: a.missing,
    ),
    ("doubled_offsets", "gauge", "Offsets with more than one row.", lambda a: a.doubled),
    ("unknown_offsets", "gauge", "Offsets without a row that the log cannot explain.", lambda a: a.unknown),
    ("foreign_streams", "gauge", "Further streams over a topic of the table.", lambda a: a.foreign),
    ("findings", "gauge", "Findings that are damage.", lambda a: len(a.findings)),
    ("timestamp_seconds", "gauge", "End of the last audit that was finished.", lambda a: a.at_ms / 1_000),
    (
        "all_files_timestamp_seconds",
        "gauge",
        "End of the last audit that read every file.",
        lambda a: a.whole_at_ms / 1_000,
    ),
    ("duration_seconds", "gauge", "Duration of the last audit that was finished.", lambda a: a.seconds),
)
_FRESHNESS = "Age of a batch's oldest record, by its time in the log, when its commit was done."


def to_metrics(registry: StatusRegistry) -> str:
    """The metrics of all ingestors."""
    lines = []
    statuses = {
        f'ingestor="{_label(name)}",table="{_label(status.table)}"': status
        for name, status in registry.ingestors().items()
    }
    for name, kind, help_text, read in _VALUES:
        lines += _head(name, kind, help_text)
        for labels, status in statuses.items():
            value = read(status)
            if value is not None:
                lines.append(f"tarn_ingest_{name}{{{labels}}} {value}")
    audits = {f'table="{_label(table)}"': found for table, found in registry.audits().items()}
    for name, kind, help_text, measure in _AUDITS:
        lines += _head(f"audit_{name}", kind, help_text)
        lines += [f"tarn_ingest_audit_{name}{{{at}}} {measure(a)}" for at, a in audits.items() if a.at_ms]
    lines += _head("audit_failures_total", "counter", "Audits that were not finished since the start.")
    lines += [f"tarn_ingest_audit_failures_total{{{at}}} {a.failures}" for at, a in audits.items()]
    lines += _head("freshness_seconds", "histogram", _FRESHNESS)
    for labels, status in statuses.items():
        name = "tarn_ingest_freshness_seconds"
        bounds = [str(bound) for bound in FRESHNESS_S] + ["+Inf"]
        sums = list(accumulate(status.freshness.counts))
        lines += [f'{name}_bucket{{{labels},le="{b}"}} {n}' for b, n in zip(bounds, sums, strict=True)]
        lines += [f"{name}_sum{{{labels}}} {status.freshness.sum_s}", f"{name}_count{{{labels}}} {sums[-1]}"]
    return "\n".join(lines) + "\n"


def _label(value: str) -> str:
    """The value of a label as the format has it: a refused file has the name that somebody gave it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _head(name: str, kind: str, help_text: str) -> list[str]:
    return [f"# HELP tarn_ingest_{name} {help_text}", f"# TYPE tarn_ingest_{name} {kind}"]
