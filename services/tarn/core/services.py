"""The table of services: for each that holds secrets its uid, its credentials and its privileges.

What follows from it is derived: the secret files that `init` creates, the store users and policies that
`bootstrap` sets, the users and ACLs of the broker. What Compose must know (image, command, volumes, networks,
ports, limits, health check, profile, start order) is in `docker-compose.yml`; unit tests compare the two.

Stdlib only: the broker's image has this file and `kafka_users.py` alone, without the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Area(Enum):
    """A part of the bucket with its own privileges."""

    CATALOG = "catalog/*"
    METADATA = "warehouse/*.metadata.json"
    DATA = "the rest of warehouse/*"
    HOLDS = "reaper/v1/holds/*"
    MEASURED = "reaper/v1/measured/*"
    REAPER = "the rest of reaper/*"
    FSCK = "fsck/*"
    CHECKPOINTS = "checkpoints/*"
    TRAIL = "trail/*"
    WORKSHOP_SPECS = "specs/v1/ingestors/ws-*"
    SPECS = "the rest of specs/*"
    CREDENTIALS = "credentials/*"


class Action(Enum):
    """An operation on an object or, for LIST, on the prefix that contains it."""

    READ = "read"
    WRITE = "write"
    LIST = "list"
    DELETE = "delete"


AMONG_OTHERS = (Area.METADATA, Area.WORKSHOP_SPECS)
"""Areas whose objects lie among others: who may list those lists them too."""

StoreRights = Mapping[Area, frozenset[Action]]
"""Actions allowed in each area; none in an area that is not listed."""

ALL = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A privilege of a Kafka user on some resources; names of resources and operations are Kafka's own.

    Attributes:
        resource: `TOPIC`, `GROUP`, `TRANSACTIONAL_ID` or `CLUSTER`.
        name: name of the resource, `*` for all, or a name prefix.
        operations: operations allowed; read, write, delete and alter imply describe, as in Kafka.
        prefixed: whether the name is a prefix.
        denied: deny instead, to everyone but the admin, whatever else is allowed.
    """

    resource: str
    name: str
    operations: tuple[str, ...]
    prefixed: bool = False
    denied: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What belongs to notebooks and to nobody else: prefixes of names.

    Attributes:
        namespaces: top-level namespaces of the catalog.
        topics: topics of Kafka, and groups of their readers.
        ingestors: declared ingestors, and their streams.
    """

    namespaces: str
    topics: str
    ingestors: str


WORKSHOP = Own(namespaces="ws_", topics="workshop.", ingestors="ws-")


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service that holds secrets, in a volume of its own: `secrets-<name>`.

    Attributes:
        uid: the uid and gid that it runs as and that may read its volume.
        store: privileges of its own store user; None if it has no store user.
        vending: privileges of a second store user that it holds, `vending`: parts of them are handed on, for
            minutes, to clients without a store user.
        kafka: privileges of its own Kafka user; empty if it has no Kafka user.
        credentials_for: services whose credential it holds: `catalog` (a principal of its own), `spark` or
            `jupyter` (their token).
        catalog_own: prefix of the top-level namespaces in which its principal may do everything; elsewhere it
            may read. None: its principal is an admin.
    """

    uid: int
    store: StoreRights | None = None
    vending: StoreRights | None = None
    kafka: tuple[Right, ...] = ()
    credentials_for: tuple[str, ...] = ()
    catalog_own: str | None = None


_ALL_ACTIONS = frozenset(Action)
_READ = frozenset({Action.READ})
_READ_LIST = frozenset({Action.READ, Action.LIST})
_READER: StoreRights = {Area.METADATA: _READ, Area.DATA: _READ_LIST}
_ENGINE: StoreRights = {Area.METADATA: _READ, Area.DATA: _ALL_ACTIONS}

