"""Facts that the doctor collects, as plain values: filled in by look, evaluated by judge, faked in tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tarn_host.stack.engine import Engine, Machine
from tarn_host.stack.firewall import Edge

PORT_CLOSED = "closed"
MIB = 1024 * 1024


@dataclass(frozen=True)
class Finding:
    """One fault.

    Attributes:
        code: identifies the kind of fault, for programs and tests.
        what: the fault, with its values.
        fix: how to fix it.
        service: the affected service, or empty.
        follows: consequences of the fault, one phrase per service.
    """

    code: str
    what: str
    fix: str
    service: str = ""
    follows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inside:
    """Facts collected inside a running container.

    Attributes:
        clock_ahead_s: how far its clock is ahead of this machine's, in seconds; negative means behind.
        clock_unsure_s: uncertainty of that, in seconds.
        peers: `host:port` -> why it cannot be reached; empty if it can.
        memory_bytes: memory in use without reclaimable file cache; None if unknown.
        oom_kills: number of processes of this container killed by the kernel's OOM killer.
        pids_refused: how often a new process or thread was refused.
        data_free_bytes: free bytes of the file system at /data; None if there is none.
        data_bytes: size of the file system at /data; None if there is none.
        tmp_free_bytes: free bytes of /tmp.
        tmp_bytes: size of /tmp.
    """

    clock_ahead_s: float = 0.0
    clock_unsure_s: float = 0.0
    peers: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    oom_kills: int = 0
    pids_refused: int = 0
    data_free_bytes: int | None = None
    data_bytes: int | None = None
    tmp_free_bytes: int | None = None
    tmp_bytes: int | None = None


@dataclass(frozen=True)
class Container:
    """One container of this project, as the engine describes it, with the end of its log.

    Attributes:
        started_unix: when it was last started; None if never.
        inside: facts collected inside it; None if it is not running or could not be queried.
        inside_error: why it could not be queried.
    """

    service: str
    name: str
    state: str
    health: str = ""
    exit_code: int = 0
    oom_killed: bool = False
    restarts: int = 0
    error: str = ""
    started_unix: float | None = None
    image_id: str = ""
    memory_limit_bytes: int = 0
    health_output: str = ""
    log: tuple[str, ...] = ()
    inside: Inside | None = None
    inside_error: str = ""


@dataclass(frozen=True)
class Wanted:
    """One service that belongs to a running stack.

    Attributes:
        one_shot: whether it exits with 0 when its work is done.
        after: the services that it waits for at start.
        peers: `host:port` of the services that it uses, from its settings.
        ports: variable of each published port -> port.
    """

    name: str
    image: str
    one_shot: bool = False
    after: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def needs(self) -> frozenset[str]:
        """The services that this one cannot work without."""
        return frozenset(self.after) | {peer.rpartition(":")[0] for peer in self.peers}


@dataclass(frozen=True)
class Volume:
    """A volume that this project uses. `owner` is the project that created it, empty if none is recorded."""

    name: str
    there: bool
    owner: str = ""


@dataclass(frozen=True)
class Secrets:
    """Result of `init --check` on the secret files.

    Attributes:
        missing: `consumer/file` of each missing file.
        fault: what is wrong with the existing files; empty if nothing.
        asked: whether the check could run; `error` holds the reason if not.
    """

    asked: bool = False
    missing: tuple[str, ...] = ()
    fault: str = ""
    error: str = ""


@dataclass(frozen=True)
class Log:
    """The end of a log of scripts/up, written by a step that failed."""

    path: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Ingestor:
    """A stopped ingestor, with the error that ingest reports."""

    name: str
    state: str
    reason: str
    message: str


@dataclass(frozen=True)
class Facts:
    """Everything collected at one moment.

    Attributes:
        root: the clone.
        project: the Compose project.
        profile: `full` or `small`.
        now_unix: this machine's clock.
        has_client: whether the `docker` program exists.
        busy: whether another script is changing this project.
        config_error: why Compose rejects the compose file with these settings; empty if it does not.
        disk_free_mib: free disk of the engine's data folder; None if it is on another machine.
        available_mib: memory available to containers.
        ports: every port variable -> its text.
        own_ports: ports of this project's containers.
        holders: port -> the foreign container that publishes it.
        tarns: ports of `holders` that another copy of Tarn publishes -> its folder.
        fixed: settings chosen by the user, which scripts/up does not change.
        taken: ports in use or that cannot be bound -> the process, empty if unknown.
        closed: `service host:port` of running services that should answer on this machine and do not.
        store_ahead_s: how far the store's clock (its HTTP Date) is ahead, in seconds; None if unanswered.
        newest_unix: the latest creation time of any image or container here.
        built_ids: service -> id of the image that its tag refers to now.
        source_changed: files of the build context changed since the images were built; None if unknown.
        failed_logs: logs of failed steps of scripts/up.
        proxy: proxy variables that are set.
        no_proxy: no_proxy and NO_PROXY, as far as they are set: addresses that no proxy is asked for.
        ca_variables: variables that name a CA file of this machine -> the file.
        certificates: this machine's own CA certificates that go into the base image.
        edge: whether neighbours can reach the containers by their own addresses.
    """

    root: str
    project: str
    now_unix: float
    engine: Engine
    machine: Machine
    profile: str = "full"
    has_client: bool = True
    busy: bool = False
    config_error: str = ""
    disk_free_mib: int | None = None
    available_mib: int | None = None
    images_there: bool = True
    wanted: tuple[Wanted, ...] = ()
    containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    secrets: Secrets = Secrets()
    ports: Mapping[str, str] = field(default_factory=dict)
    own_ports: frozenset[int] = frozenset()
    holders: Mapping[int, str] = field(default_factory=dict)
    tarns: Mapping[int, str] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    taken: Mapping[int, str] = field(default_factory=dict)
    closed: tuple[str, ...] = ()
    store_ahead_s: float | None = None
    newest_unix: float | None = None
    built_ids: Mapping[str, str] = field(default_factory=dict)
    source_changed: bool | None = None
    failed_logs: tuple[Log, ...] = ()
    proxy: Mapping[str, str] = field(default_factory=dict)
    no_proxy: Mapping[str, str] = field(default_factory=dict)
    ca_variables: Mapping[str, str] = field(default_factory=dict)
    certificates: tuple[str, ...] = ()
    edge: Edge | None = None
    ingestors: tuple[Ingestor, ...] = ()

    def container(self, service: str) -> Container | None:
        """The container of a service, or None; of several the first that is not well."""
        own = [c for c in self.containers if c.service == service]
        ill = (c for c in own if c.state != "running" or c.health not in ("healthy", ""))
        return next(ill, own[0] if own else None)
