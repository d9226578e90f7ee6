"""Whether a spec may be applied beside the others. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tarn.core.errors import AlreadyExistsError, InvalidSpecError
from tarn.core.log_claims import TOPIC_PREFIX as LOG_PREFIX
from tarn.core.services import WORKSHOP
from tarn.core.spec import DeadLetters, FieldMapping, IngestorSpec, TableRef


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


def require_room(
    spec: IngestorSpec, others: Mapping[str, IngestorSpec], *, file: str, ending: Collection[str] = ()
) -> None:
    """Require that no other ingestor has the spec's stream or table.

    A table may have two: one for topics, and one for its log (docs/gateway.md).

    Args:
        spec: the spec to be applied.
        others: label to spec of each other ingestor.
        file: what messages call the spec.
        ending: names of those that are being deleted.

    Raises:
        InvalidSpecError: one has; names the field, the value, the ingestor and what to do.
        AlreadyExistsError: one has, whose writers end now.
    """
    for label, other in sorted(others.items()):
        if other.name == spec.name:
            continue
        same_table = str(other.spec.table) == str(spec.spec.table) and bool(
            other.spec.source.kafka.fills & spec.spec.source.kafka.fills
        )
        same_source = other.spec.source.kafka == spec.spec.source.kafka
        if other.name in ending and (same_table or other.stream == spec.stream):
            raise AlreadyExistsError(
                f"{file}: {label} ({other.name}), which is being deleted, has spec.table "
                f"{str(other.spec.table)!r} and stream {other.stream!r} until its writers have ended: apply "
                f"the spec again in a few seconds; scripts/tarn delete {other.name} --wait 60 awaits that",
                name=other.name,
            )
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
                f"already from {other.spec.source.kafka}; choose another table{_or_topics(other)}",
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


def _or_topics(other: IngestorSpec) -> str:
    """What else than another table there is: an ingestor of one topic stays one."""
    if other.spec.source.kafka.topics is None:
        return ""
    return f", or add the topic to spec.source.kafka.topics of {other.name}"


def require_columns_of_log(spec: IngestorSpec, *, file: str) -> None:
    """Require that an ingestor of a table's log says nothing of columns, which are the table's.

    Raises:
        InvalidSpecError: it does; names the field and what to do.
    """
    body = spec.spec
    if "rows" in body.source.kafka.fills:
        return
    given = {
        "spec.schema": body.columns is not None,
        "spec.mapping": body.mapping != FieldMapping(),
        "spec.source.format": body.source.format != "json",
    }
    for field, there in given.items():
        if there:
            raise InvalidSpecError(
                f"{file}: {field} is for other messages: {body.source.kafka} has rows of the gateway, which "
                "are JSON with the table's own columns; leave it out, as scripts/tarn log "
                f"{body.table} does",
                file=file,
                field=field,
            )


def require_workshop(spec: IngestorSpec, *, file: str) -> None:
    """Require that an ingestor with a name of the workshop takes and fills only what is the workshop's.

    Whoever may write such specs (the store's policies decide by their names) may write no other ones, and
    ingest, which carries them out, may do everything. So what they may say is decided here.

    Args:
        spec: the spec to be applied, or to be run.
        file: what messages call it.

    Raises:
        InvalidSpecError: it takes or fills something else; names field, value and what is allowed.
    """
    if not spec.name.startswith(WORKSHOP.ingestors):
        return
    body = spec.spec
    source = body.source.kafka
    tables: list[tuple[str, TableRef]] = [("spec.table", body.table)]
    if body.dead_letters.table != DeadLetters().table:
        tables.append(("spec.deadLetters.table", body.dead_letters.table))
    wrong = [
        (field, str(table), f"a table in a namespace that begins with {WORKSHOP.namespaces!r}")
        for field, table in tables
        if not table.namespace.startswith(WORKSHOP.namespaces)
    ]
    if source.topic_pattern is not None:
        wrong.append(("spec.source.kafka.topicPattern", source.topic_pattern, "topics by their names"))
    wrong += [
        ("spec.source.kafka", topic, f"topics that begin with {WORKSHOP.topics!r}, or the log of a table")
        for topic in source.names
        if not topic.startswith((WORKSHOP.topics, LOG_PREFIX))
    ]
    if not spec.stream.startswith(WORKSHOP.ingestors):
        wrong.append(("metadata.stream", spec.stream, f"a name that begins with {WORKSHOP.ingestors!r}"))
    if body.run_as is not None:
        wrong.append(("spec.runAs", body.run_as, "no other principal"))
    if body.event_time is not None and body.event_time.complete_topic is not None:
        wrong.append(("spec.eventTime.completeTopic", body.event_time.complete_topic, "no announcements"))
    if wrong:
        field, value, allowed = wrong[0]
        raise InvalidSpecError(
            f"{file}: {field} is {value!r}, and {spec.name} is an ingestor of the workshop: its name begins "
            f"with {WORKSHOP.ingestors!r}, so it may have {allowed}",
            file=file,
            field=field,
        )