SERVICES: Mapping[str, Service] = {
    "minio": Service(uid=10001),
    "bootstrap": Service(uid=10008),
    "catalog": Service(
        uid=10005,
        store={
            Area.CATALOG: _ALL_ACTIONS,
            Area.METADATA: frozenset({Action.READ, Action.WRITE}),
            Area.DATA: _READ_LIST,
            Area.TRAIL: _ALL_ACTIONS,
        },
        # Not `delete`: only the reaper deletes files of tables.
        vending={Area.METADATA: _READ, Area.DATA: _READ_LIST | {Action.WRITE}},
    ),
    # The broker's admin: it has all privileges, and logs in over the broker's loopback only.
    "kafka": Service(uid=10002),
    # Kafka as a source of streams, and checkpoints of streams.
    "spark": Service(
        uid=10004,
        store={**_ENGINE, Area.CHECKPOINTS: _ALL_ACTIONS},
        kafka=(
            Right(resource="TOPIC", name=ALL, operations=("READ",)),
            Right(resource="GROUP", name="spark-kafka-", prefixed=True, operations=("READ",)),
        ),
        credentials_for=("catalog",),
    ),
    "trino": Service(uid=10003, store=_ENGINE, credentials_for=("catalog",)),
    # Specs name the topics, and may request their creation. A table stores the cluster id: the library asks
    # for the privileges on the cluster along with it, and their denial would be logged at each commit.
    "ingest": Service(
        uid=10006,
        store={
            **_READER,
            Area.DATA: _READ_LIST | {Action.WRITE},
            Area.TRAIL: _READ_LIST,
            # Files of the spec folder, tombstones and status; no object there is ever deleted.
            Area.WORKSHOP_SPECS: _READ | {Action.WRITE},
            Area.SPECS: _READ_LIST | {Action.WRITE},
            # What the tables take in the store, for the status API.
            Area.MEASURED: _READ,
            # What fsck found, likewise.
            Area.FSCK: _READ,
            # What principals lend to ingestors that act as them: nobody else may read it.
            Area.CREDENTIALS: _READ,
        },
        kafka=(
            Right(resource="TOPIC", name=ALL, operations=("READ", "CREATE")),
            # Events that a partition is complete (`tarn.core.completion.TOPIC_PREFIX`).
            Right(resource="TOPIC", name="tarn.complete", prefixed=True, operations=("WRITE",)),
            Right(resource="GROUP", name="tarn-", prefixed=True, operations=("READ",)),
            Right(resource="CLUSTER", name="kafka-cluster", operations=("DESCRIBE",)),
        ),
        credentials_for=("catalog",),
    ),
    "pipeline": Service(uid=10009, credentials_for=("spark",)),
    # It addresses every object by its name, and gets table metadata from the catalog. Its topics are those of
    # `durability=log`, which ingest creates, and their claims, which it creates itself.
    "gateway": Service(
        uid=10014,
        store={Area.DATA: frozenset({Action.READ, Action.WRITE})},
        kafka=(
            Right(resource="TOPIC", name="tarn.log.", prefixed=True, operations=("WRITE",)),
            Right(resource="TOPIC", name="tarn.log.claims.", prefixed=True, operations=("READ", "CREATE")),
            Right(resource="TRANSACTIONAL_ID", name="tarn.log.", prefixed=True, operations=("WRITE",)),
            Right(resource="GROUP", name="tarn-gateway", operations=("READ",)),
        ),
        credentials_for=("catalog",),
    ),
    # It reads the end of its topic, to resume there.
    "replay": Service(
        uid=10010,
        kafka=(Right(resource="TOPIC", name="flight-events", operations=("READ", "WRITE", "CREATE")),),
    ),
    # Live windows over the demo's flights. It reads the last of its alerts and partials for its page.
    "stream": Service(
        uid=10015,
        kafka=(
            Right(resource="TOPIC", name="flight-events", operations=("READ",)),
            Right(
                resource="TOPIC", name="flight-stream.", prefixed=True, operations=("READ", "WRITE", "CREATE")
            ),
            Right(resource="TOPIC", name="flight-windows", operations=("WRITE", "CREATE")),
            Right(resource="TOPIC", name="flight-alerts", operations=("READ", "WRITE", "CREATE")),
            Right(resource="GROUP", name="flight-stream", operations=("READ",)),
        ),
    ),
    # A person's tools, also from the host. The token of JupyterLab is there to be shown.
    "cli": Service(
        uid=10007,
        store={
            **_ENGINE,
            Area.MEASURED: _READ,
            Area.CHECKPOINTS: _ALL_ACTIONS,
            Area.WORKSHOP_SPECS: _READ | {Action.WRITE},
            Area.SPECS: _READ_LIST | {Action.WRITE},
            Area.CREDENTIALS: frozenset({Action.WRITE}),
        },
        kafka=(
            Right(
                resource="TOPIC",
                name=ALL,
                operations=(
                    "READ",
                    "WRITE",
                    "CREATE",
                    "DELETE",
                    "ALTER",
                    "DESCRIBE_CONFIGS",
                    "ALTER_CONFIGS",
                ),
            ),
            Right(resource="GROUP", name=ALL, operations=("READ", "DELETE")),
            Right(resource="TRANSACTIONAL_ID", name=ALL, operations=("WRITE",)),
            Right(resource="CLUSTER", name="kafka-cluster", operations=("DESCRIBE",)),
        ),
        credentials_for=("catalog", "spark", "jupyter"),
    ),
    # Notebooks: they read everything, and write what is the workshop's.
    "jupyter": Service(
        uid=10011,
        store={
            **_READER,
            Area.WORKSHOP_SPECS: _READ | {Action.WRITE},
            Area.SPECS: _READ_LIST,
        },
        kafka=(
            Right(
                resource="TOPIC",
                name=WORKSHOP.topics,
                prefixed=True,
                operations=("READ", "WRITE", "CREATE", "DELETE"),
            ),
            Right(resource="GROUP", name=WORKSHOP.topics, prefixed=True, operations=("READ", "DELETE")),
        ),
        credentials_for=("catalog", "spark"),
        catalog_own=WORKSHOP.namespaces,
    ),
    "keeper": Service(
        uid=10012,
        store={
            **_READER,
            Area.CATALOG: _READ_LIST,
            Area.HOLDS: _ALL_ACTIONS,
            Area.FSCK: _READ | {Action.WRITE},
            Area.WORKSHOP_SPECS: _READ,
            Area.SPECS: _READ_LIST,
        },
    ),
    "reaper": Service(
        uid=10013,
        store={
            Area.CATALOG: _READ_LIST,
            Area.METADATA: frozenset({Action.READ, Action.DELETE}),
            Area.DATA: _READ_LIST | {Action.DELETE},
            Area.HOLDS: _ALL_ACTIONS,
            Area.MEASURED: _ALL_ACTIONS,
            Area.REAPER: _ALL_ACTIONS,
        },
    ),
}
"""Service to its row; `init`, which creates the secrets, holds none and has no row."""
