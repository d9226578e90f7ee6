"""The stack of a campaign: started and purged by the users' scripts, with proxies and engines of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tarn_host.stack import project

from tarn_testkit import fault_proxy
from tests.support.stack import Stack, free_ports, run

with warnings.catch_warnings():
    # kafka-python reads its message schemas with a function that is deprecated in Python 3.11.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    from kafka import KafkaProducer

GRACE_S = 60
PAUSE_ATTEMPTS = 6
FOLDER = project.STATE_DIR / "campaign"


@dataclass
class Rig:
    """A stack with room for engines of the campaign.

    Attributes:
        stack: the stack.
        folder: folder of the campaign's own files: specs and the proxies' plans.
        env: settings for clients on the host.
    """

    stack: Stack
    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def docker(self, *words: str, timeout_s: float = 60, check: bool = True) -> str:
        """Run the engine's client.

        Raises:
            RuntimeError: it failed.
        """
        done = run(["docker", *words], timeout_s=timeout_s)
        if check and done.code:
            raise RuntimeError(f"docker {' '.join(words)}: {done.text[-600:]}")
        return done.text

    def last_lines(self, container: str) -> str:
        """The end of a container's log, or why there is none: an engine may not answer this at times."""
        try:
            return self.docker("logs", "--tail", "5", container, check=False)
        except subprocess.TimeoutExpired as e:
            return f"no log of {container}: {e}"

    def pause(self, container: str) -> None:
        """Freeze a container; on a busy machine that may take several attempts.

        Raises:
            RuntimeError: none succeeded.
        """
        for left in reversed(range(PAUSE_ATTEMPTS)):
            try:
                self.docker("pause", container)
                return
            except RuntimeError:
                if left == 0:
                    raise
                time.sleep(0.5)

    def start(self, name: str, *words: str) -> None:
        """Start a further container of the service `ingest`."""
        self.docker("rm", "-f", name, check=False)
        done = self.stack.compose("run", "-d", "--no-deps", "--name", name, *words, timeout_s=120)
        if done.code:
            raise RuntimeError(f"{name} was not started: {done.text[-600:]}")

    def lake(self) -> Any:
        """A pyiceberg catalog, as the cli's principal."""
        from pyiceberg.catalog import load_catalog

        env = self.env
        return load_catalog(
            "lake",
            **{
                "type": "rest",
                "uri": env["TARN_CATALOG_URI"],
                "oauth2-server-uri": f"{env['TARN_CATALOG_URI']}/v1/oauth/tokens",
                "credential": env["TARN_CATALOG_CREDENTIAL"],
                "warehouse": env["TARN_WAREHOUSE"],
                "s3.access-key-id": env["AWS_ACCESS_KEY_ID"],
                "s3.secret-access-key": env["AWS_SECRET_ACCESS_KEY"],
                "s3.endpoint": env["TARN_S3_ENDPOINT"],
                "s3.region": env["AWS_REGION"],
            },
        )

    def producer(self) -> Any:
        """A producer that waits for the broker's word."""
        env = self.env
        return KafkaProducer(
            bootstrap_servers=env["TARN_KAFKA_BOOTSTRAP"],
            security_protocol=env["TARN_KAFKA_SECURITY_PROTOCOL"],
            sasl_mechanism=env["TARN_KAFKA_SASL_MECHANISM"],
            sasl_plain_username=env["TARN_KAFKA_USERNAME"],
            sasl_plain_password=env["TARN_KAFKA_PASSWORD"],
            acks="all",
            delivery_timeout_ms=120_000,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Room for one round beside others: a proxy before the catalog, and names of containers.

    Attributes:
        rig: the stack.
        number: number of the lane.
    """

    rig: Rig
    number: int

    @property
    def folder(self) -> Path:
        """Folder of the proxy's plan."""
        return self.rig.folder / f"plan-{self.number}"

    @property
    def proxy(self) -> str:
        """Name of the proxy's container."""
        return f"{self.rig.stack.name}-fault-proxy-{self.number}"

    def engines(self, count: int) -> list[str]:
        """Names of the containers of so many engines."""
        return [f"{self.rig.stack.name}-engine-{self.number}-{n}" for n in range(count)]

    def gateways(self, count: int) -> list[str]:
        """Names of the containers of so many gateways."""
        return [f"{self.rig.stack.name}-gateway-{self.number}-{n}" for n in range(count)]

    @property
    def store_proxy(self) -> str:
        """Name of the container of the proxy before the store, for one round."""
        return f"{self.rig.stack.name}-store-proxy-{self.number}"

    @property
    def catalog(self) -> str:
        """Name of the container of a further catalog process, for one round."""
        return f"{self.rig.stack.name}-catalog-of-{self.number}"

    def start(self) -> None:
        """Start the proxy before the catalog."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o777)
        self._start_proxy(self.proxy, "8181", "catalog", "8181", "/plan")

    def _start_proxy(self, name: str, *words: str) -> None:
        script = Path(fault_proxy.__file__)
        self.rig.start(
            name,
            *("--entrypoint", "python", "-v", f"{script}:/opt/fault_proxy.py:ro"),
            *("-v", f"{self.folder}:/plan", "ingest", "/opt/fault_proxy.py", *words),
        )

    def start_catalog(self) -> str:
        """Start a further catalog process, whose way to the store is a proxy with this plan; its URI."""
        self._start_proxy(self.store_proxy, "9000", "minio", "9000", "/plan", "pointers")
        self.rig.start(
            self.catalog,
            *("-e", f"TARN_S3_ENDPOINT=http://{self.store_proxy}:9000", "-e", "TARN_CATALOG_HOST=0.0.0.0"),
            *("-e", f"TARN_HOSTS={self.catalog}", "-e", "TARN_TRAIL=off", "catalog"),
        )
        return f"http://{self.catalog}:8181"

    def stop(self) -> None:
        """Remove the proxy, and what an ended round left behind."""
        for name in (self.proxy, self.store_proxy, self.catalog, *self.engines(2), *self.gateways(2)):
            self.rig.docker("rm", "-f", name, check=False)

    def plan(self, *lines: str) -> None:
        """Give the proxy a new plan, and forget what it did."""
        for name in ("done", "statuses", "landed", "plan"):
            (self.folder / name).unlink(missing_ok=True)
        self._write(*lines)

    def end_plan(self) -> None:
        """Let all commits pass from now on."""
        self._write()

    def _write(self, *lines: str) -> None:
        made = self.folder / "plan"
        made.write_text("".join(f"{line}\n" for line in lines))
        made.chmod(0o666)

    def noted(self, name: str) -> list[str]:
        """Lines that the proxy wrote: `done`, `statuses` or `landed`."""
        file = self.folder / name
        return file.read_text().split("\n")[:-1] if file.exists() else []


@contextlib.contextmanager
def rig(name: str, lanes: int) -> Iterator[list[Lane]]:
    """Lanes on a stack: a running project of this name, or one that is started and purged.

    Args:
        name: the running project; empty to start one, or to take over one that an interrupted call left.
        lanes: number of rounds at the same time.
    """
    ports_file = FOLDER / "ports.json"
    FOLDER.mkdir(parents=True, exist_ok=True)
    started = not name
    name = name or f"{project.default_name(project.ROOT)}-campaign"
    wanted = list(project.ports({}, project.COMPOSE_FILE.read_text(encoding="utf-8")))
    listed = run(["docker", "ps", "-q", "--filter", f"label=com.docker.compose.project={name}"], timeout_s=30)
    if not listed.text.split() or not ports_file.exists():
        ports_file.write_text(json.dumps(free_ports(wanted)))
    ports = json.loads(ports_file.read_text())
    made = Rig(stack=Stack(name=name, ports=ports), folder=FOLDER)
    all_lanes = [Lane(rig=made, number=number) for number in range(lanes)]
    grace = {"TARN_REAPER_GRACE_S": str(GRACE_S), "TARN_PROFILE": "small"}
    try:
        if started:
            up = made.stack.script("up", "--small", "--yes", env=grace)
            if up.code:
                raise RuntimeError(f"scripts/up --small failed:\n{up.text[-3000:]}")
        answer = made.stack.script("tarn", "env", "--json", timeout_s=120)
        made.env = json.loads(answer.text.splitlines()[-1])
        for lane in all_lanes:
            lane.start()
        yield all_lanes
    finally:
        for lane in all_lanes:
            lane.stop()
        if started:
            made.stack.script("down", "--purge", "--yes", timeout_s=300)
