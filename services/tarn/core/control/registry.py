"""Interface of the registry of declared ingestors; `tarn.adapters.spec_store` implements it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tarn.core.control.declared import Declared, Stamp
from tarn.core.errors import CorruptStateError


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecEntry:
    """One object of the registry.

    Attributes:
        name: name of the ingestor.
        etag: entity tag.
        declared: the object; None if it is unreadable.
        error: why it is unreadable.
    """

    name: str
    etag: str
    declared: Declared | None = None
    error: CorruptStateError | None = None


class SpecRegistry(Protocol):
    """Declared ingestors, and their status."""

    def list(self, known: dict[str, SpecEntry] | None = None) -> dict[str, SpecEntry]:
        """Return every object by the name of its ingestor, tombstones and unreadable ones too.

        Args:
            known: an earlier result; what is still current is not read again.

        Raises:
            UnavailableError: the store does not respond.
            ForbiddenError: the credentials may not read it.
        """

    def get(self, name: str) -> Declared | None:
        """Return the object of an ingestor; None if there is none. Tombstones are returned.

        Raises:
            CorruptStateError: it is unreadable.
            UnavailableError, ForbiddenError: as `list`.
        """

    def change(
        self, name: str, make: Callable[[Declared | None, Stamp], Declared], *, replace: bool = False
    ) -> Declared:
        """Change an object, whoever else changes it meanwhile; returns what is stored then.

        Args:
            name: name of the ingestor.
            make: makes the new object from the one there is; called again if that has changed meanwhile. The
                same object as it was given: nothing is written. What it raises is raised here.
            replace: give `make` None for an object that is unreadable.

        Raises:
            NotFoundError: no ingestor can have this name.
            OutcomeUnknownError: the store did not settle the write; repeating the call does.
            CorruptStateError: the object is unreadable.
            UnavailableError, ForbiddenError: as `list`.
        """

    def finalize(self, name: str, uid: str) -> None:
        """Make an object whose deletion was requested a tombstone, unless its uid is another.

        Raises as `change`.
        """

    def put_status(self, name: str, data: bytes) -> None:
        """Write the status of an ingestor. Raises what a write to the store does."""

    def status(self, name: str) -> bytes | None:
        """Return the status of an ingestor; None if there is none. Raises as `get`."""
