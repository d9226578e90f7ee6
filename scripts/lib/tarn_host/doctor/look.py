"""Collection of everything that the doctor evaluates: with timeouts, changing nothing, reading no secret."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tarn_host import shell
from tarn_host.console import StopError
from tarn_host.doctor.facts import (
    Container,
    Facts,
    Ingestor,
    Inside,
    Log,
    Secrets,
    Volume,
    Wanted,
)
from tarn_host.stack import base, checks, engine, firewall, images, lifecycle, lock, project
from tarn_host.stack.project import ROOT, Project

NUMBER = "com.docker.compose.container-number"
LOG_LINES = 200
LOG_BYTES_MAX = 200_000
INSIDE_TIMEOUT_S = 15
SECRETS_TIMEOUT_S = 40
HTTP_TIMEOUT_S = 5
AT_ONCE = 8
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
NO_PROXIES = ("no_proxy", "NO_PROXY")
CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "PIP_CERT")
STUCK = ("Stopped", "Invalid")
_PEER = re.compile(r"(?:^|[/,])([a-z][a-z0-9-]*):(\d{2,5})\b")


def look(here: Project) -> Facts:
    """Collect all facts now."""
    found, machine = engine.look(), engine.machine()
    client = shell.capture(["docker", "--version"], timeout_s=20)
    text = project.COMPOSE_FILE.read_text(encoding="utf-8")
    ports = project.ports(here.settings, text)
    common: dict[str, Any] = {
        "root": str(ROOT),
        "project": here.name,
        "profile": here.profile,
        "engine": found,
        "machine": machine,
        "has_client": client.code != shell.NOT_FOUND,
        "ports": ports,
        "fixed": here.fixed,
        "disk_free_mib": checks.free_mib(found.data_root),
        "available_mib": checks.available_mib(found.memory_bytes),
        "busy": lock.is_busy(here),
        "failed_logs": failed_logs(),
        "ca_variables": {name: os.environ[name] for name in CA_VARIABLES if os.environ.get(name)},
        "certificates": tuple(str(path) for path in base.own_certificates()),
        **_proxy(os.environ),
    }
    if found.server is None:
        taken = checks.taken(ports, frozenset(), {})
        return Facts(now_unix=time.time(), images_there=True, taken=taken, **common)
    published = checks.published(here.name)
    config, fault = _config(here)
    wanted = wanted_services(lifecycle.of_profile(config, here.profile), ports) if config else ()
    volumes = _volumes(here, config)
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        secrets = pool.submit(_secrets, here, volumes)
        own = _containers(here)
        peers = {service.name: service.peers for service in wanted}
        running = [one for one in own if one.state == "running"]
        insides = {one.name: pool.submit(_inside, one.name, peers.get(one.service, ())) for one in running}
        store_ahead = pool.submit(_store_ahead, ports.get("TARN_PORT_S3", ""), own)
        stuck = pool.submit(_ingestors, ports.get("TARN_PORT_INGEST", ""), own)
        tags = images.image_ids(sorted({service.image for service in wanted}))
        seen = []
        for one in own:
            inside, error = insides[one.name].result() if one.name in insides else (None, "")
            seen.append(_with_inside(one, inside, error))
        return Facts(
            now_unix=time.time(),
            config_error=fault,
            images_there=images.built_somewhere(("minio", "kafka")),
            wanted=wanted,
            containers=tuple(seen),
            volumes=volumes,
            secrets=secrets.result(),
            own_ports=published.own,
            holders=published.holders,
            tarns=published.tarns,
            taken=checks.taken(ports, published.own, published.holders),
            closed=tuple(_closed(wanted, running)),
            store_ahead_s=store_ahead.result(),
            newest_unix=_newest(own, sorted(tags)),
            built_ids={s.name: tags[s.image] for s in wanted if s.image in tags},
            source_changed=_source_changed(here, config),
            ingestors=stuck.result(),
            edge=firewall.look(here),
            **common,
        )


def wanted_services(config: Mapping[str, Any], ports: Mapping[str, str]) -> tuple[Wanted, ...]:
    """The services of a complete stack, with what each needs, from Compose's configuration. Pure."""
    services: Mapping[str, Any] = config["services"]
    variables = {text: variable for variable, text in ports.items()}
    running = set(lifecycle.to_start(config))
    found = []
    for name, service in sorted(services.items()):
        if service.get("profiles"):
            continue
        values = " ".join(f",{value}" for value in (service.get("environment") or {}).values())
        peers = {
            f"{host}:{port}" for host, port in _PEER.findall(values) if host in services and host != name
        }
        found.append(
            Wanted(
                name=name,
                image=service["image"],
                one_shot=name not in running,
                after=tuple(sorted(service.get("depends_on") or {})),
                peers=tuple(sorted(peers)),
                ports={
                    variables.get(str(port["published"]), f"port {port['target']}"): int(port["published"])
                    for port in service.get("ports") or []
                },
            )
        )
    return tuple(found)


