"""Services that do not work: the causes and their consequences. Pure."""

from __future__ import annotations

from dataclasses import replace

from tarn_host.doctor.facts import MIB, Container, Facts, Finding, Wanted
from tarn_host.doctor.log_lines import SERVICE_FAULTS, known, reason, seconds
from tarn_host.stack.needs import limit_variable

STARTING_S_MAX = 180.0
RESTARTS_MAX = 3
STOPPED = (0, 130, 143)
"""Exit codes of a service that finished or was asked to stop: success, or the signal's code."""


def services(facts: Facts) -> list[Finding]:
    """Findings about services that do not work: one per cause, with its consequences."""
    if not any(c.state != "created" for c in facts.containers):
        return []
    bad: dict[str, Finding] = {}
    beside: list[Finding] = []
    for service in facts.wanted:
        finding = _service(facts, service)
        if finding is not None and finding.code == "oom":
            now = _state_beside_memory(facts, service)
            if now is not None:
                beside.append(finding)
                finding = now
        if finding is not None:
            bad[service.name] = finding
    needs = {service.name: service.needs for service in facts.wanted}
    followers: dict[str, list[str]] = {}
    causes: dict[str, Finding] = {}
    for name, finding in bad.items():
        cause = _cause(name, finding, bad, needs)
        if cause == name:
            causes[name] = finding
        else:
            followers.setdefault(cause, []).append(f"{name} ({_phrase(facts.container(name))})")
    missing = [name for name, finding in causes.items() if finding.code == "service-missing"]
    found = [
        replace(finding, follows=tuple(followers.get(name, ())))
        for name, finding in causes.items()
        if name not in missing
    ]
    if missing:
        up = sorted(c.service for c in facts.containers if c.state == "running")
        what = f"the stack is half up: {', '.join(missing)} not there, {', '.join(up) or 'nothing'} running"
        follows = tuple(text for name in missing for text in followers.get(name, ()))
        fix = "run scripts/up: what runs stays as it is (or scripts/down to stop it all; the data stays)"
        found.append(Finding("half-up", what, fix, follows=follows))
    return found + beside


def _state_beside_memory(facts: Facts, service: Wanted) -> Finding | None:
    """The current fault of a running service that was OOM-killed before, which may be an unrelated one."""
    one = facts.container(service.name)
    if one is None or one.state != "running" or not (one.health_output or reason(one.log)):
        return None
    inside = replace(one.inside, oom_kills=0) if one.inside is not None else None
    sound = replace(one, oom_killed=False, inside=inside)
    others = tuple(c for c in facts.containers if c.service != service.name)
    return _service(replace(facts, containers=(*others, sound)), service)


def _cause(name: str, finding: Finding, bad: dict[str, Finding], needs: dict[str, frozenset[str]]) -> str:
    """The root cause of a service's fault: the service itself, or its nearest faulty dependency."""
    own = ("oom", "disk-full", "secret-missing", "service-stopped", "service-paused")
    seen = {name}
    while finding.code not in own:
        waited = sorted(n for n in needs.get(name, ()) if n in bad and n not in seen)
        if not waited:
            return name
        name = waited[0]
        finding = bad[name]
        seen.add(name)
    return name


def _service(facts: Facts, service: Wanted) -> Finding | None:
    name, one = service.name, facts.container(service.name)
    again = f"`docker compose logs {name}` shows more; when the cause is gone, run scripts/up"
    if one is None:
        return Finding("service-missing", f"{name} has no container", "run scripts/up", service=name)
    why = reason(one.log)
    limit = limit_variable(name)
    kills = one.inside.oom_kills if one.inside is not None else 0
    if kills or (one.oom_killed and (one.state != "running" or one.restarts or one.health != "healthy")):
        limit_mib = one.memory_limit_bytes // MIB
        what = f"{name} ran out of memory: its limit is {limit_mib} MiB ({_phrase(one)}"
        what += f"; {kills} of its processes were ended)" if kills else ")"
        return Finding("oom", what, f"raise {limit} in .env, then run scripts/up", service=name)
    if one.state == "running" and one.health in ("healthy", ""):
        return None
    if one.state == "running" and one.health == "starting":
        age = facts.now_unix - one.started_unix if one.started_unix else 0.0
        if age <= STARTING_S_MAX:
            return None
        what = (
            f"{name} is still starting after {seconds(age)}: {one.health_output or why or 'it says nothing'}"
        )
        return Finding("service-starting", what, again, service=name)
    if one.state == "exited" and one.exit_code == 0 and service.one_shot:
        return None
    if one.state == "exited" and one.exit_code in STOPPED and not service.one_shot:
        what = f"{name} was stopped (exit code {one.exit_code})"
        return Finding("service-stopped", what, "run scripts/up: it starts it again", service=name)
    if one.state == "paused":
        fix = f"docker compose unpause {name}"
        return Finding("service-paused", f"{name} is paused: it answers nobody", fix, service=name)
    if one.state == "created":
        said = f": {one.error}" if one.error else ""
        fix = "run scripts/up"
        return Finding("service-created", f"{name} was never started{said}", fix, service=name)
    hit = known(SERVICE_FAULTS, [*one.log, one.health_output])
    if hit is not None:
        fault, text = hit
        return Finding(fault.code, f"{name} is {_phrase(one)}, {fault.what}: {text}", fault.fix, service=name)
    if one.state == "running":
        what = f"{name} is {_phrase(one)}: {one.health_output or why}"
        return Finding("service-unhealthy", what, again, service=name)
    what = f"{name} {_phrase(one)}: {why or one.error or 'it said nothing'}"
    if one.exit_code == 137 and not why:
        again = (
            f"somebody or the kernel killed it; run scripts/up, and if it comes back raise {limit} in .env"
        )
    return Finding("service-ended", what, again, service=name)


def _phrase(one: Container | None) -> str:
    if one is None:
        return "not there"
    words = {
        "running": one.health or "running",
        "exited": "stopped" if one.exit_code == 0 else f"ended with exit code {one.exit_code}",
        "restarting": f"keeps ending with exit code {one.exit_code}, {one.restarts} restarts so far",
        "created": "not started",
    }.get(one.state, one.state)
    if one.state == "running" and one.restarts >= RESTARTS_MAX:
        words += f", {one.restarts} restarts so far"
    return words
