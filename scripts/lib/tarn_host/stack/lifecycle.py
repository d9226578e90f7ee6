"""Start and stop the services through Compose, and report which one failed."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tarn_host import shell
from tarn_host.console import StopError, line
from tarn_host.stack import needs, project
from tarn_host.stack.project import ROOT, Project

LOG = project.LOG_DIR / "start.log"
WAIT_TIMEOUT_S = 300
STOP_TIMEOUT_S = 180
POLL_S = 2
WATCH_S = 0.5
"""Interval between two checks of starting services, in seconds; a check takes some 15 ms of CPU time."""
LOG_LINES = 20
NAMED_LOGS = re.compile(r"docker compose logs ([\w-]+)")
PROFILES = ("--profile", "tools", "--profile", "demo")
REPLAY = "replay"
PLAY = "tarn.play=user"
"""Label of the container of a `demo load` or `demo replay` that a user runs."""
REPLAY_TIMEOUT_S = 60
INIT_TIMEOUT_S = 120
RECOVER_S = 120
SETTLE_S = 15
ENDS_WELL = (0, 130, 143)
"""Exit codes of a container that finished or was asked to stop."""
_ENDED = re.compile(r"(?:Exited|Restarting) \((\d+)\)")
_HEALTH = re.compile(r"\((?:health: )?(healthy|unhealthy|starting)\)")


@dataclass(frozen=True)
class Service:
    """One service's container as the engine reports it."""

    name: str
    container: str
    state: str
    health: str
    exit_code: int

    @property
    def good(self) -> bool:
        """Whether it is healthy, running without a health check, or exited with 0."""
        if self.state == "running":
            return self.health in ("healthy", "")
        return self.state == "exited" and self.exit_code == 0

    def words(self) -> str:
        """Its state as one phrase."""
        if self.state == "running" and self.health:
            return self.health
        if self.state == "exited":
            return "done" if self.exit_code == 0 else f"ended with exit code {self.exit_code}"
        return self.state


def wait_timeout_s() -> int:
    """Seconds until all services must be healthy: TARN_WAIT_S, else 300."""
    text = project.setting("TARN_WAIT_S")
    return int(text) if text.isdecimal() and int(text) > 0 else WAIT_TIMEOUT_S


def parse_ps(text: str) -> list[Service]:
    """The services in `docker ps` lines: service, id, state and status, separated by tabs. Pure.

    The status is human-readable, and holds the health and the exit code: `Up 3 seconds (health: starting)`,
    `Exited (137) 5 minutes ago`.
    """
    found = []
    for raw in text.splitlines():
        name, container, state, status = raw.split("\t")
        ended, health = _ENDED.match(status), _HEALTH.search(status)
        found.append(
            Service(
                name=name,
                container=container,
                state=state,
                health=health[1] if health else "",
                exit_code=int(ended[1]) if ended else 0,
            )
        )
    return sorted(found, key=lambda s: s.name)


def labelled(found: Sequence[Service]) -> list[tuple[Service, str]]:
    """Each container with what to call it: its service, and a number if that has several. Pure."""
    own: dict[str, list[str]] = {}
    for one in sorted(found, key=lambda one: one.container):
        own.setdefault(one.name, []).append(one.container)
    labels = []
    for one in found:
        mine = own[one.name]
        number = f" {mine.index(one.container) + 1} of {len(mine)}" if len(mine) > 1 else ""
        labels.append((one, one.name + number))
    return labels


def services(here: Project) -> list[Service]:
    """The services of this project that have a container, running or not.

    Queried from the engine itself: Compose takes ten times the CPU time, and this runs twice a second.
    """
    label = "com.docker.compose"
    command = ["docker", "ps", "--all", "--no-trunc"]
    for condition in (f"project={here.name}", "oneoff=False"):
        command += ["--filter", f"label={label}.{condition}"]
    command += ["--format", f'{{{{.Label "{label}.service"}}}}\t{{{{.ID}}}}\t{{{{.State}}}}\t{{{{.Status}}}}']
    result = shell.capture(command, timeout_s=30, env=here.env(), cwd=ROOT)
    return parse_ps(result.out) if result.ok else []


def full_only(config: Mapping[str, Any]) -> list[str]:
    """The services that the `small` profile omits: the engines, and what cannot work without them. Pure."""
    return _labelled(config, "tarn.profile", "full")


def started_last(config: Mapping[str, Any]) -> list[str]:
    """The services to start after the canary. Pure."""
    return _labelled(config, "tarn.start", "last")


def _labelled(config: Mapping[str, Any], label: str, value: str) -> list[str]:
    services = config["services"].items()
    return sorted(name for name, service in services if (service.get("labels") or {}).get(label) == value)


