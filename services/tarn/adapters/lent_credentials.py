"""Credentials that principals lend to ingest, in the object store: the cli writes them, ingest reads them."""

from __future__ import annotations

from dataclasses import dataclass

from tarn.core.control.lent import credential_key, from_bytes, to_bytes
from tarn.core.errors import NotFoundError, UnauthenticatedError
from tarn.core.object_store import ObjectStore, StoreRefusedError


@dataclass(frozen=True, slots=True)
class LentCredentials:
    """Lent credentials over an object store.

    Args:
        store: the object store.
    """

    store: ObjectStore

    def put(self, principal: str, credential: str) -> None:
        """Lend a credential. Raises what a write to the store does."""
        self.store.put(credential_key(principal), to_bytes(credential))

    def take_back(self, principal: str) -> None:
        """Take a credential back; repeating that is allowed. Raises also what a write to the store does.

        Raises:
            NotFoundError: none was ever lent.
        """
        key = credential_key(principal)
        try:
            # Who takes back may not read, so the store's condition says whether there is something.
            self.store.put(key, to_bytes(None), if_absent=True)
        except StoreRefusedError:
            self.store.put(key, to_bytes(None))
            return
        raise NotFoundError(
            f"ingest was lent no credential of {principal!r}, so nothing was taken back; runAs in the "
            "specs says whose it has (scripts/tarn get NAME --yaml)",
            principal=principal,
        )

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
