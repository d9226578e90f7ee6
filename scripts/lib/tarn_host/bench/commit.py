"""scripts/bench commit: what a commit costs, with Tarn and with others, on one store of its own."""

from __future__ import annotations

import json
import shlex
import shutil
import socket
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tarn_host import shell
from tarn_host.bench.ingest import Own, own_stack
from tarn_host.bench.options import shown
from tarn_host.console import StopError, line
from tarn_host.stack import project
from tarn_host.stack.project import ROOT
from tarn_host.testing import python

LOG = project.LOG_DIR / "bench-commit.log"
FIX = f"see .tarn/logs/{LOG.name}"
HERE = Path(__file__).parent
PEERS_FILE = HERE / "commit.compose.yml"
PINS = HERE / "commit_packages.txt"
SITE = project.STATE_DIR / "bench" / "site"
STAMP = SITE / ".tarn-synced"
BUILD_TIMEOUT_S = 1_800
READY_S_MAX = 120
SITE_TIMEOUT_S = 600
RUN_TIMEOUT_S = 4 * 3_600
PEERS = {
    "reference": ("TARN_PORT_REFERENCE", "/v1/config", "pyiceberg, reference server"),
    "nessie": ("TARN_PORT_NESSIE", "/iceberg/v1/config", "pyiceberg, Nessie"),
}
"""Service -> variable of its port, path that answers when it is ready, and its name in the results."""
LIVE_FROM = 2_000
BY_CLIENT = ("pyiceberg, SQLite", "deltalake")
"""Contenders that need the packages of commit_packages.txt."""

