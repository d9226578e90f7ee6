"""Who ingestors act as in the catalog: ingest itself, or the principal that a spec names with `runAs`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tarn.core.errors import InvalidSpecError
from tarn.core.table_catalog import TableCatalog
from tarn.ingest.bookkeeper import Bookkeepers


@dataclass(frozen=True, slots=True, kw_only=True)
class Acting:
    """One principal: no commit of it goes in with another one's.

    Attributes:
        catalog: the catalog, asked as this principal.
        bookkeepers: bookkeepers that commit as this principal.
    """

    catalog: TableCatalog
    bookkeepers: Bookkeepers = field(default_factory=Bookkeepers)


def _nobody(principal: str) -> TableCatalog:
    raise InvalidSpecError(f"runAs is {principal!r}, and this process can act as itself only; leave it out")


class Principals:
    """The principals that ingestors of this process act as, each made once. Thread-safe.

    Args:
        catalog: makes the catalog as asked by a principal.
    """

    def __init__(self, catalog: Callable[[str], TableCatalog] = _nobody) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._made: dict[str, Acting] = {}

    def of(self, principal: str) -> Acting:
        """What acts as this principal.

        Raises:
            InvalidSpecError: this process cannot act as another principal.
        """
        with self._lock:
            if principal not in self._made:
                self._made[principal] = Acting(catalog=self._catalog(principal))
            return self._made[principal]
