"""The whole stack under its own project name and ports, started and stopped by the users' own scripts."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from tarn_host.stack import lifecycle, project

from tarn_testkit.started import free_ports as free_ports
from tests.support.compose import LONG_RUNNING
from tests.support.containers import LogKeeper, artifacts

T = TypeVar("T")

SCRIPTS = project.ROOT / "scripts"
PORTS_FILE = project.STATE_DIR / "test-ports.json"
UP_TIMEOUT_S = 900
ENGINE_S = 120
"""Until the engine has answered a question: it may be busy with images and with the disk."""
STARTED_AGAIN_S = 60
SAID_TIMES_MAX = 5
FAULT_ECHO_S = 20
HEALTHY_WITHIN_S = 300
TIMESTAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\S* ?(.*)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Exit code and complete output of a program."""

    code: int
    text: str


def run(command: list[str], *, timeout_s: float, env: Mapping[str, str] | None = None) -> Answer:
    """Run a program without input in the clone; stdout and stderr are combined.

    Raises:
        subprocess.TimeoutExpired: it was not done in time; a note has the end of its output.
    """
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            cwd=project.ROOT,
            env={**os.environ, **(env or {})},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        error.add_note((error.output or b"it printed nothing").decode(errors="replace")[-4_000:])
        raise
    return Answer(code=done.returncode, text=done.stdout.decode(errors="replace"))


def eventually(
    look: Callable[[], T | None], *, timeout_s: float, what: str | Callable[[], str], pause_s: float = 0.5
) -> T:
    """The first result that is neither None nor False. The last look begins when the time is over.

    So a look that takes long, or a machine that stood still meanwhile, is no failure.

    Args:
        look: called until it returns such a result.
        timeout_s: the timeout, in seconds.
        what: name of the condition, for the error message, or what makes it once the time is over.
        pause_s: seconds between two calls.

    Raises:
        AssertionError: there was none before the timeout.
    """
    until = time.monotonic() + timeout_s
    while True:
        is_last = time.monotonic() >= until
        found = look()
        if found is not None and found is not False:
            return found
        if is_last:
            raise AssertionError(f"not within {timeout_s:g} s: {what if isinstance(what, str) else what()}")
        time.sleep(pause_s)


