"""This clone: its folder, its Compose project, its pinned versions, its .env."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import pwd
import re
import shlex
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tarn_host.console import StopError, no_room

ROOT = Path(__file__).resolve().parents[4]
STATE_DIR = ROOT / ".tarn"
LOG_DIR = STATE_DIR / "logs"
ENV_FILE = ROOT / ".env"
SPECS_DIR = ROOT / "services/specs"
COMPOSE_FILE = ROOT / "docker-compose.yml"

PART = ".part"
_PATH_BYTES_MAX = 1024  # MAXPATHLEN of macOS
ANY_BYTES = "surrogateescape"
MANAGED_BEGIN = "# managed by scripts/up: begin (rewritten by every run; put your own settings outside)"
MANAGED_END = "# managed by scripts/up: end"

_ASSIGNMENT = re.compile(r"^\s*(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*?)\s*$")
_QUOTED = re.compile(r"""(["'])((?:\\.|(?!\1)[^\\])*)\1\s*(?:#.*)?""")
PROFILES = ("full", "small")
CATALOG = "CATALOG"
CATALOG_FILES = {"tarn": "", "reference": "catalog/reference/compose.yml"}
"""Value of CATALOG -> compose file on top of the stack's own, relative to the clone."""
REPLICAS = "TARN_CATALOG_REPLICAS"
REPLICAS_FILE = "catalog/replicas/compose.yml"
REPLICAS_MAX = 8
PORT_ORDER = (
    "S3",
    "CATALOG",
    "KAFKA",
    "TRINO",
    "SPARK",
    "SPARK_UI",
    "INGEST",
    "JUPYTER",
    "GATEWAY",
    "STREAM",
)
"""Order in which a block of ports is assigned; a port that is not listed comes after these."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")
"""Compose's rule; the name is also the tag of images, and a part of the names of files and containers."""
_REMEMBERED = re.compile(r"TARN_PORT_[A-Z0-9_]+|TARN_PROFILE")
_PORT = re.compile(r"\$\{(TARN_PORT_[A-Z0-9_]+):-(\d+)\}")


@dataclass(frozen=True)
class Project:
    """Compose settings of this clone.

    Attributes:
        name: the Compose project, which also tags Tarn's images.
        base: the base image of every Dockerfile.
        own_base: whether `base` is the one that scripts/up builds (not one that the user named).
        settings: values of .env and the environment; the environment wins, then the user's own lines.
        fixed: names of settings chosen by the user, which no script changes.
        choices: settings that this run of scripts/up got or chose, on top of .env: ports, the profile.
    """

    name: str
    base: str
    own_base: bool
    settings: Mapping[str, str]
    fixed: frozenset[str] = frozenset()
    choices: Mapping[str, str] = field(default_factory=dict)

    @property
    def profile(self) -> str:
        """`full`, or `small`: without Spark, Trino and what needs them."""
        return self.settings.get("TARN_PROFILE") or "full"

    @property
    def overlay(self) -> str:
        """The compose file on top of the stack's own, relative to the clone; empty without one."""
        if int(self.settings.get(REPLICAS) or 1) > 1:
            return REPLICAS_FILE
        return CATALOG_FILES[self.settings.get(CATALOG) or "tarn"]

    def env(self) -> dict[str, str]:
        """The variables of every docker and docker compose call; the rest comes from .env itself."""
        own = {"COMPOSE_PROJECT_NAME": self.name, "TARN_BASE": self.base, "DOCKER_BUILDKIT": "1"}
        files = (self.settings.get("COMPOSE_FILE") or COMPOSE_FILE.name).split(":")
        # For plain Compose the user may name it in .env; Compose refuses one that is merged with itself.
        if self.overlay and self.overlay not in map(os.path.normpath, files):
            own["COMPOSE_FILE"] = ":".join([*files, self.overlay])
        return {**{k: v for k, v in self.choices.items() if k not in self.fixed}, **own}


def parse_env(text: str) -> dict[str, str]:
    """The assignments of an env file, without comments, blank lines and quotes around values."""
    found: dict[str, str] = {}
    for raw in text.splitlines():
        if raw.lstrip().startswith("#"):
            continue
        match = _ASSIGNMENT.match(raw)
        if match:
            found[match.group(1)] = _value(match.group(2))
    return found


def _value(text: str) -> str:
    """The value of an assignment: up to the closing quote, or to a remark, as Compose reads it."""
    quoted = _QUOTED.fullmatch(text)
    if quoted:
        quote, value = quoted.groups()
        return value.replace('\\"', '"') if quote == '"' else value
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'":
        return text[1:-1]
    return re.sub(r"\s+#.*$", "", text)


def without_managed(text: str) -> str:
    """The text of .env without the block that scripts/up manages."""
    kept: list[str] = []
    inside = False
    for raw in text.splitlines():
        if raw.startswith("# managed by scripts/up: begin"):
            inside = True
        elif inside and raw.startswith(MANAGED_END):
            inside = False
        elif not inside:
            kept.append(raw)
    while kept and not kept[-1].strip():
        kept.pop()
    return "".join(f"{raw}\n" for raw in kept)


def merge_env(text: str, managed: Mapping[str, str]) -> str:
    """The new text of .env: the user's lines, then the managed block without what the user sets."""
    own = without_managed(text)
    taken = parse_env(own)
    block = [f"{name}={value}" for name, value in managed.items() if name not in taken]
    return own + "".join(f"{raw}\n" for raw in [MANAGED_BEGIN, *block, MANAGED_END])


def default_name(root: Path) -> str:
    """`tarn-` and six hex digits of the SHA-256 of the clone's real path."""
    return "tarn-" + hashlib.sha256(_real_path(root)).hexdigest()[:6]


def _real_path(root: Path) -> bytes:
    """The path without links; on macOS as the disk has it, in whatever case of letters it was typed."""
    plain = os.fsencode(str(root.resolve()))
    command = getattr(fcntl, "F_GETPATH", None)
    if command is None:
        return plain
    try:
        handle = os.open(root, os.O_RDONLY)
    except OSError:
        return plain
    try:
        return fcntl.fcntl(handle, command, bytes(_PATH_BYTES_MAX)).partition(b"\0")[0]
    except OSError:
        return plain
    finally:
        os.close(handle)


def versions(root: Path = ROOT) -> dict[str, str]:
    """The pinned versions of versions.env.

    Raises:
        StopError: the file does not exist.
    """
    path = root / "versions.env"
    if not path.is_file():
        raise StopError(f"{path} is missing", "clone the repository again: this file belongs to it")
    return parse_env(path.read_text(encoding="utf-8"))


def version_of(name: str) -> str:
    """One pinned version.

    Raises:
        StopError: versions.env does not contain it.
    """
    found = versions().get(name)
    if not found:
        raise StopError(f"versions.env has no {name}", "clone the repository again: this line belongs to it")
    return found


def remembered(text: str) -> dict[str, str]:
    """Settings that scripts/up keeps in its block of .env: ports, the profile."""
    own = without_managed(text).splitlines()
    block = "\n".join(raw for raw in text.splitlines() if raw not in own)
    return {k: v for k, v in parse_env(block).items() if _REMEMBERED.fullmatch(k)}


def load(environ: Mapping[str, str] | None = None, choices: Mapping[str, str] | None = None) -> Project:
    """This clone's project: the environment wins, then the user's lines of .env, `choices`, stored settings.

    Raises:
        StopError: TARN_PROFILE is not a profile, CATALOG not a catalog, TARN_CATALOG_REPLICAS not a number
            of replicas of it, or COMPOSE_PROJECT_NAME not a name.
    """
    environ = os.environ if environ is None else environ
    text = _env_text()
    fixed = parse_env(without_managed(text))
    fixed.update({k: v for k, v in environ.items() if k.startswith(("TARN_", "COMPOSE_")) or k == CATALOG})
    told = {k: v for k, v in {**remembered(text), **(choices or {})}.items() if v}
    settings = {**told, **fixed}
    profile = settings.get("TARN_PROFILE") or "full"
    if profile not in PROFILES:
        raise StopError(f"TARN_PROFILE={profile} is no profile", f"choose one of: {' '.join(PROFILES)}", 2)
    catalog = settings.get(CATALOG) or "tarn"
    if catalog not in CATALOG_FILES:
        raise StopError(f"CATALOG={catalog} is no catalog", f"choose one of: {' '.join(CATALOG_FILES)}", 2)
    replicas = settings.get(REPLICAS) or "1"
    if replicas not in map(str, range(1, REPLICAS_MAX + 1)):
        fix = f"choose a number from 1 to {REPLICAS_MAX}"
        raise StopError(f"{REPLICAS}={replicas} is no number of replicas", fix, 2)
    if catalog != "tarn" and replicas != "1":
        fix = f"set {REPLICAS}=1: its state is a file of its own"
        raise StopError(f"CATALOG={catalog} has no replicas ({REPLICAS}={replicas})", fix, 2)
    own_base = not settings.get("TARN_BASE")
    base = settings.get("TARN_BASE") or f"tarn/base:{version_of('BASE_SUITE')}-{version_of('BASE_DATE')}"
    name = settings.get("COMPOSE_PROJECT_NAME") or default_name(ROOT)
    if not _NAME.fullmatch(name):
        fix = "use lower-case letters, digits, - and _, the first a letter or a digit, 100 at most"
        raise StopError(f"COMPOSE_PROJECT_NAME={name} is no name of a project", fix, 2)
    return Project(
        name=name, base=base, own_base=own_base, settings=settings, fixed=frozenset(fixed), choices=told
    )


def setting(name: str) -> str:
    """A setting of the scripts: the environment wins, then the user's lines of .env; empty if unset."""
    if name in os.environ:
        return os.environ[name]
    return parse_env(without_managed(_env_text())).get(name, "")


def _env_text() -> str:
    """The text of .env without a byte order mark, as Compose reads it; what is not UTF-8 stays as it is."""
    return ENV_FILE.read_text(encoding="utf-8-sig", errors=ANY_BYTES) if ENV_FILE.is_file() else ""


def former_name() -> str:
    """The project that scripts/up wrote into .env where the clone was before it was moved, renamed or copied.

    Empty if it is where it was, or if the user named the project.
    """
    text = _env_text()
    if "COMPOSE_PROJECT_NAME" in parse_env(without_managed(text)) or "COMPOSE_PROJECT_NAME" in os.environ:
        return ""
    former = parse_env(text).get("COMPOSE_PROJECT_NAME", "")
    return "" if former == default_name(ROOT) else former


def write_env(project: Project) -> bool:
    """Update .env; True if it changed. It keeps its mode, and stays a link if it is one.

    A name or base from the environment applies to that run only and is not written; nor are the choices of a
    run under such a name.
    """
    old = _env_text()
    named = parse_env(without_managed(old)).get("COMPOSE_PROJECT_NAME") or default_name(ROOT)
    kept = project.choices if project.name == named else remembered(old)
    managed = {
        "COMPOSE_PROJECT_NAME": default_name(ROOT),
        "TARN_BASE": f"tarn/base:{version_of('BASE_SUITE')}-{version_of('BASE_DATE')}",
        "DOCKER_BUILDKIT": "1",
        **dict(sorted(kept.items())),
    }
    new = merge_env(old, managed)
    if new == old:
        return False
    target = ENV_FILE.resolve()
    part = target.with_name(target.name + PART)
    part.unlink(missing_ok=True)
    with open(part, "x", encoding="utf-8", errors=ANY_BYTES, opener=private) as file:
        _make_like(target, file.fileno())
        file.write(new)
    part.replace(target)
    return True


def hindered(error: OSError) -> StopError:
    """A StopError for a full or a read-only disk, or for a file that another user left in this clone's state.

    Any other error is raised again.
    """
    if error.errno == errno.EROFS and error.filename:
        return StopError(
            f"{os.fsdecode(error.filename)} cannot be written: {error.strerror}",
            "make that file system writable, or clone the repository on another one and run it there",
        )
    if not isinstance(error, PermissionError) or not error.filename:
        return no_room(error)
    path = Path(os.fsdecode(error.filename))
    if STATE_DIR not in (path, *path.parents) and path not in _env_files():
        raise error
    found = next(one for one in (path, *path.parents) if os.path.lexists(one))
    names = " ".join(one.name for one in (STATE_DIR, ENV_FILE) if os.path.lexists(one))
    there = shlex.quote(str(ROOT))
    return StopError(
        f"{found} belongs to {_owner(found)}, and {_user(os.geteuid())} may not use it: {error.strerror}",
        f"if a run as another user left it there, give it back: cd {there} && sudo chown -R $USER {names}",
    )


def _env_files() -> list[Path]:
    real = ENV_FILE.resolve()
    return [file.with_name(file.name + end) for file in (ENV_FILE, real) for end in ("", PART)]


def _owner(path: Path) -> str:
    try:
        return _user(path.lstat().st_uid)
    except PermissionError:
        return "somebody else"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def private(path: str, flags: int) -> int:
    """Opens a file that nobody else can read."""
    return os.open(path, flags, 0o600)


def _make_like(former: Path, handle: int) -> None:
    """Give an open file the mode and owner of another one; if there is none, those of any new file."""
    if former.is_file():
        found = former.stat()
        with contextlib.suppress(OSError):  # only root gives files away, and not every file system has owners
            os.fchown(handle, found.st_uid, found.st_gid)
        with contextlib.suppress(OSError):
            os.fchmod(handle, stat.S_IMODE(found.st_mode))
        return
    mask = os.umask(0)
    os.umask(mask)
    os.fchmod(handle, 0o666 & ~mask)


def make_readable(folder: Path) -> list[str]:
    """Make a folder that a container mounts world-readable; returns what was changed (umask 077, 027).

    Raises:
        StopError: it belongs to another user.
    """
    changed = []
    for path in [folder, *sorted(folder.rglob("*"))]:
        if path.is_symlink():  # it may lead nowhere, as those by which Emacs locks a file
            continue
        mode = stat.S_IMODE(path.stat().st_mode)
        wanted = mode | (0o555 if path.is_dir() else 0o444)
        if wanted == mode:
            continue
        try:
            path.chmod(wanted)
        except PermissionError:
            raise StopError(
                f"{path} (mode {mode:03o}) cannot be read by the user of a container",
                f"let its owner run: chmod -R a+rX {folder}",
            ) from None
        changed.append(path.relative_to(folder.parent).as_posix())
    return changed


def ports(settings: Mapping[str, str], compose_text: str) -> dict[str, str]:
    """Every TARN_PORT_* variable of the compose file with its setting or default."""
    found: dict[str, str] = {}
    for name, default in _PORT.findall(compose_text):
        found[name] = settings.get(name) or default
    return found


def port_block(first: int, names: Iterable[str]) -> dict[str, str]:
    """Ports from `first` on for these variables, always in the same order."""
    rank = {f"TARN_PORT_{name}": place for place, name in enumerate(PORT_ORDER)}
    last = len(rank)
    found = {}
    for name in sorted(names, key=lambda n: (rank.get(n, last), n)):
        if name in rank:
            found[name] = str(first + rank[name])
        else:
            found[name] = str(first + last)
            last += 1
    return found
