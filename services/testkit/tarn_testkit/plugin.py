"""The pytest plugin: the fixtures `lake` and `namespace`, their options, and the marker `tarn_stack`."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import orjson
import pytest

from tarn_testkit.choice import PROFILES, Choice, Wanted, choose
from tarn_testkit.containers import no_engine
from tarn_testkit.environment import BUCKET, INGEST, NAMES, parse_exports, require_values
from tarn_testkit.errors import SetupError

if TYPE_CHECKING:
    from tarn_testkit.backend import Backend
    from tarn_testkit.lake import Lake, Namespace
    from tarn_testkit.started import SharedStack

STACK, FAULTS = "tarn_stack", "tarn_faults"
INPUT = "tarn_session"
CONNECT_S = 5.0
MARKERS = (
    f"{STACK}(profile): this test needs a running stack (the gateway, a service to kill), of the profile "
    "full if it "
    "names that (Trino, Spark); skipped with --tarn-embedded, and in the small profile",
    f"{FAULTS}: this test kills or freezes a service; skipped on a stack that was running before, but for "
    "--tarn-faults",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A test session; the same in all processes of pytest-xdist but for the worker.

    Attributes:
        id: part of the names of everything that the session makes.
        folder: folder of the session, shared by its processes.
        choice: which lake it gets.
        env: the values of `scripts/tarn env`, of a lake that was running before.
        home: a clone of Tarn; None: none is known.
        profile: profile of a stack that is started.
        worker: the process of pytest-xdist; empty without it.
    """

    id: str
    folder: Path
    choice: Choice
    env: dict[str, str]
    home: Path | None
    profile: str
    worker: str

    @property
    def stack(self) -> SharedStack:
        """The stack that the session starts."""
        from tarn_testkit.started import SharedStack

        return SharedStack(self.folder, f"tarn-kit-{self.id}")


