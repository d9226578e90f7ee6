"""Image builds: a bounded number in parallel, skipped if nothing changed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tarn_host import shell
from tarn_host.console import StopError, line
from tarn_host.doctor.log_lines import build_fault
from tarn_host.stack import engine, lifecycle, project
from tarn_host.stack.project import ROOT, Project

LOG = project.LOG_DIR / "build.log"
RECORD = project.STATE_DIR / "images.json"
SPECS = project.SPECS_DIR
BUILD_TIMEOUT_S = 2400
HEARTBEAT_S = 15
LONGEST_FIRST = ("minio", "trino", "spark", "kafka")
_STEP = re.compile(r"^#\d+ \[(?!internal)(.+?)\] (\S.*)$")


@dataclass(frozen=True)
class Target:
    """One image and one of the services built into it."""

    image: str
    service: str

    @property
    def short(self) -> str:
        """The image's name without prefix and tag."""
        return self.image.rpartition("/")[2].partition(":")[0]


def compose_config(here: Project) -> dict[str, Any]:
    """The compose file as resolved by Compose, all profiles included.

    Raises:
        StopError: Compose rejects it.
    """
    command = ["docker", "compose", *lifecycle.PROFILES, "config", "--format", "json"]
    fix = (
        "look at the lines of .env and at docker-compose.yml; `docker compose config` shows the same message"
    )
    text = shell.must(command, timeout_s=60, fix=fix, env=here.env(), cwd=ROOT)
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


def targets(config: Mapping[str, Any]) -> list[Target]:
    """The images built here, each once, the slowest first. Pure."""
    found: dict[str, Target] = {}
    for name, service in sorted(config["services"].items()):
        if "build" in service:
            found.setdefault(service["image"], Target(image=service["image"], service=name))
    rank = {name: place for place, name in enumerate(LONGEST_FIRST)}
    return sorted(found.values(), key=lambda t: (rank.get(t.short, len(rank)), t.short))


def context_patterns(dockerignore: str) -> list[str]:
    """The paths that .dockerignore lets into the build context: its lines with a `!`. Pure."""
    return [raw.strip()[1:] for raw in dockerignore.splitlines() if raw.strip().startswith("!")]