def _config(here: Project) -> tuple[dict[str, Any], str]:
    try:
        return images.compose_config(here), ""
    except StopError as error:
        return {}, error.what.partition(" failed: ")[2] or error.what


def failed_logs() -> tuple[Log, ...]:
    """Logs of failed steps: those written after the step's last success."""
    found = []
    success = images.RECORD.stat().st_mtime if images.RECORD.is_file() else 0.0
    for path in (base.LOG, images.LOG):
        if path.is_file() and path.stat().st_mtime > success:
            lines = _tail(path)
            if (
                path == base.LOG
                and images.LOG.is_file()
                and images.LOG.stat().st_mtime > path.stat().st_mtime
            ):
                continue
            found.append(Log(path=str(path.relative_to(ROOT)), lines=lines))
    return tuple(found)


def _tail(path: Path, lines: int = LOG_LINES) -> tuple[str, ...]:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
        return tuple(file.read().decode(errors="replace").splitlines()[-lines:])


def _proxy(environ: Mapping[str, str]) -> dict[str, Any]:
    named = {"proxy": PROXIES, "no_proxy": NO_PROXIES}
    return {key: {name: environ[name] for name in names if environ.get(name)} for key, names in named.items()}


def _containers(here: Project) -> list[Container]:
    command = [
        "docker",
        "ps",
        "--all",
        "--quiet",
        "--filter",
        f"label=com.docker.compose.project={here.name}",
    ]
    names = shell.capture(command, timeout_s=30).out.split()
    if not names:
        return []
    listed = shell.capture(["docker", "inspect", *names], timeout_s=60)
    try:
        rows: list[dict[str, Any]] = json.loads(listed.out)
    except ValueError:
        return []
    found = []
    for row in rows:
        labels = row["Config"].get("Labels") or {}
        # Images that Compose built have its labels of project and service, and any container of them: only
        # those that Compose made have a number.
        if labels.get("com.docker.compose.oneoff") == "True" or NUMBER not in labels:
            continue
        found.append(container(row, _log_of(row)))
    return sorted(found, key=lambda one: (one.service, one.name))


def _log_of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The end of a container's log, for containers that are not simply healthy."""
    state = row["State"]
    healthy = (state.get("Health") or {}).get("Status") in ("healthy", None) and state["Status"] == "running"
    if healthy or (state["Status"] == "exited" and state["ExitCode"] == 0):
        return ()
    logs = shell.capture(["docker", "logs", "--tail", str(LOG_LINES), row["Id"]], timeout_s=20)
    return tuple((logs.out + logs.err).splitlines())


def container(row: Mapping[str, Any], log: tuple[str, ...]) -> Container:
    """A container from the output of `docker inspect`. Pure."""
    state = row["State"]
    health = state.get("Health") or {}
    checks_done = health.get("Log") or []
    output = " ".join(str(checks_done[-1].get("Output", "")).split())[-400:] if checks_done else ""
    return Container(
        service=(row["Config"].get("Labels") or {}).get("com.docker.compose.service", ""),
        name=row["Name"].lstrip("/"),
        state=state["Status"],
        health=health.get("Status", ""),
        exit_code=int(state.get("ExitCode", 0)),
        oom_killed=bool(state.get("OOMKilled")),
        restarts=int(row.get("RestartCount", 0)),
        error=state.get("Error", ""),
        started_unix=unix(state.get("StartedAt", "")),
        image_id=row.get("Image", ""),
        memory_limit_bytes=int((row.get("HostConfig") or {}).get("Memory", 0)),
        health_output=output,
        log=log,
    )