def of_profile(config: Mapping[str, Any], profile: str) -> dict[str, Any]:
    """The configuration reduced to the services of a profile. Pure."""
    left_out = full_only(config) if profile == "small" else ()
    kept = {name: service for name, service in config["services"].items() if name not in left_out}
    return {**config, "services": kept}


def to_start(config: Mapping[str, Any]) -> list[str]:
    """The long-running services; their dependencies start with them. Pure."""
    services = config["services"]
    ends = {
        name
        for service in services.values()
        for name, how in (service.get("depends_on") or {}).items()
        if how.get("condition") == "service_completed_successfully"
    }
    return sorted(n for n, s in services.items() if n not in ends and not s.get("profiles"))


def start(
    here: Project, config: Mapping[str, Any], on_look: Callable[[Sequence[Service]], None] | None = None
) -> str:
    """Start all but those to start last, and wait until all is healthy; return a sentence about it.

    Args:
        here: the project.
        config: the resolved compose file.
        on_look: called with the services found by each check, if none of them ran before: then no container
            that it sees is about to be replaced.

    Raises:
        StopError: a service does not become healthy; the message shows it, its health check and its log.
    """
    LOG.unlink(missing_ok=True)
    running = {s.name for s in services(here) if s.state == "running"}
    if running:
        complete_secrets(here, running)
    last = started_last(config)
    left_out = full_only(config) if here.profile == "small" else []
    names = [name for name in to_start(of_profile(config, here.profile)) if name not in last]
    _up(
        here,
        ["--remove-orphans", *names],
        hidden=(*last, *left_out),
        on_look=None if running else on_look,
    )
    extra = sorted(s.name for s in services(here) if s.name in left_out) if left_out else []
    if extra:
        line(f"    the small profile stops {', '.join(extra)}")
        _compose(here, ["rm", "--stop", "--force", *extra], STOP_TIMEOUT_S)
    up = sum(1 for s in services(here) if s.state == "running")
    return f"{up} services are up"


def start_last(here: Project, config: Mapping[str, Any]) -> str:
    """Start what is to start last and wait until it is healthy; return a sentence about it.

    Raises:
        StopError: one does not become healthy; the message shows its health check and its log.
    """
    last = started_last(config)
    if not last:
        return "nothing starts last"
    _up(here, ["--no-deps", *last], hidden=[s.name for s in services(here) if s.name not in last])
    return f"{' and '.join(last)} healthy"


def _up(
    here: Project,
    words: Sequence[str],
    *,
    hidden: Sequence[str],
    on_look: Callable[[Sequence[Service]], None] | None = None,
) -> None:
    """Run `docker compose up` on existing images, until what it starts is healthy.

    Compose gives up on a service that is unhealthy once, even if that only lacks what is being started, as
    ingest lacks the catalog on a busy machine, and is healthy by the time Compose ends. Such a service gets
    time to recover, and then Compose a second try: a long time only where services ran before, as on a first
    start whatever is unhealthy has a cause that will stay. A machine that is slower than that has a larger
    TARN_WAIT_S: until it is over, each service that is unhealthy gets what is left of it.

    Args:
        here: the project.
        words: arguments of `docker compose up`.
        hidden: services whose state changes are not printed.
        on_look: called with the services found by each check.

    Raises:
        StopError: a service does not become healthy.
    """
    limit_s, begin = wait_timeout_s(), time.monotonic()

    def left_s() -> float:
        return begin + limit_s - time.monotonic() if limit_s > WAIT_TIMEOUT_S else 0.0

    ran_before = any(s.state == "running" for s in services(here))
    code, said = _compose_up(here, words, hidden, on_look)
    if code != 0 and _recovers(here, max(RECOVER_S if ran_before else SETTLE_S, left_s())):
        code, said = _compose_up(here, words, hidden, None)
    while code != 0 and left_s() > 0 and _unhealthy(services(here)) and _recovers(here, left_s()):
        code, said = _compose_up(here, words, hidden, None)
    if code != 0:
        raise _failure(here, services(here), said)


def _unhealthy(found: Iterable[Service]) -> list[str]:
    return sorted(s.name for s in found if s.state == "running" and s.health == "unhealthy")


def _recovers(here: Project, within_s: float) -> bool:
    """Wait until no service is unhealthy; False if one stays so for so many seconds, or has failed."""
    until = time.monotonic() + within_s
    told = False
    while True:
        found = services(here)
        sick = _unhealthy(found)
        if any(s.state in ("exited", "restarting", "dead") and s.exit_code not in ENDS_WELL for s in found):
            return False
        if not sick:
            return True
        if time.monotonic() > until:
            return False
        if not told:
            line(f"    waiting for {', '.join(sick)} to recover, at most {within_s:.0f} s")
            told = True
        time.sleep(POLL_S)


