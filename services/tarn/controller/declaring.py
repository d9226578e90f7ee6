"""Declared ingestors as the command line and the test kit see and change them: apply, delete, status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tarn.core.control.admission import require_columns_of_log, require_own_name, require_room
from tarn.core.control.declared import HAND, Declared, Stamp, applied, deleted, status_key
from tarn.core.control.registry import SpecRegistry
from tarn.core.control.report import parse_report
from tarn.core.errors import CorruptStateError, InvalidSpecError, NotFoundError
from tarn.core.spec import IngestorSpec, parse_spec, spec_of
from tarn.core.trail import LOGS, spec_text

IN_PROGRESS = ("Starting", "Updating", "Restarting", "NotSeen", "NoTopic")
"""Reasons of a condition `Ready` that pass by themselves, within seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A declared ingestor with its status.

    Attributes:
        declared: the object.
        status: its status, as JSON types; None while ingest has not written one of this creation of it.
    """

    declared: Declared
    status: Mapping[str, Any] | None

    @property
    def ready(self) -> Mapping[str, Any]:
        """The condition `Ready`; one of its own while ingest has not seen this version of the spec."""
        status, there = self.status, self.declared
        if status is None or status["observedGeneration"] != there.generation:
            seen = "nothing of it" if status is None else f"generation {status['observedGeneration']}"
            return {
                "type": "Ready",
                "status": False,
                "reason": "NotSeen",
                "message": f"ingest has seen {seen}, and this is generation {there.generation}; "
                "scripts/tarn status shows whether ingest runs",
                "sinceMs": there.changed_ms,
            }
        found: Mapping[str, Any] = next(one for one in status["conditions"] if one["type"] == "Ready")
        return found

    def to_json(self) -> dict[str, Any]:
        """Spec, metadata and status as JSON types."""
        there = self.declared
        return {
            **there.document,
            "metadata": {
                **(there.document.get("metadata") or {"name": there.name}),
                "uid": there.uid,
                "generation": there.generation,
                "owner": there.owner,
                "createdMs": there.created_ms,
                "changedMs": there.changed_ms,
                "deletingMs": there.deleting_ms,
            },
            "status": self.status,
        }


def put(
    specs: SpecRegistry, document: Mapping[str, Any], shown: str, take_over: bool, replace: bool = False
) -> tuple[Declared, str]:
    """Apply a spec; returns the object, and what happened in one word.

    Raises:
        InvalidSpecError: the spec is invalid, or excludes another one.
        AlreadyExistsError: it belongs to a file; or it, or one that it excludes, is being deleted.
        UnavailableError, OutcomeUnknownError: the store does not take it.
    """
    spec = spec_of(document, file=shown)
    require_own_name(spec.name, _built_in(), file=shown)
    require_columns_of_log(spec, file=shown)
    others, ending = _others(specs)
    require_room(spec, others, file=shown, ending=ending)
    before: list[Declared | None] = []

    def make(found: Declared | None, stamp: Stamp) -> Declared:
        before.append(found)
        return applied(found, document, file=shown, owner=HAND, stamp=stamp, take_over=take_over)

    made = specs.change(spec.name, make, replace=replace)
    there = before[0]
    if there is None or there.gone:
        return made, "created"
    return made, "changed" if made.generation != there.generation else "unchanged"


def request_deletion(specs: SpecRegistry, name: str) -> Declared:
    """Request the deletion of an ingestor; returns its object.

    Raises:
        NotFoundError: there is none of this name.
        UnavailableError, OutcomeUnknownError: the store does not take it.
    """
    asked: set[str] = set()

    def make(found: Declared | None, stamp: Stamp) -> Declared:
        if found is None:
            raise NotFoundError(f"there is no ingestor {name}; scripts/tarn get lists those that there are")
        if asked and (found.gone or found.uid not in asked):
            return found  # the first request arrived, and what is there now was declared since
        asked.add(found.uid)
        return deleted(found, stamp=stamp)

    return specs.change(name, make)


def gone(specs: SpecRegistry, name: str) -> bool:
    """Whether no ingestor has this name, and the writers of a deleted one have ended."""
    there = specs.get(name)
    return there is None or there.gone


def one(specs: SpecRegistry, name: str) -> Shown:
    """A declared ingestor.

    Raises:
        NotFoundError: there is none of this name.
        CorruptStateError: its object is unreadable.
    """
    there = specs.get(name)
    if there is None or there.gone:
        raise NotFoundError(f"there is no ingestor {name}; scripts/tarn get lists those that there are")
    return _with_status(specs, there)


def everything(specs: SpecRegistry) -> list[Shown]:
    """All declared ingestors by name; those whose object is unreadable are left to `describe`."""
    entries = specs.list()
    found = [entry.declared for _, entry in sorted(entries.items()) if entry.declared is not None]
    return [_with_status(specs, each) for each in found if not each.gone]


def unreadable(specs: SpecRegistry) -> list[str]:
    """Why an object is no ingestor, of each that is none; its writers run on."""
    return [entry.error.message for entry in specs.list().values() if entry.error is not None]


def _built_in() -> dict[str, IngestorSpec]:
    """Label to spec of what is part of Tarn."""
    labels = {f"built-in {log.name}": log for log in LOGS}
    return {label: parse_spec(spec_text(log), file=label) for label, log in labels.items()}


def _others(specs: SpecRegistry) -> tuple[dict[str, IngestorSpec], set[str]]:
    """Label to spec of everything that is declared, and of what is part of Tarn; and who is being deleted."""
    found, ending = _built_in(), set[str]()
    for entry in specs.list().values():
        if entry.declared is not None and not entry.declared.gone:
            try:
                found[entry.declared.label] = entry.declared.spec
            except InvalidSpecError:
                continue  # it is not run, so it is in nobody's way
            if entry.declared.deleting:
                ending.add(entry.declared.name)
    return found, ending


def _with_status(specs: SpecRegistry, there: Declared) -> Shown:
    data = specs.status(there.name)
    try:
        status = None if data is None else parse_report(data, key=status_key(there.name))
    except CorruptStateError:
        status = None
    return Shown(declared=there, status=status if status is not None and status["uid"] == there.uid else None)
