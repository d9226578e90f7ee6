"""Whether a spec may be applied beside the others. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from tarn.core.errors import InvalidSpecError
from tarn.core.spec import IngestorSpec


def require_own_name(name: str, built_in: Mapping[str, IngestorSpec], *, file: str) -> None:
    """Require that the name is not that of an ingestor that is part of Tarn.

    Args:
        name: name of the ingestor.
        built_in: label to spec of those that are part of Tarn.
        file: what messages call the spec.

    Raises:
        InvalidSpecError: it is.
    """
    for label, spec in built_in.items():
        if spec.name == name:
            raise InvalidSpecError(
                f"{file}: metadata.name is {name!r}, the name of Tarn's own ingestor ({label}), which runs "
                "on; choose another name",
                file=file,
                other=name,
            )


def require_room(spec: IngestorSpec, others: Mapping[str, IngestorSpec], *, file: str) -> None:
    """Require that no other ingestor has the spec's stream or table.

    Args:
        spec: the spec to be applied.
        others: label to spec of each other ingestor.
        file: what messages call the spec.

    Raises:
        InvalidSpecError: one has; names the field, the value, the ingestor and what to do.
    """
    for label, other in sorted(others.items()):
        if other.name == spec.name:
            continue
        same_table = str(other.spec.table) == str(spec.spec.table)
        same_source = other.spec.source.kafka == spec.spec.source.kafka
        if same_table and same_source:
            raise InvalidSpecError(
                f"{file}: metadata.name is {spec.name!r}, and {label} ({other.name}) brings "
                f"{spec.spec.source.kafka} into spec.table {str(spec.spec.table)!r} already: each row would "
                f"come twice. To rename it, delete it first (scripts/tarn delete {other.name}) and apply "
                f"this spec with metadata.stream: {other.stream}, under which the table keeps its offsets; "
                "otherwise choose another table",
                file=file,
                other=other.name,
            )
        if same_table:
            raise InvalidSpecError(
                f"{file}: spec.table is {str(spec.spec.table)!r}, which {label} ({other.name}) writes "
                f"already from {other.spec.source.kafka}; choose another table, or one ingestor with "
                "spec.source.kafka.topics",
                file=file,
                other=other.name,
            )
        if other.stream == spec.stream:
            raise InvalidSpecError(
                f"{file}: metadata.stream is {spec.stream!r}, which {label} ({other.name}) has already; "
                "choose another stream",
                file=file,
                other=other.name,
            )
