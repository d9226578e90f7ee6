"""Credentials that principals lend to ingest, in the object store: the cli writes them, ingest reads them."""

from __future__ import annotations

from dataclasses import dataclass

from tarn.core.control.lent import credential_key, from_bytes, to_bytes
from tarn.core.errors import UnauthenticatedError
from tarn.core.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class LentCredentials:
    """Lent credentials over an object store.

    Args:
        store: the object store.
    """

    store: ObjectStore

    def put(self, principal: str, credential: str | None) -> None:
        """Lend a credential, or take it back with None. Raises what a write to the store does."""
        self.store.put(credential_key(principal), to_bytes(credential))

    def get(self, principal: str) -> str:
        """The credential of a principal, as `client_id:client_secret`.

        Raises:
            UnauthenticatedError: none is lent.
            CorruptStateError: the object is unreadable.
            UnavailableError: the store does not respond.
        """
        stored = self.store.get(credential_key(principal))
        found = None if stored is None else from_bytes(stored.data, principal=principal)
        if found is None:
            raise UnauthenticatedError(
                f"runAs is {principal!r}, and ingest has no credential of that principal; lend it with "
                f"scripts/tarn principal lend {principal}, which reads client_id:client_secret",
                principal=principal,
            )
        return found
