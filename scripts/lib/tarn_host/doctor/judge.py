"""Diagnosis from the collected facts: one finding per cause, with its consequences. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tarn_host.doctor.facts import MIB, Facts, Finding, Ingestor
from tarn_host.doctor.log_lines import BUILD_FAULTS, known, reason, seconds
from tarn_host.doctor.services import STARTING_S_MAX, services
from tarn_host.stack import checks, engine, engine_kind, needs

CLOCK_S_MAX = 30.0
CLOCK_BACK_S_MAX = 300.0
STORE_FREE_MIB_MIN = 500
"""The store refuses writes when free space runs low: about 1 % of the disk, and at least this, in MiB."""
STORE_FREE_SHARE_MIN = 0.02
LIMIT_SHARE_MAX = 0.95
LOOPBACK = "127.0.0.1,localhost"


def judge(facts: Facts) -> tuple[list[Finding], list[str]]:
    """The findings, most basic first, and notes on what is not a fault."""
    found = _engine(facts)
    if found and facts.engine.server is None:
        return [*found, *_machine(facts)], []
    if facts.config_error:
        fix = "correct the line of .env or docker-compose.yml that it names; `docker compose config` shows it"
        found.append(Finding("compose-config", f"Compose refuses the settings: {facts.config_error}", fix))
    found += _machine(facts)
    found += _build(facts)
    found += _clock(facts)
    found += _volumes(facts)
    found += _secrets(facts)
    found += _ports(facts)
    found += _edge(facts)
    found += services(facts)
    found += _network(facts)
    found += _limits(facts)
    found += _store(facts)
    found += _stale(facts)
    found += [_ingestor(one) for one in facts.ingestors]
    found = _once(found)
    return found, _notes(facts, found)


def _once(found: Iterable[Finding]) -> list[Finding]:
    kept: dict[tuple[str, str], Finding] = {}
    for one in found:
        kept.setdefault((one.code, one.service or one.what), one)
    return list(kept.values())


def _engine(facts: Facts) -> list[Finding]:
    now, here = facts.engine, facts.machine
    if now.server is None:
        said = now.error or "no answer"
        if "permission denied" in said.lower():
            fix = "add yourself to the group `docker` (sudo usermod -aG docker $USER) and log in again"
            return [Finding("engine-rights", f"the container engine refuses this user: {said}", fix)]
        if here.docker_host and here.docker_host != "unix:///var/run/docker.sock":
            fix = "start the engine there, or unset DOCKER_HOST"
            what = f"no container engine answers at DOCKER_HOST={here.docker_host}: {said}"
            return [Finding("engine-silent", what, fix)]
        can = here.linux and here.root and (here.has_dockerd or here.debian)
        ours = "run scripts/up: it gets and starts an engine here"
        if not facts.has_client and not here.has_dockerd:
            fix = (
                ours
                if can
                else "install Docker Engine 20.10 or newer (https://docs.docker.com/engine/install)"
            )
            return [Finding("engine-missing", "no container engine is installed: no program `docker`", fix)]
        fix = ours if can else "start Docker (Docker Desktop, or: sudo systemctl start docker)"
        return [Finding("engine-silent", f"the container engine does not answer: {said}", fix)]
    code = "engine-kind" if now.kind.podman or now.kind.windows else "engine-old"
    found = [Finding(code, one.what, one.fix) for one in engine_kind.hinders(now.server, now.kind)]
    if now.remote:
        far = engine.remote_problem(now.remote)
        found.append(Finding("engine-remote", far.what, far.fix))
    wanted = ".".join(str(part) for part in engine.COMPOSE_AT_LEAST)
    fix = f"install Docker's Compose plugin {wanted} or newer (package docker-compose-plugin)"
    if here.linux and here.debian:
        fix += ", or run scripts/up: it unpacks Debian's"
    if now.compose is None:
        found.append(Finding("compose-missing", "Docker Compose is not there", fix))
    elif engine_kind.version_tuple(now.compose) < engine.COMPOSE_AT_LEAST:
        found.append(
            Finding("compose-old", f"Docker Compose is {now.compose}; needed is {wanted} or newer", fix)
        )
    return found


def _machine(facts: Facts) -> list[Finding]:
    small = facts.profile == "small"
    found = [
        Finding("disk", problem.what, problem.fix)
        for problem in checks.disk(facts.engine.data_root, facts.images_there, facts.disk_free_mib)
    ]
    running = any(c.state == "running" for c in facts.containers)
    found += [
        Finding("memory", problem.what, problem.fix)
        for problem in checks.memory(facts.available_mib, running, small=small)
    ]
    found += _proxy(facts)
    return found


def _proxy(facts: Facts) -> list[Finding]:
    """A proxy that is asked for 127.0.0.1. Both spellings count: clients differ in which they read first."""
    short = [name for name, text in facts.no_proxy.items() if not _skips_loopback(text)]
    if not facts.proxy or (facts.no_proxy and not short):
        return []
    names, lacking = ", ".join(facts.proxy), " and ".join(short) or "NO_PROXY"
    what = f"{names} is set, without 127.0.0.1 in {lacking}: clients here ask the proxy for Tarn"
    longer = [f'{name}="${name},{LOOPBACK}"' for name in short] or [f"NO_PROXY={LOOPBACK}"]
    return [Finding("proxy", what, f"export {' '.join(longer)}")]


def _skips_loopback(no_proxy: str) -> bool:
    return any(word.strip() in ("*", "127.0.0.1", "127.0.0.0/8") for word in no_proxy.split(","))


def _build(facts: Facts) -> list[Finding]:
    found = []
    for log in facts.failed_logs:
        hit = known(BUILD_FAULTS, log.lines)
        if hit is None:
            said = reason(log.lines) or "no words"
            fix = f"read {log.path}; then run scripts/up again: finished steps are kept"
            found.append(Finding("build", f"the last step of scripts/up with that log failed: {said}", fix))
            continue
        fault, text = hit
        fix = fault.fix
        if fault.code == "build-ca" and facts.ca_variables:
            named = ", ".join(f"{name}={file}" for name, file in facts.ca_variables.items())
            fix = f"{named} names the CA on this machine, and containers do not see it: {fix}"
        elif fault.code == "build-ca" and facts.certificates:
            fix = f"there now: {', '.join(facts.certificates[:3])}, perhaps not in the base image yet: {fix}"
        if fault.code == "build-network" and facts.proxy:
            fix = f"{', '.join(facts.proxy)} is set here, which a build does not see: {fix}"
        found.append(Finding(fault.code, f"{fault.what}: {text} (in {log.path})", fix))
    return found


def _clock(facts: Facts) -> list[Finding]:
    fix = (
        "set the clock: `timedatectl set-ntp true` (Linux), restart Docker Desktop (macOS, Windows); signed "
        "requests are refused from 15 minutes on, tokens and time stamps are wrong before"
    )
    seen: list[tuple[float, str]] = []
    for one in facts.containers:
        if one.inside is not None and abs(one.inside.clock_ahead_s) > CLOCK_S_MAX + one.inside.clock_unsure_s:
            seen.append((one.inside.clock_ahead_s, one.service))
    if facts.store_ahead_s is not None and abs(facts.store_ahead_s) > CLOCK_S_MAX:
        seen.append((facts.store_ahead_s, "the store's answers"))
    if seen:
        ahead = max(seen, key=lambda item: abs(item[0]))[0]
        side = "behind" if ahead > 0 else "ahead of"
        where = ", ".join(dict.fromkeys(name for _, name in seen))
        what = f"this machine's clock is {seconds(ahead)} {side} that of the containers ({where})"
        return [Finding("clock", what, fix)]
    if facts.newest_unix is not None and facts.newest_unix - facts.now_unix > CLOCK_BACK_S_MAX:
        back = seconds(facts.newest_unix - facts.now_unix)
        what = (
            f"this machine's clock stands before images or containers were made, by {back}: it was set back"
        )
        return [Finding("clock", what, fix)]
    return []


def _volumes(facts: Facts) -> list[Finding]:
    found = []
    there = [v for v in facts.volumes if v.there]
    gone = [v.name for v in facts.volumes if not v.there]
    if there and gone and any(name.endswith("-data") for name in gone):
        data = [name for name in gone if name.endswith("-data")]
        what = f"the volume of {', '.join(data)} is gone while others of this copy are there"
        fix = (
            "bring it back from a backup before scripts/up, which would begin an empty one: without "
            "minio-data no table is left, without kafka-data no row that was not committed yet"
        )
        if all(name.endswith("kafka-data") for name in data):
            fix += ". After scripts/tarn restore there is none yet: then run scripts/up"
        found.append(Finding("volume-gone", what, fix))
    for volume in there:
        if volume.owner != facts.project:
            owner = f"project {volume.owner}" if volume.owner else "nobody's project"
            fix = (
                "nothing was changed. If it is the right one, copy its data into a volume that scripts/up "
                f"makes; else remove it when nobody needs it: docker volume rm {volume.name}"
            )
            what = f"the volume {volume.name} was made by another copy ({owner}), not by {facts.project}"
            found.append(Finding("volume-foreign", what, fix))
    return found


def _secrets(facts: Facts) -> list[Finding]:
    said = facts.secrets
    if said.fault:
        fix = "do what it says; until then nothing is changed: init refuses to start the stack over it"
        return [Finding("secrets-contradict", said.fault, fix)]
    if said.missing:
        listed = ", ".join(said.missing)
        users = sorted({name.partition("/")[0] for name in said.missing})
        fix = (
            "run scripts/up: init makes it so that it fits what the others hold, and what uses it is started "
            f"again ({', '.join(users)})"
        )
        return [Finding("secret-missing", f"secret files are gone from their volumes: {listed}", fix)]
    return []


def _edge(facts: Facts) -> list[Finding]:
    """Neighbours that can reach the containers; only a note where rules cannot be set or read from here."""
    running = any(c.state == "running" for c in facts.containers)
    if facts.edge is None or facts.edge.hindrance or not running or facts.edge.problem is None:
        return []
    problem = facts.edge.problem
    return [Finding("neighbours", problem.what, problem.fix)]


def _ports(facts: Facts) -> list[Finding]:
    """Ports needed by services that are not running, held by another process."""
    running = {c.service for c in facts.containers if c.state == "running"}
    wanted = {
        variable: facts.ports.get(variable, str(port))
        for service in facts.wanted
        if service.name not in running
        for variable, port in service.ports.items()
    } or (dict(facts.ports) if not facts.wanted else {})
    if _makes_way(facts):
        wanted = {variable: text for variable, text in wanted.items() if variable in facts.fixed}
    taken = {port: who for port, who in facts.taken.items() if port not in facts.own_ports}
    problems = checks.judge_ports(wanted, taken, facts.holders)
    return [Finding("port", problem.what, problem.fix) for problem in problems]


def _makes_way(facts: Facts) -> list[int]:
    """Ports of this copy held by another copy of Tarn, which scripts/up would change without being asked."""
    free = [int(text) for name, text in facts.ports.items() if text.isdecimal() and name not in facts.fixed]
    return sorted(port for port in free if port in facts.tarns and port not in facts.own_ports)


def _network(facts: Facts) -> list[Finding]:
    """Peers that run but cannot be reached."""
    running = {c.service for c in facts.containers if c.state == "running"}
    found = []
    for one in facts.containers:
        for peer, why in (one.inside.peers if one.inside else {}).items():
            name = peer.rpartition(":")[0]
            if not why or name not in running:
                continue
            if why.startswith("dns:"):
                what = f"{one.service} cannot resolve the name {name}{why[3:]}"
                fix = (
                    "the engine's own DNS does not answer: run scripts/down and scripts/up, which make the "
                    "networks again; if it stays so, restart the engine"
                )
                found.append(Finding("dns", what, fix, service=f"{one.service} {name}"))
            else:
                target = facts.container(name)
                if target is not None and target.health not in ("healthy", ""):
                    continue
                what = f"{one.service} cannot connect to {peer}{why[3:]}, though {name} runs"
                fix = (
                    "a firewall of this machine blocks its bridges, perhaps; run scripts/down and scripts/up"
                )
                found.append(Finding("network", what, fix, service=f"{one.service} {peer}"))
        if one.state == "running" and one.inside is None and one.inside_error:
            fix = f"docker compose restart {one.service}"
            what = f"nothing can be run inside {one.service}: {one.inside_error}"
            found.append(Finding("exec", what, fix, service=one.service))
    for text in facts.closed:
        service, _, address = text.partition(" ")
        what = f"{service} runs, but {address} does not answer on this machine"
        fix = "run scripts/down and scripts/up; if it stays so, a firewall or VPN filters 127.0.0.1"
        found.append(Finding("published", what, fix, service=address))
    return found


def _limits(facts: Facts) -> list[Finding]:
    found = []
    for one in facts.containers:
        inside = one.inside
        if inside is None:
            continue
        limit = one.memory_limit_bytes
        if limit and inside.memory_bytes is not None and inside.memory_bytes > limit * LIMIT_SHARE_MAX:
            what = f"{one.service} uses {inside.memory_bytes // MIB} of its {limit // MIB} MiB of memory"
            fix = f"raise {needs.limit_variable(one.service)} in .env, then run scripts/up"
            found.append(Finding("memory-limit", what, fix))
        if inside.pids_refused:
            what = f"{one.service} was refused a process or thread {inside.pids_refused} times: at its limit"
            fix = f"raise pids_limit of {one.service} in docker-compose.yml, then run scripts/up"
            found.append(Finding("pids-limit", what, fix))
        if (
            inside.tmp_bytes
            and inside.tmp_free_bytes is not None
            and inside.tmp_free_bytes < 0.02 * inside.tmp_bytes
        ):
            what = f"/tmp of {one.service} is full ({inside.tmp_bytes // MIB} MiB)"
            found.append(Finding("tmp-full", what, f"docker compose restart {one.service}"))
    return found


def _store(facts: Facts) -> list[Finding]:
    for name in ("minio", "kafka"):
        one = facts.container(name)
        if one is None or one.inside is None or not one.inside.data_bytes:
            continue
        free, whole = one.inside.data_free_bytes or 0, one.inside.data_bytes
        if free < max(STORE_FREE_MIB_MIN * MIB, int(whole * STORE_FREE_SHARE_MIN)):
            what = (
                f"the disk of {name} is nearly full: {free // MIB} of {whole // MIB} MiB are free; once "
                "it is full the store refuses writes, and ingest waits with its place kept"
            )
            fix = (
                "free some space where the engine keeps its data (`docker system df`, `docker builder "
                "prune`), or move it to a larger disk"
            )
            return [Finding("disk-full", what, fix, service=name)]
    return []


def _stale(facts: Facts) -> list[Finding]:
    if facts.busy:
        return []
    old = sorted(
        c.service
        for c in facts.containers
        if c.state == "running" and facts.built_ids.get(c.service, c.image_id) != c.image_id
    )
    found = []
    if old:
        what = f"{', '.join(old)} run{'s' if len(old) == 1 else ''} an older image than the one built last"
        found.append(Finding("image-old", what, "run scripts/up: it replaces the containers, the data stays"))
    elif facts.source_changed and facts.containers:
        what = "files of this clone changed since its images were built: what runs is not what stands here"
        found.append(Finding("source-newer", what, "run scripts/up: it builds what changed and starts it"))
    return found


def _ingestor(one: Ingestor) -> Finding:
    fixes = {
        "SourceChanged": "the log is not the one that the table was fed from: a volume of another copy, or "
        "a new log. Give back the right kafka-data or minio-data volume, or give the ingestor a new name",
        "OffsetGap": "restore the log, or accept the loss and give the ingestor a new name",
    }
    fix = fixes.get(one.reason, "docs/ingestion.md, `When it stops`, says what to do for each reason")
    what = f"the ingestor {one.name} is {one.state} ({one.reason}): {one.message}"
    return Finding("ingestor", what, fix, service=f"ingestor {one.name}")


def _notes(facts: Facts, found: Sequence[Finding]) -> list[str]:
    notes = []
    if facts.edge is not None and facts.edge.hindrance and facts.edge.problem is not None:
        notes.append(f"{facts.edge.problem.what} -> {facts.edge.problem.fix}")
    if facts.busy:
        notes.append(
            "another scripts/up or scripts/down of this copy is running: look again when it has ended"
        )
    if not facts.containers:
        hinders = "" if found else "; nothing that hinders it was found"
        notes.append(f"the stack is not started (scripts/up starts it){hinders}")
    moving = _makes_way(facts)
    if moving:
        listed = ", ".join(str(port) for port in moving)
        notes.append(
            f"the copy of Tarn in {facts.tarns[moving[0]]} has the ports {listed}: scripts/up takes others "
            "for this copy by itself"
        )
    starting = [
        c.service
        for c in facts.containers
        if c.state == "running"
        and c.health == "starting"
        and c.started_unix is not None
        and facts.now_unix - c.started_unix <= STARTING_S_MAX
    ]
    if starting:
        notes.append(f"still starting: {', '.join(sorted(starting))}")
    notes += engine_kind.warnings(facts.engine.kind)
    if facts.secrets.error:
        notes.append(f"the secret files could not be checked: {facts.secrets.error}")
    return notes


def exit_code(found: Sequence[Finding]) -> int:
    """0 if there are no findings, else 1."""
    return 1 if found else 0