SESSION: pytest.StashKey[Session] = pytest.StashKey()
LAKE: pytest.StashKey[Lake] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("tarn", "a real lake for the tests (Tarn)")
    group.addoption(
        "--tarn-embedded",
        action="store_true",
        help="catalog and ingest engine in the test's process, over a local folder; no engine is needed",
    )
    group.addoption(
        "--tarn-env",
        metavar="FILE",
        type=Path,
        help="attach to the stack whose `scripts/tarn env` printed FILE (or the variable TARN_ENV)",
    )
    group.addoption(
        "--tarn-profile",
        choices=PROFILES,
        help="start a stack of this profile, even if one runs (default: small, without Trino and Spark)",
    )
    group.addoption(
        "--tarn-keep",
        action="store_true",
        help="leave namespaces, topics, ingestors and a started stack as they are at the end",
    )
    group.addoption(
        "--tarn-faults",
        action="store_true",
        help="allow kill and freeze on a stack that was running before",
    )
    parser.addini("tarn_home", "a clone of Tarn, from which a stack is started", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Settle which lake the session gets; nothing is started yet."""
    for line in MARKERS:
        config.addinivalue_line("markers", line)
    asked = [name for name in ("--tarn-embedded", "--tarn-env", "--tarn-profile") if config.getoption(name)]
    if len(asked) > 1:
        raise pytest.UsageError(f"{' and '.join(asked)} ask for different lakes; give one of them")
    given: dict[str, str] = getattr(config, "workerinput", {}).get(INPUT, {})
    home, no_home = None, ""
    try:
        home = _home(config)
    except SetupError as e:
        no_home = str(e)
    env, problem = {}, ""
    try:
        env = _env(config)
    except SetupError as e:
        problem = str(e)
    profile: str | None = config.getoption("--tarn-profile")
    choice = choose(
        Wanted(
            embedded=bool(config.getoption("--tarn-embedded")),
            profile=profile,
            address=env.get("TARN_CATALOG_URI", "") or ("(unknown)" if problem else ""),
            home=home,
            problem=no_home,
        ),
        no_engine,
    )
    if problem and choice.kind == "attached":
        choice = Choice(kind="attached", asked=True, why=f"attached to nothing: {problem}", failure=problem)
    config.stash[SESSION] = Session(
        id=given.get("id") or secrets.token_hex(3),
        folder=Path(given.get("folder") or tempfile.mkdtemp(prefix="tarn-kit-")),
        choice=choice,
        env=env,
        home=home,
        profile=profile or "small",
        worker=os.environ.get("PYTEST_XDIST_WORKER", "") if given else "",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a process of pytest-xdist the id and the folder of its session."""
    session = node.config.stash[SESSION]
    node.workerinput[INPUT] = {"id": session.id, "folder": str(session.folder)}


def pytest_report_header(config: pytest.Config) -> str:
    """The line on the lake."""
    session = config.stash[SESSION]
    return f"tarn: {session.choice.why}; names of this session begin with kit_{session.id}"


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove a stack that a process of this session started."""
    session = config.stash.get(SESSION, None)
    if session is None or hasattr(config, "workerinput"):
        return
    stack = session.stack
    if config.getoption("--tarn-keep") and any(session.folder.iterdir()):
        found = stack.seen()
        kept = (
            "the embedded lake"
            if found is None
            else f"the stack {found.project}; to remove it: {found.removal}"
        )
        print(f"tarn: kept in {session.folder}: {kept}")  # noqa: T201
        return
    try:
        stack.remove()
    except SetupError as e:
        print(f"tarn: {e}")  # noqa: T201


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that cannot run on the lake that was asked for; fail it if nobody asked for that lake."""
    stack, faults = item.get_closest_marker(STACK), item.get_closest_marker(FAULTS)
    if stack is None and faults is None:
        return
    session = item.config.stash[SESSION]
    choice = session.choice
    if choice.kind == "embedded":
        if choice.asked:
            pytest.skip("needs a running stack, and --tarn-embedded was given")
        pytest.fail(
            f"this test needs a running stack, and the lake is {choice.why}. Make one possible, attach to "
            "a running "
            "one with --tarn-env, or have such tests skipped: --tarn-embedded",
            pytrace=False,
        )
    if faults is not None and choice.kind == "attached" and not item.config.getoption("--tarn-faults"):
        pytest.skip("breaks a service, and the stack was running before: allow it with --tarn-faults")
    if stack is not None and stack.kwargs.get("profile") == "full" and _is_small(session):
        pytest.skip("needs the full profile: --tarn-profile full, or scripts/up --full")


def _is_small(session: Session) -> bool:
    """Whether the stack is of the small profile: nothing listens where Trino would."""
    if session.choice.kind == "started":
        return session.profile == "small"
    where = urlsplit(session.env.get("TARN_TRINO_URI", ""))
    try:
        socket.create_connection(
            (where.hostname or "127.0.0.1", where.port or 8080), timeout=CONNECT_S
        ).close()
    except OSError:
        return True
    return False


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Delete the ingestors that a test declared, before the namespace that they may write into is dropped."""
    lake = item.config.stash.get(LAKE, None)
    try:
        if lake is not None:
            lake.end_of_test()
    finally:
        yield


@pytest.fixture(scope="session")
def lake(pytestconfig: pytest.Config) -> Iterator[Lake]:
    """A real lake: a stack that is running, or one started for this session, or embedded in this process."""
    session = pytestconfig.stash[SESSION]
    backend, failure = None, ""
    try:
        backend = _backend(pytestconfig, session)
    except SetupError as e:
        failure = str(e)
    if backend is None:
        pytest.fail(f"no lake: {failure}", pytrace=False)
    from tarn_testkit.lake import Lake

    made = Lake(
        backend,
        session=f"{session.id}{session.worker}",
        embedded=session.choice.kind == "embedded",
        keep=bool(pytestconfig.getoption("--tarn-keep")),
    )
    pytestconfig.stash[LAKE] = made
    try:
        yield made
    finally:
        del pytestconfig.stash[LAKE]
        made.close()


@pytest.fixture
def namespace(lake: Lake, request: pytest.FixtureRequest) -> Iterator[Namespace]:
    """A namespace of the test's own, dropped with its tables, topics and ingestors."""
    with lake.namespace(request.node.name) as made:
        yield made


@pytest.fixture(scope="session")
def tarn_session(pytestconfig: pytest.Config) -> Session:
    """The session, for fixtures that build on `lake`."""
    return pytestconfig.stash[SESSION]


def _backend(config: pytest.Config, session: Session) -> Backend:
    """The lake's parts.

    Raises:
        SetupError: it cannot be had.
    """
    choice = session.choice
    if choice.failure:
        raise SetupError(choice.failure)
    if choice.kind == "embedded":
        from tarn_testkit.embedded import EmbeddedLake

        return EmbeddedLake(session.folder / f"embedded{session.worker}")
    if choice.kind == "attached":
        require_values(session.env)
    from tarn_testkit.attached import AttachedLake

    if choice.kind == "attached":
        return AttachedLake(session.env, faults=bool(config.getoption("--tarn-faults")))
    assert session.home is not None, "chosen because a clone is known"
    found = session.stack.get(session.home, session.profile)
    return AttachedLake(found.env, project=found.project, faults=True)


def _env(config: pytest.Config) -> dict[str, str]:
    """The values of `scripts/tarn env`: of the file that was named, or the environment.

    Raises:
        SetupError: the file cannot be read, or has no such values.
    """
    file: Path | str | None = config.getoption("--tarn-env") or os.environ.get("TARN_ENV")
    if file is None or file == "":
        return {name: os.environ[name] for name in (*NAMES, INGEST, BUCKET) if name in os.environ}
    fix = "make it again: scripts/tarn env > FILE"
    try:
        found = parse_exports(Path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise SetupError(f"{file} cannot be read as the output of scripts/tarn env: {e}; {fix}") from e
    if "TARN_CATALOG_URI" not in found:
        raise SetupError(f"{file} has no TARN_CATALOG_URI: it is not the output of scripts/tarn env; {fix}")
    return found


def _home(config: pytest.Config) -> Path | None:
    """A clone of Tarn: as named, or the one that the kit was installed from.

    Raises:
        SetupError: what was named is not one.
    """
    places = {
        "TARN_HOME": os.environ.get("TARN_HOME"),
        "tarn_home of pytest's settings": config.getini("tarn_home"),
    }
    for place, named in places.items():
        if not named:
            continue
        found = (config.rootpath / Path(named).expanduser()).resolve()
        if not _is_clone(found):
            raise SetupError(
                f"{found} ({place}) is not a clone of Tarn: it has no scripts/up and docker-compose.yml"
            )
        return found
    try:
        text = distribution("tarn-testkit").read_text("direct_url.json")
    except PackageNotFoundError:
        text = None
    url = urlsplit(orjson.loads(text)["url"] if text else "")
    if url.scheme != "file":
        return None
    return next((one for one in Path(unquote(url.path)).parents if _is_clone(one)), None)


def _is_clone(folder: Path) -> bool:
    return (folder / "scripts" / "up").is_file() and (folder / "docker-compose.yml").is_file()


__all__: list[str] = ["Session", "lake", "namespace", "tarn_session"]