def fingerprint(root: Path, salt: str, without: Path | None = None) -> str:
    """SHA-256 over every file that the build context can contain (path, executable bit, bytes) and the salt.

    Args:
        root: the clone.
        salt: further input.
        without: a folder whose files are excluded.
    """
    digest = hashlib.sha256(salt.encode())
    ignored = root / ".dockerignore"
    names = [*context_patterns(ignored.read_text(encoding="utf-8")), ignored.name]
    for name in sorted(names):
        top = root / name
        files = sorted(_files(top)) if top.is_dir() else [top] if top.is_file() else []
        for file in files:
            if without is not None and without in file.parents:
                continue
            run_bit = os.access(file, os.X_OK)
            digest.update(f"\0{file.relative_to(root).as_posix()}\0{run_bit}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _files(top: Path) -> list[Path]:
    found = []
    for folder, names, files in os.walk(top):
        names[:] = [
            n for n in names if n != "__pycache__" and not n.startswith(".") and not n.endswith(".egg-info")
        ]
        found += [
            Path(folder) / n
            for n in files
            if not n.startswith(".") and not n.endswith(".pyc") and not os.path.islink(Path(folder) / n)
        ]
    return found


def image_ids(names: list[str]) -> dict[str, str]:
    """The ids of those images that the engine has."""
    command = ["docker", "image", "inspect", "--format", "{{json .RepoTags}}\t{{.Id}}", *names]
    found: dict[str, str] = {}
    for row in shell.capture(command, timeout_s=30).out.splitlines():
        tags, tab, identity = row.partition("\t")
        for tag in (json.loads(tags) or []) if tab else []:
            found[tag] = identity
    return {name: found[name] for name in names if name in found}


def built_somewhere(names: Iterable[str]) -> bool:
    """Whether the engine has these images of any copy of Tarn: then building them takes little disk."""
    listed = shell.capture(["docker", "image", "ls", "--format", "{{.Repository}}", "tarn/*"], timeout_s=30)
    return {f"tarn/{name}" for name in names} <= set(listed.out.split())


def build(
    here: Project, config: Mapping[str, Any], offline: bool, part: Mapping[str, Any] | None = None
) -> str:
    """Build all images (of `part`, if given) unless no input changed; return a sentence about it.

    Args:
        here: the project.
        config: the resolved compose file.
        offline: do not use the network.
        part: the services whose images are needed; None for all.

    Raises:
        StopError: a build failed; the message carries its last lines.
    """
    wanted = targets(config if part is None else part)
    names = [t.image for t in wanted]
    mark = _mark(here, config)
    record = _recorded()
    if record is not None and record["fingerprint"] == mark and _tag(wanted, record["ids"]):
        with contextlib.suppress(OSError):  # scripts/doctor takes a log that is newer for a step that failed
            os.utime(RECORD)
        return f"{len(names)} images are there and nothing changed"
    try:
        seconds = _Builder(here, wanted).run(jobs())
    except StopError as error:
        if offline:
            fix = (
                "something changed since the last build; --pull never cannot fetch what it needs: run without"
            )
            raise StopError(error.what, fix) from None
        raise
    there = image_ids(names)
    former = record["ids"] if record is not None and record["fingerprint"] == mark else {}
    ids = {**former, **{t.short: there[t.image] for t in wanted}}
    fresh = RECORD.with_name(f"{RECORD.name}.{os.getpid()}.part")
    fresh.write_text(
        json.dumps({"fingerprint": mark, "code": _mark(here, config, SPECS), "ids": ids}) + "\n",
        encoding="utf-8",
    )
    fresh.replace(RECORD)
    slowest = sorted(seconds.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {took:.0f} s" for name, took in slowest)


def _mark(here: Project, config: Mapping[str, Any], without: Path | None = None) -> str:
    """Hash of the images' inputs: files of the build context, build settings, base image."""
    builds = {name: service["build"] for name, service in config["services"].items() if "build" in service}
    base_id = image_ids([here.base]).get(here.base, "")
    return fingerprint(ROOT, json.dumps([base_id, builds], sort_keys=True), without)


def changed(here: Project, config: Mapping[str, Any]) -> bool | None:
    """Whether the files differ from those that the images were built from; None if no build is recorded.

    Specs are excluded: ingest reads the mounted folder, whatever the image contains.
    """
    record = _recorded()
    if record is None or "code" not in record:
        return None
    return bool(record["code"] != _mark(here, config, SPECS))


def jobs() -> int:
    """Number of parallel builds: TARN_BUILD_JOBS, else 2 (one downloads while one compiles)."""
    text = project.setting("TARN_BUILD_JOBS")
    return max(1, int(text)) if text.isdecimal() else 2


def _recorded() -> dict[str, Any] | None:
    """Record of the last build: a fingerprint, and the id of each image."""
    try:
        found = json.loads(RECORD.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"fingerprint", "ids"} <= found.keys() else None


def _tag(wanted: list[Target], ids: Mapping[str, str]) -> bool:
    """Whether every image exists; an image that exists only by its id is tagged now."""
    there = image_ids([t.image for t in wanted])
    for target in wanted:
        known = ids.get(target.short)
        if known is None:
            return False
        if there.get(target.image) == known:
            continue
        if not shell.capture(["docker", "tag", known, target.image], timeout_s=30).ok:
            return False
    return True


def own_builder() -> dict[str, str]:
    """The variable that selects the engine's own builder: another one (docker-container) lacks its images.

    That builder has the name of the client's context; only it can find `FROM tarn/base`.
    """
    return {"BUILDX_BUILDER": engine.look().kind.context}


class _Builder:
    """Parallel builds with a limit, a line per finished image and a heartbeat in between."""

    def __init__(self, here: Project, wanted: list[Target]) -> None:
        self._here = here
        self._wanted = wanted
        self._step: dict[str, str] = {}
        self._lock = threading.Lock()
        self._builder = own_builder()

    def run(self, at_a_time: int) -> dict[str, float]:
        LOG.parent.mkdir(parents=True, exist_ok=True)
        waiting = list(self._wanted)
        active: dict[Target, tuple[shell.Running, float]] = {}
        seconds: dict[str, float] = {}
        said = time.monotonic()
        with LOG.open("w", encoding="utf-8") as sink:
            try:
                while waiting or active:
                    while waiting and len(active) < at_a_time:
                        target = waiting.pop(0)
                        active[target] = (self._start(target, sink), time.monotonic())
                    time.sleep(0.2)
                    for target, (running, since) in list(active.items()):
                        took = time.monotonic() - since
                        code = running.poll()
                        if code is None and took < BUILD_TIMEOUT_S:
                            continue
                        del active[target]
                        if code != 0:
                            running.stop()
                            self._fail(target, running, code)
                        seconds[target.short] = took
                        said = time.monotonic()
                        count = f"{len(seconds)} of {len(self._wanted)}"
                        line(f"    built {target.short} in {took:.0f} s ({count})")
                    if time.monotonic() - said > HEARTBEAT_S:
                        said = time.monotonic()
                        self._beat(active)
            finally:
                for running, _ in active.values():
                    running.stop()
        return seconds

    def _start(self, target: Target, sink: Any) -> shell.Running:
        def on_line(text: str) -> None:
            match = _STEP.match(text)
            with self._lock:
                if match:
                    self._step[target.short] = f"[{match.group(1)}] {match.group(2)}"
                if not sink.closed:
                    sink.write(f"{target.short} | {text}\n")
                    sink.flush()

        env = {**self._here.env(), **self._builder, "BUILDKIT_PROGRESS": "plain"}
        return shell.Running(
            ["docker", "compose", "build", target.service], on_line=on_line, env=env, cwd=ROOT
        )

    def _beat(self, active: Mapping[Target, tuple[shell.Running, float]]) -> None:
        for target, (_, since) in active.items():
            step = self._step.get(target.short, "starting")
            line(f"    building {target.short}, {time.monotonic() - since:.0f} s: {step[:90]}")

    def _fail(self, target: Target, running: shell.Running, code: int | None) -> None:
        why = f"not done within {BUILD_TIMEOUT_S} s" if code is None else f"exit code {code}"
        raise failure(target.image, why, list(running.tail))


def failure(image: str, why: str, tail: list[str]) -> StopError:
    """Error of a failed build: its last lines and, if they show a known fault, its fix. Pure.

    Args:
        image: tag of the image.
        why: exit code or timeout, in words.
        tail: the last lines of the build's output.
    """
    what, fix = build_fault(tail) or ("", "if it was the network, run this again: finished steps are kept")
    said = "\n".join(f"    {text}" for text in tail[-30:])
    cause = f"\n{what}" if what else ""
    return StopError(f"building {image} failed ({why}):\n{said}{cause}", f"{fix}. The whole log is {LOG}")
