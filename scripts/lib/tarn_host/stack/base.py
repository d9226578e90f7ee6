"""The base image of every Dockerfile: pulled, or built with debootstrap without a registry."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from tarn_host import shell
from tarn_host.console import StopError, line
from tarn_host.doctor.log_lines import build_fault
from tarn_host.stack import apt, engine, project
from tarn_host.stack.project import Project, version_of

PULL_TIMEOUT_S = 180
MAKE_TIMEOUT_S = 600
LOG = project.LOG_DIR / "base.log"
CA_DIR = Path("/usr/local/share/ca-certificates")
CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
AGE_DAYS_MAX = 30
"""Age in days from which a base image counts as old: Debian's security updates come weekly."""
SLIM = {
    "etc/apt/apt.conf.d/docker-clean": """# Nothing that apt downloads or caches stays in a layer.
DPkg::Post-Invoke {
  "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true";
};
APT::Update::Post-Invoke {
  "rm -f /var/cache/apt/archives/*.deb /var/cache/apt/archives/partial/*.deb /var/cache/apt/*.bin || true";
};
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
""",
    "etc/apt/apt.conf.d/docker-no-languages": 'Acquire::Languages "none";\n',
    "etc/dpkg/dpkg.cfg.d/docker-slim": """# Documents nobody reads in a container; licences stay.
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/info/*
path-exclude /usr/share/lintian/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
""",
}
"""Settings that make a debootstrap tree as small as a registry's slim image, which has the same."""
ENVIRONMENT = {"SSL_CERT_FILE": CA_BUNDLE, "UV_SYSTEM_CERTS": "1"}


def is_there(image: str) -> bool:
    """Whether the engine has an image."""
    return shell.capture(["docker", "image", "inspect", image], timeout_s=30).ok


def made_at(image: str) -> str:
    """Creation time of an image, as the engine prints it; empty if it does not exist."""
    found = shell.capture(["docker", "image", "inspect", "--format", "{{.Created}}", image], timeout_s=30)
    return found.out.strip() if found.ok else ""


def ensure(here: Project, offline: bool, refresh: bool = False) -> str:
    """Provide the base image; return a sentence about where it came from.

    Args:
        here: the project.
        offline: whether the network may not be used.
        refresh: rebuild an existing one with today's Debian packages; all images are then rebuilt too.

    Raises:
        StopError: it does not exist and cannot be built.
    """
    if is_there(here.base) and not refresh:
        return f"{here.base} is there"
    if offline:
        raise StopError(
            f"the base image {here.base} is not there, and --pull never forbids fetching it",
            "run once without it",
        )
    if not here.own_base:
        fix = (
            "check TARN_BASE in .env or the environment: it must name an image that is there or can be pulled"
        )
        _logged(["docker", "pull", here.base], PULL_TIMEOUT_S, f"pulling {here.base}", fix)
        return f"pulled {here.base}"
    upstream = version_of("BASE_IMAGE")
    line(f"    pulling {upstream}")
    pulled = shell.capture(["docker", "pull", "--quiet", upstream], timeout_s=PULL_TIMEOUT_S)
    if pulled.ok:
        _derive(here.base, upstream)
        return f"{here.base} from {upstream}"
    line(f"    no registry answers ({pulled.words()[:120]}); making the base from Debian's packages")
    _bootstrap(here.base, pulled.words())
    return f"{here.base} made by debootstrap"


def own_certificates(folder: Path = CA_DIR) -> list[Path]:
    """The CA certificates that this machine trusts beyond Debian's; containers have to trust them too."""
    return sorted(path for path in folder.rglob("*.crt") if path.is_file()) if folder.is_dir() else []


def copy_certificates(target: Path, folder: Path = CA_DIR) -> None:
    """Copy this machine's own CA certificates, each into its folder: two folders may have one of a name."""
    for certificate in own_certificates(folder):
        copy = target / certificate.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy(certificate, copy)
        except PermissionError:
            raise StopError(
                f"{certificate}, which this machine trusts, cannot be read by this user",
                f"let its owner run: chmod a+r {certificate}",
            ) from None


def _logged(command: list[str], timeout_s: float, what: str, fix: str) -> None:
    """Run one step of building the base image.

    Args:
        command: the program and its arguments.
        timeout_s: the timeout, in seconds.
        what: name of the step, for the error message.
        fix: what to do if it fails for an unknown reason.

    Raises:
        StopError: it failed; a known fault, such as a full disk, is named with its fix.
    """
    try:
        shell.logged(
            command,
            LOG,
            timeout_s=timeout_s,
            what=what,
            fix=fix,
            env={"DOCKER_BUILDKIT": "1", "BUILDX_BUILDER": engine.look().kind.context},
        )
    except StopError as error:
        named = build_fault(error.what.splitlines())
        if named is None:
            raise
        raise StopError(f"{error.what}\n{named[0]}", named[1], error.code) from None


