"""The student's ingestors: declared, watched and deleted as `scripts/tarn apply` and its like do it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from typing import Any

import yaml

from tarn.adapters.spec_store import SpecStore
from tarn.core.control.admission import require_workshop
from tarn.core.control.declared import HAND, Declared, Stamp, applied, deleted
from tarn.core.errors import InvalidSpecError, NotFoundError, UnavailableError
from tarn.core.object_store import ObjectStore
from tarn.core.services import WORKSHOP
from tarn.core.spec import parse_document, spec_of
from tarn.workshop.web import Web

SHOWN_AS = "your spec"


class Ingestors:
    """Declared ingestors of the workshop.

    Args:
        store: the object store, with the notebook's keys.
        web: ingest's port.
    """

    def __init__(self, store: ObjectStore, web: Web) -> None:
        self._specs = SpecStore(
            store, now_ms=lambda: int(time.time() * 1_000), new_id=lambda: uuid.uuid4().hex
        )
        self._web = web

    def apply(self, spec: str | Mapping[str, Any]) -> str:
        """Create an ingestor, or change it to what a spec says; return its name.

        Args:
            spec: the spec, as YAML or as the mapping that YAML would give.

        Raises:
            InvalidSpecError: the spec is invalid, or not one that a notebook may declare.
            AlreadyExistsError: the ingestor is being deleted.
            UnavailableError, OutcomeUnknownError: the store does not take it.
        """
        document = dict(parse_document(spec, file=SHOWN_AS)) if isinstance(spec, str) else dict(spec)
        parsed = spec_of(document, file=SHOWN_AS)
        if not parsed.name.startswith(WORKSHOP.ingestors):
            raise InvalidSpecError(
                f"{SHOWN_AS}: metadata.name is {parsed.name!r}; a notebook declares ingestors whose names "
                f'begin with {WORKSHOP.ingestors!r}, as lab.ingestor("orders") makes them',
                file=SHOWN_AS,
            )
        require_workshop(parsed, file=SHOWN_AS)

        def make(found: Declared | None, stamp: Stamp) -> Declared:
            return applied(found, document, file=SHOWN_AS, owner=HAND, stamp=stamp)

        self._specs.change(parsed.name, make)
        self._wake()
        return parsed.name

    def delete(self, name: str) -> bool:
        """Request the deletion of an ingestor; False if there is none.

        Raises:
            UnavailableError, OutcomeUnknownError: the store does not take it.
        """

        def make(found: Declared | None, stamp: Stamp) -> Declared:
            if found is None or found.gone:
                raise NotFoundError(f"there is no ingestor {name}")
            return deleted(found, stamp=stamp)

        try:
            if self.gone(name):
                return False
            self._specs.change(name, make)
        except NotFoundError:
            return False
        self._wake()
        return True

    def topics(self, name: str) -> tuple[str, ...]:
        """Topics that an ingestor's spec names; none if there is no such ingestor.

        Raises:
            UnavailableError: the store does not respond.
        """
        found = self._specs.get(name)
        if found is None or found.gone:
            return ()
        return tuple(spec_of(dict(found.document), file=name).spec.source.kafka.names)

    def gone(self, name: str) -> bool:
        """Whether there is no ingestor of this name, or it has ended.

        Raises:
            UnavailableError: the store does not respond.
        """
        found = self._specs.get(name)
        return found is None or found.gone

    def status(self, name: str) -> Mapping[str, Any]:
        """What ingest says of an ingestor.

        Raises:
            NotFoundError: it knows of none.
            UnavailableError: it does not answer.
        """
        found: Mapping[str, Any] = self._web.get(f"v1/ingestors/{name}")
        return found

    def _wake(self) -> None:
        try:
            self._web.post("wake")
        except UnavailableError:
            return  # it looks every two seconds by itself


def to_yaml(document: Mapping[str, Any]) -> str:
    """A spec as its author would write it."""
    text: str = yaml.safe_dump(dict(document), sort_keys=False)
    return text