def unix(text: str) -> float | None:
    """The engine's timestamp in Unix seconds; None for `never`."""
    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?(Z|[+-]\d\d:\d\d)?$", text)
    if match is None or text.startswith("0001"):
        return None
    zone = "+00:00" if match.group(2) in (None, "Z") else match.group(2)
    return datetime.fromisoformat(match.group(1) + zone).timestamp()


def _inside(name: str, peers: tuple[str, ...]) -> tuple[Inside | None, str]:
    code = (Path(__file__).parent / "inside.py").read_text(encoding="utf-8")
    begin = time.time()
    done = shell.capture(
        ["docker", "exec", name, "python3", "-I", "-c", code, *peers], timeout_s=INSIDE_TIMEOUT_S
    )
    end = time.time()
    if not done.ok:
        return None, done.words()
    try:
        said = json.loads(done.out)
    except ValueError:
        return None, f"it answered {done.out[:80]!r}"
    return inside(said, begin, end), ""


def inside(said: Mapping[str, Any], begin: float, end: float) -> Inside:
    """The probe's output, evaluated; `begin` and `end` are this machine's clock around the probe. Pure."""
    data, tmp = said.get("data") or (None, None), said.get("tmp") or (None, None)
    return Inside(
        clock_ahead_s=said["time"] - (begin + end) / 2,
        clock_unsure_s=(end - begin) / 2,
        peers=said["peers"],
        memory_bytes=said.get("memory"),
        oom_kills=said.get("oom_kills", 0),
        pids_refused=said.get("pids_refused", 0),
        data_free_bytes=data[0],
        data_bytes=data[1],
        tmp_free_bytes=tmp[0],
        tmp_bytes=tmp[1],
    )


def _with_inside(one: Container, seen: Inside | None, error: str) -> Container:
    return Container(**{**one.__dict__, "inside": seen, "inside_error": error})


def _volumes(here: Project, config: Mapping[str, Any]) -> tuple[Volume, ...]:
    names = [v.get("name") or f"{here.name}_{key}" for key, v in (config.get("volumes") or {}).items()]
    owners = _owners() or {}
    return tuple(Volume(name=n, there=n in owners, owner=owners.get(n, "")) for n in sorted(names))


def _owners() -> dict[str, str] | None:
    """Every volume of the engine -> the project that created it; None if it does not list them."""
    form = '{{.Name}}\t{{.Label "com.docker.compose.project"}}'
    listed = shell.capture(["docker", "volume", "ls", "--format", form], timeout_s=30)
    if not listed.ok:
        return None
    return dict([*row.split("\t"), ""][:2] for row in listed.out.splitlines() if row)


def secret_volumes(here: Project) -> tuple[Volume, ...] | None:
    """This project's secret volumes that the engine has; None if it does not list them.

    Unlike the volumes of the facts they do not come from Compose's configuration, which may be unreadable.
    """
    owners = _owners()
    if owners is None:
        return None
    prefix = f"{here.name}_secrets-"
    return tuple(
        Volume(name=n, there=True, owner=owner) for n, owner in sorted(owners.items()) if n.startswith(prefix)
    )


def secret_mounts(here: Project, volumes: tuple[Volume, ...]) -> list[str]:
    """`docker run` options that mount every secret volume read-only, and an empty folder for a missing one.

    Empty if no secret volume exists: then the stack was never started.
    """
    prefix = f"{here.name}_secrets-"
    own = [volume for volume in volumes if volume.name.startswith(prefix)]
    if not any(volume.there for volume in own):
        return []
    mounts = []
    for volume in own:
        target = f"/secrets/{volume.name[len(prefix) :]}"
        mounts += ["--volume", f"{volume.name}:{target}:ro"] if volume.there else ["--tmpfs", target]
    return mounts