def _compose_up(
    here: Project,
    words: Sequence[str],
    hidden: Sequence[str],
    on_look: Callable[[Sequence[Service]], None] | None,
) -> tuple[int, list[str]]:
    """Exit code and last lines of one `docker compose up --wait`."""
    timeout_s = wait_timeout_s()
    command = ["docker", "compose", "up", "--detach", "--no-build", "--pull", "never"]
    command += ["--wait", "--wait-timeout", str(timeout_s), *words]
    # Compose refuses to remove orphans where this is set, in the shell or in .env, to silence its warning.
    env = {**here.env(), "COMPOSE_IGNORE_ORPHANS": "false"}
    LOG.parent.mkdir(parents=True, exist_ok=True)
    with LOG.open("a", encoding="utf-8") as sink:
        sink.write(f"$ {' '.join(command)}\n")

        def write(text: str) -> None:
            sink.write(text + "\n")
            sink.flush()

        compose = shell.Running(command, on_line=write, env=env, cwd=ROOT)
        try:
            code = _watch(here, compose, timeout_s + 60, hidden, on_look)
        finally:
            compose.stop()
    return code, list(compose.tail)


def _compose(here: Project, words: list[str], timeout_s: float) -> shell.Result:
    return shell.capture(["docker", "compose", *words], timeout_s=timeout_s, env=here.env(), cwd=ROOT)


def complete_secrets(here: Project, running: Iterable[str]) -> None:
    """Create secret files missing under running services, and stop the services that use the old ones.

    They are restarted together with all the others. If init refuses, the following start reports it.
    """
    done = _compose(here, ["run", "--rm", "--no-deps", "-T", "init"], INIT_TIMEOUT_S)
    written = secrets_written(done.out.splitlines()) if done.ok else {}
    for consumer, files in sorted(written.items()):
        line(f"    secrets were missing for {consumer}: {'; '.join(files)}")
    affected = sorted(set(running) & set(written))
    if affected:
        line(f"    starting again with them: {', '.join(affected)}")
        _compose(here, ["stop", *affected], STOP_TIMEOUT_S)


def secrets_written(log: Iterable[str]) -> dict[str, list[str]]:
    """Consumer -> files that init wrote and why, from its log. Pure."""
    found: dict[str, list[str]] = {}
    for text in log:
        try:
            entry = json.loads(text)
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("event") == "secret written":
            found.setdefault(entry["consumer"], []).append(f"{entry['file']} ({entry['why']})")
    return found


def _watch(
    here: Project,
    running: shell.Running,
    timeout_s: float,
    hidden: Sequence[str],
    on_look: Callable[[Sequence[Service]], None] | None,
) -> int:
    """Print each state change of a visible service until the program ends; return its exit code."""
    begin = time.monotonic()
    last: dict[str, str] = {}
    while True:
        code = running.poll()
        found = services(here)
        if on_look is not None:
            on_look(found)
        for service, label in labelled(found):
            if service.name in hidden:
                continue
            words = service.words()
            if last.get(label) != words and (label in last or words != "created"):
                line(f"    {label}: {words} ({time.monotonic() - begin:.0f} s)")
            last[label] = words
        if code is not None:
            return code
        if time.monotonic() - begin > timeout_s:
            return shell.TIMED_OUT
        running.pause(WATCH_S)


def _failure(here: Project, found: list[Service], said: list[str]) -> StopError:
    bad = [s for s in found if not s.good]
    blamed = [s for s in bad if s.state != "created"] or bad
    parts = []
    for service in blamed:
        parts.append(f"{service.name} is {service.words()}")
        parts += [f"    {text}" for text in _details(service)]
    for service in named_in(parts, found):
        if service not in blamed:
            parts.append(f"{service.name}, which is {service.words()}, is named there:")
            parts += [f"    {text}" for text in _log_end(service)]
    waiting = [s.name for s in bad if s not in blamed]
    if waiting:
        parts.append(f"not started because of that: {', '.join(waiting)}")
    if not blamed:
        parts += [f"    {text}" for text in said[-8:]]
    names = " ".join(s.name for s in blamed) or "<service>"
    return StopError(
        "the services did not all become healthy:\n" + "\n".join(parts),
        f"scripts/doctor looks for causes; `docker compose logs {names}` shows more. When the cause is gone, "
        "run scripts/up again: what runs stays as it is. A slow machine may need more than "
        f"{wait_timeout_s()} s (TARN_WAIT_S)",
    )


def _details(service: Service) -> list[str]:
    inspected = shell.capture(
        ["docker", "inspect", "--format", "{{json .State}}", service.container], timeout_s=20
    )
    state: dict[str, Any] | None = json.loads(inspected.out) if inspected.ok else None
    parts = []
    if state and state.get("OOMKilled"):
        parts.append(f"it ran out of memory: raise {needs.limit_variable(service.name)} in .env")
    checks = ((state or {}).get("Health") or {}).get("Log") or []
    for check in checks[-1:]:
        text = " ".join(str(check.get("Output", "")).split())
        parts.append(f"health check (exit code {check.get('ExitCode')}): {text[-400:]}")
    return parts + _log_end(service)


