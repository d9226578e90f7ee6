"""The catalog without a transport, used by the HTTP routes and by the embedded catalog."""

from __future__ import annotations

from collections.abc import Callable

from tarn.core.naming import WarehouseLayout
from tarn.core.object_store import ObjectStore
from tarn_catalog.operations.access import MAX_AGE_S, Access
from tarn_catalog.operations.health import Health
from tarn_catalog.operations.multi_table_commit import MultiTableCommit
from tarn_catalog.operations.namespaces import Namespaces
from tarn_catalog.operations.rename_register_purge import Names
from tarn_catalog.operations.tables import Tables
from tarn_catalog.operations.trail import Trail
from tarn_catalog.operations.vending import Vending
from tarn_catalog.operations.views import Views
from tarn_catalog.state.context import CatalogContext
from tarn_catalog.state.register import RetryPolicy
from tarn_catalog.state.transactions import INTENT_WAIT_MS, Transactions


class Catalog:
    """All operations over one store; in memory it keeps only caches.

    Args:
        store: the object store that holds all state.
        roots: the mapping between keys and locations.
        patience: retry policy of register writes.
        now_ms: wall clock, milliseconds since the epoch.
        intent_wait_ms: milliseconds that an intent must stay unchanged before another writer aborts it.
        grants_max_age_s: how old the grants that a request is checked against may be, seconds.
        vending: vends store keys to clients; None: they bring their own.
        trail: keeps the audit trail and metrics reports; None: they are not kept.
    """

    def __init__(
        self,
        store: ObjectStore,
        roots: WarehouseLayout,
        *,
        patience: RetryPolicy | None = None,
        now_ms: Callable[[], int] | None = None,
        intent_wait_ms: int = INTENT_WAIT_MS,
        grants_max_age_s: float = MAX_AGE_S,
        vending: Vending | None = None,
        trail: Trail | None = None,
    ) -> None:
        self.core = (
            CatalogContext(store, roots, patience=patience)
            if now_ms is None
            else CatalogContext(store, roots, patience=patience, now_ms=now_ms)
        )
        self.transactions = Transactions(self.core, intent_wait_ms=intent_wait_ms)
        self.namespaces = Namespaces(self.core, self.transactions)
        self.tables = Tables(self.core, self.namespaces, self.transactions)
        self.views = Views(self.tables)
        self.names = Names(self.tables)
        self.together = MultiTableCommit(self.tables)
        self.health = Health(self.core, self.tables)
        self.access = Access(self.core, self.transactions, max_age_s=grants_max_age_s)
        self.vending = vending
        self.trail = trail