def as_root(here: Project, mounts: list[str]) -> list[str]:
    """`docker run` of Tarn's image as init runs: root that can only read, no network, removed afterwards."""
    hardening = ["--network", "none", "--read-only", "--cap-drop", "ALL", "--cap-add", "DAC_OVERRIDE"]
    limits = ["--security-opt", "no-new-privileges", "--memory", "256m", "--pids-limit", "64"]
    # Not one of the project's containers, though its image says so.
    command = ["docker", "run", "--rm", "--interactive", "--label", "com.docker.compose.project="]
    command += ["--user", "0:0", *hardening, *limits]
    return [*command, *mounts, "--entrypoint", "python", f"tarn/services:{here.name}", "-m"]


def _secrets(here: Project, volumes: tuple[Volume, ...]) -> Secrets:
    mounts = secret_mounts(here, volumes)
    if not mounts:
        return Secrets()
    if not base.is_there(f"tarn/services:{here.name}"):
        return Secrets(error="the image tarn/services is not built")
    done = shell.capture(
        [*as_root(here, mounts), "tarn.bootstrap.init", "--check"], timeout_s=SECRETS_TIMEOUT_S
    )
    try:
        said = json.loads(done.out.splitlines()[-1])
    except (ValueError, IndexError):
        return Secrets(error=done.words())
    return Secrets(asked=True, missing=tuple(said["missing"]), fault=said["fault"])


def _get(port: str, path: str) -> tuple[Mapping[str, str], bytes] | None:
    if not port.isdecimal():
        return None
    connection = HTTPConnection("127.0.0.1", int(port), timeout=HTTP_TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    except (OSError, HTTPException):
        return None
    finally:
        connection.close()


def _runs(own: list[Container], service: str) -> bool:
    return any(one.service == service and one.state == "running" for one in own)


def _store_ahead(port: str, own: list[Container]) -> float | None:
    if not _runs(own, "minio"):
        return None
    answer = _get(port, "/minio/health/live")
    try:
        # The header has whole seconds, truncated: half a second more on average.
        return parsedate_to_datetime(answer[0]["date"]).timestamp() + 0.5 - time.time() if answer else None
    except (KeyError, TypeError, ValueError):
        return None


def _ingestors(port: str, own: list[Container]) -> tuple[Ingestor, ...]:
    answer = _get(port, "/status") if _runs(own, "ingest") else None
    try:
        listed = json.loads(answer[1])["ingestors"] if answer else {}
        return tuple(stuck_ingestors(listed))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ()


def stuck_ingestors(listed: Mapping[str, Any]) -> Iterator[Ingestor]:
    """Ingestors that will not recover without intervention, from ingest's status. Pure."""
    for name, entry in sorted(listed.items()):
        if entry.get("state") not in STUCK:
            continue
        conditions = [c for c in entry.get("conditions") or () if c.get("message")]
        first = conditions[0] if conditions else {}
        yield Ingestor(
            name=name,
            state=entry["state"],
            reason=str(first.get("reason") or entry.get("reason") or "no reason given"),
            message=str(first.get("message") or "no message"),
        )


def _closed(wanted: tuple[Wanted, ...], running: list[Container]) -> Iterator[str]:
    healthy = {one.service for one in running if one.health in ("healthy", "")}
    for service in wanted:
        if service.name in healthy:
            for port in service.ports.values():
                if not checks.is_taken(port):
                    yield f"{service.name} 127.0.0.1:{port}"


def _newest(own: list[Container], tags: list[str]) -> float | None:
    form = ["docker", "image", "inspect", "--format", "{{.Created}}", *tags]
    made = [unix(text) for text in (shell.capture(form, timeout_s=30).out.split() if tags else [])]
    moments = [moment for moment in [*made, *(one.started_unix for one in own)] if moment is not None]
    return max(moments) if moments else None


def _source_changed(here: Project, config: Mapping[str, Any]) -> bool | None:
    return images.changed(here, config) if config else None