def _log_end(service: Service) -> list[str]:
    logs = shell.capture(["docker", "logs", "--tail", str(LOG_LINES), service.container], timeout_s=20)
    lines = (logs.out + logs.err).rstrip().splitlines()
    return [
        f"last {min(LOG_LINES, len(lines))} lines of its log:",
        *(f"  {text[:300]}" for text in lines[-LOG_LINES:]),
    ]


def named_in(texts: Iterable[str], found: Iterable[Service]) -> list[Service]:
    """The services whose log these texts advise to read, as in `see docker compose logs kafka`. Pure."""
    names = {name for text in texts for name in NAMED_LOGS.findall(text)}
    return [service for service in found if service.name in names]


def has_data(name: str) -> bool:
    """Whether the engine has the volume with the lake of this project."""
    asked = ["docker", "volume", "inspect", "--format", "{{.Name}}", f"{name}_minio-data"]
    return shell.capture(asked, timeout_s=20).ok


def stop(here: Project, purge: bool) -> None:
    """Remove the containers and networks; with `purge` the volumes too.

    Includes those of another release, which this compose file does not name.

    Raises:
        StopError: Compose failed, or something cannot be removed.
    """
    command = ["docker", "compose", *PROFILES, "down", "--remove-orphans"]
    command += ["--volumes"] if purge else []
    shell.logged(
        command,
        project.LOG_DIR / "stop.log",
        timeout_s=STOP_TIMEOUT_S,
        what="stopping the services",
        fix="run this again; `docker ps` shows what is left",
        env=here.env(),
        cwd=ROOT,
    )
    mine = f"label=com.docker.compose.project={here.name}"
    for kind in ("network", "volume") if purge else ("network",):
        listed = shell.capture(["docker", kind, "ls", "--quiet", "--filter", mine], timeout_s=20)
        for name in listed.out.split():
            removed = shell.capture(["docker", kind, "rm", name], timeout_s=60)
            if not removed.ok:
                raise StopError(
                    f"the {kind} {name} of {here.name} is still there: {(removed.out + removed.err).strip()}",
                    "stop what uses it (`docker ps --all`), then run this again",
                )


def start_replay(here: Project) -> None:
    """Start the demo's replay, which resumes at the end of the topic, unless it or a user's play is running.

    Raises:
        StopError: Compose failed.
    """
    if _runs(here, PLAY):  # two at once would send the same events
        line("    scripts/tarn demo load or demo replay runs: no replay is started until the next scripts/up")
        return
    command = ["docker", "compose", "--profile", "demo", "up", "--detach", "--no-deps", "--no-build"]
    shell.logged(
        [*command, "--pull", "never", REPLAY],
        LOG,
        timeout_s=REPLAY_TIMEOUT_S,
        what="starting the demo's replay",
        fix="the services themselves run: `scripts/up --no-demo` does without the replay",
        env=here.env(),
        cwd=ROOT,
    )


def replay_runs(here: Project) -> bool:
    """Whether the demo's replay is running."""
    return _runs(here, f"com.docker.compose.service={REPLAY}")


def _runs(here: Project, label: str) -> bool:
    """Whether a container of this project with a label is running."""
    listing = ["docker", "ps", "--quiet"]
    for condition in (f"com.docker.compose.project={here.name}", label):
        listing += ["--filter", f"label={condition}"]
    return bool(shell.capture(listing, timeout_s=20).out.strip())


def stop_replay(here: Project) -> bool:
    """Stop the demo's replay; returns whether it was running.

    Raises:
        StopError: Compose failed.
    """
    if not replay_runs(here):
        return False
    shell.logged(
        ["docker", "compose", "--profile", "demo", "stop", REPLAY],
        LOG,
        timeout_s=REPLAY_TIMEOUT_S,
        what="stopping the demo's replay",
        fix=f"run `docker compose --profile demo stop {REPLAY}`, then this again",
        env=here.env(),
        cwd=ROOT,
    )
    return True


def addresses(config: Mapping[str, Any]) -> list[str]:
    """The published addresses, one line each. Pure."""
    rows = []
    for name, service in sorted(config["services"].items()):
        for port in service.get("ports", []):
            scheme = {"kafka": "", "spark": "sc://" if port["target"] == 15002 else "http://"}.get(
                name, "http://"
            )
            rows.append(f"  {name:<8} {scheme}{port.get('host_ip', '127.0.0.1')}:{port['published']}")
    return rows