MODULE_ENV = {"PYTHONPATH": str(SITE), "PYTHONWARNINGS": "ignore", "TARN_LOG_LEVEL": "error"}
"""Variables of a measuring process."""


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        commits: timed commits of each contender at each depth.
        rounds: number of rounds that they are divided into.
        depths: numbers of commits that the tables have seen.
        cell_s_max: seconds of timed commits after which a contender is not timed further at a depth.
        writers: numbers of writers of one table.
        writer_s: seconds that writers begin new commits.
        load_s: seconds of each measurement of loads.
    """

    commits: int = 50
    rounds: int = 5
    depths: tuple[int, ...] = (0, 200, 2_000, 10_000)
    cell_s_max: float = 40.0
    writers: tuple[int, ...] = (1, 4, 16, 64)
    writer_s: float = 5.0
    load_s: float = 5.0

    def small(self) -> Options:
        """The same with everything small: whether it works, not what it costs."""
        return replace(self, commits=4, rounds=2, depths=(0, 50), writers=(1, 4), writer_s=1.0, load_s=1.0)

    def words(self) -> str:
        """The options of the command that measures this."""
        if self == Options().small():
            return "--quick"
        depths, writers = shown(self.depths), shown(self.writers)
        sizes = f"--commits {self.commits} --rounds {self.rounds} --seconds {self.cell_s_max:g}"
        return f"{sizes} --depths {depths} --writers {writers}"

    @property
    def live(self) -> tuple[int, ...]:
        """The depths at which Tarn is measured also with all snapshots live: those beyond its retention."""
        return tuple(depth for depth in self.depths if depth >= LIVE_FROM or depth == max(self.depths) > 0)


def measure(options: Options) -> list[dict[str, Any]]:
    """The results of one run.

    Raises:
        StopError: the stack does not start, a row was lost, or the benchmark failed.
    """
    line(python.ensure())
    missing = {name: why for why in [site()] if why for name in BY_CLIENT}
    with own_stack(log_level="info") as own, scratch_folder() as folder:
        own.compose("stop", "ingest", "kafka", "reaper")
        with _peers(own, missing) as addresses:
            asked = {
                **asdict(options),
                "live": options.live,
                "missing": missing,
                "places": places(own, addresses, folder),
            }
            file = folder / "asked.json"
            file.touch(mode=0o600)
            file.write_text(json.dumps(asked), encoding="utf-8")
            return [run_module("tarn_demo.bench.commits", file)]


def module_command(module: str, file: Path) -> list[str]:
    """The command of a measuring process, which reads what is asked from a file; see `MODULE_ENV`."""
    return [str(python.python()), "-B", "-m", module, str(file)]


def run_module(module: str, file: Path, *, verb: str = "commit") -> dict[str, Any]:
    """The result of a measuring process, whose progress is shown.

    Args:
        module: what it runs.
        file: what is asked of it, as JSON.
        verb: the command of scripts/bench.

    Raises:
        StopError: it failed.
    """
    last: list[str] = []

    def show(text: str) -> None:
        if text.startswith("{"):
            last.append(text)
        else:
            line(f"    {text}" if not text.startswith(" ") else text)

    running = shell.Running(module_command(module, file), on_line=show, env=MODULE_ENV, cwd=ROOT)
    try:
        code = running.wait(RUN_TIMEOUT_S)
    finally:
        running.stop()
    if code != 0 or not last:
        raise StopError(
            f"the measuring process ended with exit code {code}:\n" + "\n".join(list(running.tail)[-10:]),
            f"its own words above say why; `scripts/bench {verb} --quick` shows sooner whether it works",
        )
    found = json.loads(last[-1])
    assert isinstance(found, dict)
    return found


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A folder for the SQLite file and the keys, removed afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="tarn-bench-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def site() -> str:
    """Install the packages of commit_packages.txt beside .venv; the reason if that fails, else empty."""
    mark = PINS.read_text(encoding="utf-8")
    if STAMP.is_file() and STAMP.read_text(encoding="utf-8") == mark:
        return ""
    shutil.rmtree(SITE, ignore_errors=True)
    command = [str(python.UV_HOME / "bin/uv"), "pip", "install", "--python", str(python.python())]
    command += ["--target", str(SITE), "--require-hashes", "--no-deps", "--no-build", "-r", str(PINS)]
    try:
        shell.logged(command, LOG, timeout_s=SITE_TIMEOUT_S, what="installing commit_packages.txt", fix=FIX)
    except StopError as error:
        return error.what.splitlines()[0]
    STAMP.write_text(mark, encoding="utf-8")
    return ""


@contextmanager
def _peers(own: Own, missing: dict[str, str]) -> Iterator[dict[str, str]]:
    """Start the other catalogs; service -> address. If one does not start, `missing` gets the reason."""
    env = {**own.env, **{variable: str(_free_port()) for variable, _, _ in PEERS.values()}}
    compose = ["docker", "compose", "-f", str(project.COMPOSE_FILE), "-f", str(PEERS_FILE)]
    found = {}
    try:
        for service, (variable, path, name) in PEERS.items():
            line(f"starting {name}")
            try:
                for words, timeout_s in ((["build"], BUILD_TIMEOUT_S), (["up", "-d", "--no-deps"], 120)):
                    shell.logged(
                        [*compose, *words, service],
                        LOG,
                        timeout_s=timeout_s,
                        what=f"{words[0]} of {service}",
                        fix=FIX,
                        env=env,
                        cwd=ROOT,
                    )
                address = f"http://127.0.0.1:{env[variable]}"
                _await(address + path)
                found[service] = address
            except StopError as error:
                said = shell.capture(
                    [*compose, "logs", "--tail", "40", service], timeout_s=60, env=env, cwd=ROOT
                )
                with LOG.open("a", encoding="utf-8") as sink:
                    sink.write(said.out + said.err)
                missing[name] = error.what.splitlines()[0]
        yield found
    finally:
        shell.capture([*compose, "rm", "--stop", "--force", *PEERS], timeout_s=120, env=env, cwd=ROOT)
        for service in PEERS:
            image = f"tarn/{service}:{own.env['COMPOSE_PROJECT_NAME']}"
            shell.capture(["docker", "image", "rm", image], timeout_s=60)


def _await(url: str) -> None:
    """Wait until the address answers with 200.

    Raises:
        StopError: it does not.
    """
    until = time.monotonic() + READY_S_MAX
    said = ""
    while time.monotonic() < until:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except (OSError, urllib.error.URLError) as error:
            said = str(error)
        time.sleep(0.5)
    raise StopError(f"{url} does not answer within {READY_S_MAX} s: {said}", FIX)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def places(own: Own, addresses: Mapping[str, str], folder: Path) -> dict[str, Any]:
    """Addresses and keys for the measuring process."""
    said = own.compose("run", "--rm", "--no-deps", "-T", "cli", "env")
    words = [shlex.split(row)[1] for row in said.splitlines() if row.startswith("export ")]
    found = dict(word.split("=", 1) for word in words)
    read = "cat /run/tarn/secrets/root_user; echo; cat /run/tarn/secrets/root_password"
    user, password = own.compose("exec", "-T", "minio", "sh", "-c", read).split()
    return {
        "bucket": own.env.get("TARN_BUCKET") or "tarn",
        "region": found["AWS_REGION"],
        "endpoint": found["TARN_S3_ENDPOINT"],
        "catalog": found["TARN_CATALOG_URI"],
        "warehouse": found["TARN_WAREHOUSE"],
        "credential": found["TARN_CATALOG_CREDENTIAL"],
        "client": {"access": found["AWS_ACCESS_KEY_ID"], "secret": found["AWS_SECRET_ACCESS_KEY"]},
        "root": {"access": user, "secret": password},
        "reference": addresses.get("reference", ""),
        "nessie": addresses.get("nessie", ""),
        "folder": str(folder),
    }