@dataclass(slots=True, kw_only=True)
class Stack:
    """A running stack of the tests.

    Attributes:
        name: the Compose project.
        ports: the value of each TARN_PORT_* variable.
        first_up: output of the first scripts/up of this session, or None if the stack was running already.
        windows: periods in which errors were provoked; log lines of those periods are not findings.
    """

    name: str
    ports: dict[str, str]
    first_up: Answer | None = None
    windows: list[tuple[datetime, datetime]] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)

    @property
    def env(self) -> dict[str, str]:
        """Variables that point users' scripts and plain Compose to this stack; no demo unless requested."""
        return {"COMPOSE_PROJECT_NAME": self.name, "TARN_DEMO": "off", "TARN_PROFILE": "full", **self.ports}

    def script(
        self, name: str, *words: str, timeout_s: float = UP_TIMEOUT_S, env: Mapping[str, str] | None = None
    ) -> Answer:
        """Run a script of scripts/ on this stack."""
        return run([str(SCRIPTS / name), *words], timeout_s=timeout_s, env={**self.env, **(env or {})})

    def compose(self, *words: str, timeout_s: float = 300) -> Answer:
        """Run plain `docker compose` on this stack."""
        return run(["docker", "compose", *words], timeout_s=timeout_s, env=self.env)

    def config(self) -> dict[str, Any]:
        """The compose file as resolved by Compose, all profiles included."""
        done = subprocess.run(
            ["docker", "compose", *lifecycle.PROFILES, "config", "--format", "json"],
            capture_output=True,
            check=True,
            timeout=ENGINE_S,
            cwd=project.ROOT,
            env={**os.environ, **self.env, "TARN_BASE": "unused"},
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def container(self, service: str) -> str:
        """The id of a service's container, running or not; Compose would take much longer to say it."""
        label, command = "com.docker.compose", ["docker", "ps", "--all", "--no-trunc", "--quiet"]
        for condition in (f"project={self.name}", f"service={service}", "oneoff=False"):
            command += ["--filter", f"label={label}.{condition}"]
        answer = run(command, timeout_s=ENGINE_S)
        assert answer.code == 0, answer.text
        names = answer.text.split()
        assert len(names) == 1, f"{service} has {len(names)} containers"
        return names[0]

    def inspect(self, service: str) -> dict[str, Any]:
        """`docker inspect` of a service's container."""
        answer = run(["docker", "inspect", self.container(service)], timeout_s=ENGINE_S)
        assert answer.code == 0, answer.text
        found: dict[str, Any] = json.loads(answer.text)[0]
        return found

    def last_probe(self, service: str) -> str:
        """What the last health check of a service's container printed."""
        log = self.inspect(service)["State"].get("Health", {}).get("Log") or [{"Output": "none has ended"}]
        return str(log[-1]["Output"]).strip()

    def inspect_all(self) -> dict[str, dict[str, Any]]:
        """`docker inspect` of every service's container, in two calls; one-off containers are omitted."""
        mine = f"label=com.docker.compose.project={self.name}"
        listed = run(["docker", "ps", "--all", "--quiet", "--filter", mine], timeout_s=ENGINE_S)
        answer = run(["docker", "inspect", *listed.text.split()], timeout_s=ENGINE_S)
        assert answer.code == 0, answer.text
        found: dict[str, dict[str, Any]] = {}
        for container in json.loads(answer.text):
            labels = container["Config"]["Labels"]
            if labels["com.docker.compose.oneoff"] == "False":
                found[labels["com.docker.compose.service"]] = container
        return found

    def health(self) -> dict[str, str]:
        """The health of every long-running service."""
        here = project.Project(name=self.name, base="unused", own_base=False, settings={})
        return {s.name: s.health or s.state for s in lifecycle.services(here) if s.name in LONG_RUNNING}

    def await_healthy(self, *, timeout_s: float = HEALTHY_WITHIN_S) -> None:
        """Wait until every long-running service is healthy.

        Raises:
            AssertionError: they were not before the timeout; names them and what their last probes printed.
        """

        def others() -> dict[str, str]:
            found = self.health()
            return {name: found.get(name, "absent") for name in LONG_RUNNING if found.get(name) != "healthy"}

        try:
            eventually(lambda: not others(), timeout_s=timeout_s, what="all healthy")
        except AssertionError as error:
            there = self.health()
            probes = {name: self.last_probe(name) for name in others() if name in there}
            raise AssertionError(f"{error}; {others()}; {probes}") from error

    def inside(self, service: str, *words: str, timeout_s: float = ENGINE_S) -> Answer:
        """Run a program inside a running service's container, as the service's user."""
        return run(["docker", "exec", self.container(service), *words], timeout_s=timeout_s)

    def said_inside(self, service: str, *words: str) -> str:
        """The output of a program as by `inside` that changes nothing and has something to say.

        Raises:
            AssertionError: it said nothing, run again too: of a quick one the engine can lose the output.
        """
        for _ in range(SAID_TIMES_MAX):
            answer = self.inside(service, *words)
            if answer.text.strip():
                return answer.text
        raise AssertionError(f"{service}: {' '.join(words)} says nothing; exit code {answer.code}")

    def query(self, sql: str) -> list[list[Any]]:
        """The rows that Trino returns; none while a table does not exist."""
        import trino
        from trino.exceptions import TrinoUserError

        connection = trino.dbapi.connect(
            host="127.0.0.1",
            port=int(self.ports["TARN_PORT_TRINO"]),
            user="test",
            catalog="tarn",
            request_timeout=180,
            timezone="UTC",
        )
        try:
            return list(connection.cursor().execute(sql).fetchall())
        except TrinoUserError as error:
            if error.error_name not in ("TABLE_NOT_FOUND", "SCHEMA_NOT_FOUND"):
                raise
            return []
        finally:
            connection.close()

    def one_shot(self, service: str, code: str, timeout_s: float = 240) -> Answer:
        """Run Python in a new container of a service, with that service's secrets."""
        return self.compose(
            *("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", service, "-c", code),
            timeout_s=timeout_s,
        )

    def signal_application(self, service: str, signal_name: str) -> None:
        """Send a signal to the application of a service: to the children of the container's init."""
        before = self.inspect(service)["State"]["StartedAt"]
        code = (
            "import os, pathlib, signal\n"
            "for p in pathlib.Path('/proc').glob('[0-9]*/stat'):\n"
            "    try:\n"
            "        ppid = p.read_text().rpartition(')')[2].split()[1]\n"
            "    except OSError:\n"
            "        continue\n"
            "    if ppid == '1':\n"
            "        print('sent', p.parent.name, flush=True)\n"
            f"        os.kill(int(p.parent.name), signal.{signal_name})\n"
        )
        # The container may end with its application before this process: neither its exit code nor a lack of
        # output says anything then.
        answer = self.inside(service, "python3", "-c", code)
        if "sent" not in answer.text and signal_name == "SIGKILL":
            eventually(
                lambda: self.inspect(service)["State"]["StartedAt"] != before,
                timeout_s=STARTED_AGAIN_S,
                what=f"{service} is killed; the program that does it said: {answer.text}",
            )
        else:
            assert "sent" in answer.text, f"{service}: no application under its init process\n{answer.text}"

    @contextlib.contextmanager
    def fault(self) -> Iterator[None]:
        """A period in which errors are provoked; ERROR lines in it and shortly after are expected."""
        begin = datetime.now(UTC)
        try:
            yield
        finally:
            self.windows.append((begin, datetime.now(UTC) + timedelta(seconds=FAULT_ECHO_S)))

    def keep_logs(self, keeper: LogKeeper) -> None:
        """Save the log of every container; lines of provoked faults are left out of the error check."""
        listed = self.compose(*lifecycle.PROFILES, "ps", "--all", "--format", "{{.Service}} {{.ID}}")
        for row in listed.text.splitlines():
            service, _, identity = row.partition(" ")
            if not identity or identity in self.seen:
                continue
            logs = run(["docker", "logs", "--timestamps", identity], timeout_s=ENGINE_S).text
            (artifacts() / "logs").mkdir(exist_ok=True)
            (artifacts() / "logs" / f"{self.name}-{service}.whole.log").write_text(logs, encoding="utf-8")
            keeper.keep(service, identity, "\n".join(self._outside_faults(logs)))

    def _outside_faults(self, logs: str) -> Iterator[str]:
        for raw in logs.splitlines():
            match = TIMESTAMP.match(raw)
            if match is None:
                yield raw
                continue
            at = datetime.fromisoformat(match.group(1)).replace(tzinfo=UTC)
            if not any(begin - timedelta(seconds=1) <= at <= end for begin, end in self.windows):
                yield match.group(2)


def ports_of(name: str) -> dict[str, str]:
    """The ports of a running stack of this name, or free ones, stored for the next tier."""
    wanted = list(project.ports({}, project.COMPOSE_FILE.read_text(encoding="utf-8")))
    listed = run(
        ["docker", "ps", "-q", "--filter", f"label=com.docker.compose.project={name}"], timeout_s=ENGINE_S
    )
    if listed.text.split() and PORTS_FILE.is_file():
        known: dict[str, str] = json.loads(PORTS_FILE.read_text(encoding="utf-8"))
        if set(known) == set(wanted):
            return known
    found = free_ports(wanted)
    PORTS_FILE.parent.mkdir(exist_ok=True)
    PORTS_FILE.write_text(json.dumps(found), encoding="utf-8")
    return found


@contextlib.contextmanager
def running_stack(keeper: LogKeeper) -> Iterator[Stack]:
    """Start the stack with scripts/up; stop and purge it at the end unless TARN_KEEP is set."""
    name = os.environ.get("TARN_TEST_PROJECT") or f"{project.default_name(project.ROOT)}-test"
    mine = Stack(name=name, ports=ports_of(name))
    timings = artifacts() / "up.json"
    try:
        mine.first_up = mine.script("up", "--yes", "--timings", str(timings))
        (artifacts() / "up.log").write_text(mine.first_up.text, encoding="utf-8")
        assert mine.first_up.code == 0, f"scripts/up failed:\n{mine.first_up.text[-8000:]}"
        yield mine
    finally:
        mine.keep_logs(keeper)
        if not os.environ.get("TARN_KEEP"):
            mine.script("down", "--purge", "--yes", timeout_s=300)
            PORTS_FILE.unlink(missing_ok=True)


def read_timings(path: Path) -> dict[str, float]:
    """Duration of each phase, in seconds, from a file of `scripts/up --timings`."""
    return {phase["name"]: phase["seconds"] for phase in json.loads(path.read_text())["phases"]}
