"""Privileges of each store user, as trials: the table of store users in docs/reference.md, executable.

Policies are easy to get wrong, so bootstrap does not trust them: it tries every cell of the table with the
user's own key and fails if one does not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tarn.core.credentials import STORE_RIGHTS, STORE_USERS
from tarn.core.services import AMONG_OTHERS, Action, Area

RIGHTS: Mapping[str, Mapping[Area, frozenset[Action]]] = {
    user: {area: rights.get(area, frozenset()) for area in Area} for user, rights in STORE_RIGHTS.items()
}
"""Store user to its actions in every area."""

ANONYMOUS = "anonymous"

# Delete last: it removes what the other trials need.
_ORDER = (Action.READ, Action.WRITE, Action.LIST, Action.DELETE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One operation to try.

    Attributes:
        user: store user, or `ANONYMOUS`.
        action: operation.
        key: object key, or for LIST the prefix.
        allowed: whether the store must allow it.
    """

    user: str
    action: Action
    key: str
    allowed: bool

    def __str__(self) -> str:
        return f"{self.user} {self.action.value} {self.key or '(whole bucket)'}"


def probe_keys(user: str, run_id: str) -> Mapping[Area, tuple[str, ...]]:
    """Return the objects of a user's trials, by area; every key contains the run id."""
    table = f"warehouse/_health/probe/{user}-{run_id}"
    return {
        Area.CATALOG: (f"catalog/v1/probe/{user}-{run_id}",),
        Area.METADATA: (f"{table}/metadata/00000-{run_id}.metadata.json",),
        Area.DATA: (f"{table}/metadata/{run_id}-m0.avro", f"{table}/data/{run_id}.parquet"),
        Area.HOLDS: (f"reaper/v1/holds/{user}-{run_id}.probe",),
        Area.MEASURED: (f"reaper/v1/measured/{user}-{run_id}.probe",),
        Area.REAPER: (f"reaper/v1/probe/{user}-{run_id}",),
        Area.FSCK: (f"fsck/v1/probe/{user}-{run_id}",),
        Area.CHECKPOINTS: (f"checkpoints/probe/{user}-{run_id}",),
        Area.TRAIL: (f"trail/v1/probe/{user}-{run_id}",),
        Area.WORKSHOP_SPECS: (f"specs/v1/ingestors/ws-{user}-{run_id}.probe",),
        Area.SPECS: (f"specs/v1/probe/{user}-{run_id}",),
        Area.CREDENTIALS: (f"credentials/v1/probe/{user}-{run_id}",),
    }


def trials(run_id: str) -> tuple[Trial, ...]:
    """Return all trials, ordered so that none removes what a later one needs.

    Listing is by prefix, so areas among others have no list privilege of their own; listing the whole bucket
    reveals the catalog's keys and is allowed to the catalog at most.
    """
    found: list[Trial] = []
    for user in (*STORE_USERS, ANONYMOUS):
        rights = RIGHTS.get(user, {})
        for action in _ORDER:
            for area, keys in probe_keys(user, run_id).items():
                if action is Action.LIST and area in AMONG_OTHERS:
                    continue
                allowed = action in rights.get(area, frozenset())
                targets = {keys[0].rpartition("/")[0] + "/"} if action is Action.LIST else keys
                found += [Trial(user=user, action=action, key=key, allowed=allowed) for key in targets]
        if user != "catalog":
            found.append(Trial(user=user, action=Action.LIST, key="", allowed=False))
    return tuple(found)
