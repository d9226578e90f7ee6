"""What the doctor saw, as plain values: looking fills them in, judging reads them, tests make them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tarn_host.stack.engine import Engine, Machine
from tarn_host.stack.firewall import Edge

PORT_CLOSED = "closed"
MIB = 1024 * 1024


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        code: names the kind of it, for programs and tests.
        what: what it is, with its values.
        fix: what to do.
        service: the service it is about, or empty.
        follows: what does not work because of it, one phrase per service.
    """

    code: str
    what: str
    fix: str
    service: str = ""
    follows: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inside:
    """What a look from inside a running container saw.

    Attributes:
        clock_ahead_s: how far its clock is ahead of this machine's; negative is behind.
        clock_unsure_s: how wrong that can be.
        peers: `host:port` -> why it cannot be reached; empty where it can.
        memory_bytes: memory in use without file cache that can be dropped; None if unknown.
        oom_kills: how often the kernel ended a process of this container for want of memory.
        pids_refused: how often a new process or thread was refused.
        data_free_bytes, data_bytes: of the file system at /data; None where there is none.
        tmp_free_bytes, tmp_bytes: of /tmp.
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
        inside: what a look from inside saw; None where it does not run or could not be asked.
        inside_error: why it could not be asked.
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
        one_shot: it ends with 0 when its work is done.
        after: the services that it waits for at start.
        peers: `host:port` of the services that it uses, from its settings.
        ports: the variables of its published ports -> port.
    """

    name: str
    image: str
    one_shot: bool = False
    after: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    ports: Mapping[str, int] = field(default_factory=dict)

    @property
    def needs(self) -> frozenset[str]:
        """The services without which this one cannot work."""
        return frozenset(self.after) | {peer.rpartition(":")[0] for peer in self.peers}


@dataclass(frozen=True)
class Volume:
    """A volume that this project uses. `owner` is the project that made it, empty if none is named."""

    name: str
    there: bool
    owner: str = ""


@dataclass(frozen=True)
class Secrets:
    """What `init --check` said about the secret files.

    Attributes:
        missing: `consumer/file` of what is not there.
        fault: what is wrong with what is there; empty if nothing.
        asked: whether it could be asked; `error` says why not.
    """

    asked: bool = False
    missing: tuple[str, ...] = ()
    fault: str = ""
    error: str = ""


@dataclass(frozen=True)
class Log:
    """The end of a log of scripts/up that was written by a step that failed."""

    path: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Ingestor:
    """An ingestor that does not run, in ingest's own words."""

    name: str
    state: str
    reason: str
    message: str


@dataclass(frozen=True)
class Facts:
    """Everything that was seen at one moment.

    Attributes:
        root: the clone.
        project: the Compose project.
        profile: `full` or `small`.
        now_unix: this machine's clock.
        has_client: whether the program `docker` is there.
        busy: another script changes this project right now.
        config_error: why Compose refuses the compose file with these settings; empty if it does not.
        disk_free_mib: of the engine's data folder; None if it is another machine's.
        available_mib: memory for containers.
        ports: every port variable -> its text.
        own_ports: ports of this project's containers.
        holders: port -> the container of somebody else.
        tarns: those ports of `holders` that another copy of Tarn has -> its folder.
        fixed: settings that the user named, so that scripts/up leaves them alone.
        taken: ports at which something answers or which cannot be bound -> the process, empty if unknown.
        closed: `service host:port` that should answer on this machine and does not, of running services.
        store_ahead_s: how far the store's clock (its HTTP Date) is ahead; None if it did not answer.
        newest_unix: the latest moment that anything here was made at: image, container.
        built_ids: service -> id of the image under its name now.
        source_changed: files of the build context changed since the images were built; None if unknown.
        failed_logs: logs of steps of scripts/up that failed.
        proxy: proxy variables that are set, with whether 127.0.0.1 is left out of them.
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
    proxy_skips_loopback: bool = True
    ca_variables: Mapping[str, str] = field(default_factory=dict)
    certificates: tuple[str, ...] = ()
    edge: Edge | None = None
    ingestors: tuple[Ingestor, ...] = ()

    def container(self, service: str) -> Container | None:
        """The container of a service, or None."""
        return next((c for c in self.containers if c.service == service), None)
