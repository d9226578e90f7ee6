"""Debian packages, from the apt sources configured on this machine; no mirror is hard-coded."""

from __future__ import annotations

import os
import platform
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tarn_host import shell
from tarn_host.console import StopError
from tarn_host.stack.project import version_of

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
SUITES = ("bullseye", "bookworm", "trixie", "forky", "sid", "stable", "testing", "unstable", "oldstable")
NETWORK_FIX = "check the network and this machine's apt sources, then run this again: nothing is half-made"


@dataclass(frozen=True)
class Mirrors:
    """Mirrors configured on this machine; `security` is None if it has no such line."""

    main: str
    security: str | None


def is_debian() -> bool:
    """Whether this is Debian itself, with its archive keys."""
    try:
        text = Path("/etc/os-release").read_text()
    except OSError:
        return False
    return re.search(r"^ID=\"?debian\"?$", text, re.MULTILINE) is not None and KEYRING.is_file()


def sources(texts: Iterable[tuple[str, str]]) -> Mirrors | None:
    """The mirrors in apt's source files, given as (file name, text); None without a Debian line. Pure."""
    entries: list[tuple[str, str]] = []
    for name, text in texts:
        entries += _deb822(text) if name.endswith(".sources") else _one_line(text)
    usable = [(uri, suite) for uri, suite in entries if re.match(r"https?://", uri)]
    main = [uri for uri, suite in usable if suite in SUITES]
    security = [uri for uri, suite in usable if suite.endswith(("-security", "/updates"))]
    if not main:
        return None
    return Mirrors(main=main[0].rstrip("/"), security=security[0].rstrip("/") if security else None)


def _one_line(text: str) -> list[tuple[str, str]]:
    found = []
    for raw in text.splitlines():
        match = re.match(r"^\s*deb\s+(?:\[[^\]]*\]\s+)?(\S+)\s+(\S+)\s+(.*)$", raw)
        if match and "main" in match.group(3).split():
            found.append((match.group(1), match.group(2)))
    return found


def _deb822(text: str) -> list[tuple[str, str]]:
    found = []
    for stanza in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        last = ""
        for raw in stanza.splitlines():
            if raw.startswith("#"):
                continue
            if raw[:1] in (" ", "\t") and last:
                fields[last] += " " + raw.strip()
            elif ":" in raw:
                last, _, value = raw.partition(":")
                last = last.strip().lower()
                fields[last] = value.strip()
        usable = (
            fields.get("enabled", "yes").lower() not in ("no", "false", "0")
            and "deb" in fields.get("types", "").split()
        )
        if usable and "main" in fields.get("components", "").split():
            found += [
                (uri, suite)
                for uri in fields.get("uris", "").split()
                for suite in fields.get("suites", "").split()
            ]
    return found


def mirrors() -> Mirrors:
    """This machine's mirrors.

    Raises:
        StopError: its apt sources name none.
    """
    root = Path("/etc/apt")
    files = [root / "sources.list", *sorted((root / "sources.list.d").glob("*"))]
    readable = [f for f in files if f.is_file() and f.suffix in (".list", ".sources")]
    found = sources((f.name, f.read_text(errors="replace")) for f in readable)
    if found is None:
        raise StopError(
            "the apt sources of this machine name no Debian mirror over http(s)", f"add one under {root}"
        )
    return found


def update(log: Path, timeout_s: float) -> None:
    """Update the package lists.

    Raises:
        StopError: apt failed.
    """
    what = "apt-get update"
    shell.logged(
        what.split(),
        log,
        timeout_s=timeout_s,
        what=what,
        fix=NETWORK_FIX,
        env={"DEBIAN_FRONTEND": "noninteractive"},
    )


def offered(names: Iterable[str]) -> set[str]:
    """Those of these packages that this machine's sources offer, per the last package lists."""
    env = {"LC_ALL": "C"}
    return candidates(shell.capture(["apt-cache", "policy", *names], timeout_s=60, env=env).out)


def candidates(policy: str) -> set[str]:
    """The packages that `apt-cache policy` has a candidate for. Pure."""
    found = re.findall(r"^([a-z0-9][a-z0-9.+-]*):\n(?:  .*\n)*?  Candidate: (.+)$", policy, re.MULTILINE)
    return {name for name, version in found if version != "(none)"}


def install(packages: list[str], log: Path, timeout_s: float) -> None:
    """Install packages without their recommended ones.

    Args:
        packages: names of the packages.
        log: the log file.
        timeout_s: the timeout, in seconds.

    Raises:
        StopError: apt failed.
    """
    update(log, timeout_s)
    env = {"DEBIAN_FRONTEND": "noninteractive"}
    what = f"installing {', '.join(packages)}"
    command = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    shell.logged(command, log, timeout_s=timeout_s, what=what, fix=NETWORK_FIX, env=env)


def unpack_compose(log: Path, timeout_s: float) -> None:
    """Put Compose and buildx of this Debian suite into ~/.docker/cli-plugins, installing no package.

    Raises:
        StopError: they could not be downloaded or unpacked.
    """
    target = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "cli-plugins"
    with tempfile.TemporaryDirectory(prefix="tarn-apt-") as folder:
        here = Path(folder)
        here.chmod(0o755)
        for name in ("lists/partial", "cache/archives/partial", "out"):
            (here / name).mkdir(parents=True)
        line = f"deb [signed-by={KEYRING}] {mirrors().main} {version_of('BASE_SUITE')} main\n"
        (here / "sources.list").write_text(line)
        options = [
            f"-oDir::State::Lists={here}/lists",
            f"-oDir::Etc::sourcelist={here}/sources.list",
            "-oDir::Etc::sourceparts=/dev/null",
            f"-oDir::Cache={here}/cache",
            "-oAPT::Sandbox::User=",
        ]
        update = ["apt-get", *options, "update"]
        shell.logged(update, log, timeout_s=timeout_s, what="reading the package lists", fix=NETWORK_FIX)
        names = ["docker-compose", "docker-buildx"]
        fetch = ["apt-get", *options, "download", *names]
        shell.logged(fetch, log, timeout_s=timeout_s, what="fetching Compose", fix=NETWORK_FIX, cwd=here)
        for deb in sorted(here.glob("*.deb")):
            unpack = ["dpkg", "-x", str(deb), str(here / "out")]
            shell.logged(unpack, log, timeout_s=timeout_s, what=f"unpacking {deb.name}", fix="see the log")
        plugins = sorted((here / "out/usr/libexec/docker/cli-plugins").glob("docker-*"))
        if not plugins:
            raise StopError(
                f"the packages {', '.join(names)} hold no Compose for {platform.machine()}", f"see {log}"
            )
        try:
            _put(plugins, target)
        except OSError as error:
            raise StopError(
                f"Compose could not be put into {target}: {error.strerror or error}",
                "make that folder writable, or name another folder of the engine's client in DOCKER_CONFIG",
            ) from None


def _put(plugins: Iterable[Path], target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for plugin in plugins:
        part = target / f".{plugin.name}.part"
        shutil.copy2(plugin, part)
        part.chmod(0o755)
        part.replace(target / plugin.name)