def _derive(image: str, upstream: str) -> None:
    """Build the base on a pulled image: add CA certificates (Debian's, this machine's) and their settings."""
    # Not in /tmp: a client that was installed by snap has one of its own.
    project.STATE_DIR.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tarn-base-", dir=project.STATE_DIR) as folder:
        here = Path(folder)
        (here / "certificates").mkdir()
        copy_certificates(here / "certificates")
        settings = " ".join(f"{name}={value}" for name, value in ENVIRONMENT.items())
        recipe = [
            f"FROM {upstream}",
            f"COPY certificates/ {CA_DIR}/",
            "RUN apt-get update && apt-get upgrade -y"
            " && apt-get install -y --no-install-recommends ca-certificates"
            " && update-ca-certificates && rm -rf /var/lib/apt/lists/*",
            f"ENV {settings}",
        ]
        (here / "Dockerfile").write_text("\n".join(recipe) + "\n")
        line("    adding CA certificates")
        _logged(
            ["docker", "build", "--no-cache", "--tag", image, str(here)],
            MAKE_TIMEOUT_S,
            "building the base image",
            apt.NETWORK_FIX,
        )


def _bootstrap(image: str, why_no_pull: str) -> None:
    """Build the base image from Debian packages.

    Raises:
        StopError: this machine cannot (it takes root on Debian), or a step failed.
    """
    if not sys.platform.startswith("linux") or os.geteuid() != 0 or not apt.is_debian():
        raise StopError(
            f"{version_of('BASE_IMAGE')} could not be pulled: {why_no_pull}",
            "make a registry reachable, or load any Debian base by hand and name it in .env (TARN_BASE=...); "
            "on Debian, run this as root once: it then makes the base from packages",
        )
    path = shell.environment()["PATH"]
    if shutil.which("debootstrap", path=path) is None:
        line("    installing debootstrap")
        apt.install(["debootstrap"], LOG, timeout_s=MAKE_TIMEOUT_S)
    suite, mirrors = version_of("BASE_SUITE"), apt.mirrors()
    with tempfile.TemporaryDirectory(prefix="tarn-base-", dir=_scratch()) as folder:
        tree = Path(folder) / "tree"
        line(f"    debootstrap {suite}")
        command = [
            "debootstrap",
            "--variant=minbase",
            "--include=ca-certificates",
            suite,
            str(tree),
            mirrors.main,
        ]
        _logged(command, MAKE_TIMEOUT_S, "debootstrap", apt.NETWORK_FIX)
        make_slim(tree)
        if mirrors.security:
            lines = [f"deb {mirrors.main} {suite} main", f"deb {mirrors.security} {suite}-security main"]
            (tree / "etc/apt/sources.list").write_text("\n".join(lines) + "\n")
        copy_certificates(tree / str(CA_DIR).lstrip("/"))
        line("    security updates and CA certificates")
        noninteractive = ["env", "DEBIAN_FRONTEND=noninteractive"]
        for step in (
            ["apt-get", "update"],
            ["apt-get", "upgrade", "-y"],
            ["update-ca-certificates"],
            ["apt-get", "clean"],
        ):
            what = f"{' '.join(step)} in the base"
            _logged(["chroot", str(tree), *noninteractive, *step], MAKE_TIMEOUT_S, what, apt.NETWORK_FIX)
        for leftover in ("var/lib/apt/lists", "var/cache/apt", "var/log"):
            for file in [f for f in (tree / leftover).rglob("*") if f.is_file()]:
                file.unlink()
        (tree / "etc/resolv.conf").write_text("")
        _import(tree, image)


def make_slim(tree: Path) -> None:
    """Write the SLIM settings into a tree, and delete the files already there that they exclude."""
    for name, text in SLIM.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(text, encoding="utf-8")
    excluded = [
        row.split()[1] for row in SLIM["etc/dpkg/dpkg.cfg.d/docker-slim"].splitlines() if "exclude" in row
    ]
    for pattern in excluded:
        for file in (tree / pattern.strip("/*")).rglob("*"):
            if file.name != "copyright" and (file.is_symlink() or file.is_file()):
                file.unlink()


def _scratch() -> str:
    """A folder for the debootstrap tree, not on a nodev mount, as it needs device nodes."""
    for candidate in (tempfile.gettempdir(), "/var/tmp", str(project.STATE_DIR)):
        if os.path.isdir(candidate) and not os.statvfs(candidate).f_flag & (os.ST_NODEV | os.ST_NOEXEC):
            return candidate
    return tempfile.gettempdir()


def _import(tree: Path, image: str) -> None:
    line("    importing it into the engine")
    archive = tree.parent / "base.tar"
    _logged(
        ["tar", "-C", str(tree), "-cf", str(archive), "."],
        MAKE_TIMEOUT_S,
        "packing the base",
        "free some disk space",
    )
    changes = [
        option for name, value in ENVIRONMENT.items() for option in ("--change", f"ENV {name}={value}")
    ]
    command = ["docker", "import", *changes, "--change", 'CMD ["/bin/bash"]', str(archive), image]
    _logged(command, MAKE_TIMEOUT_S, "importing the base", "see the log of the engine")
