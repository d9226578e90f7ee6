"""Iceberg's sink of Kafka Connect for `scripts/bench peers`: its image, and a worker in a container."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tarn_host import shell
from tarn_host.bench.ingest import LOG, Own
from tarn_host.stack import project
from tarn_host.stack.project import ROOT

SERVICE = "connect"
COMPOSE_FILE = Path(__file__).parent / "peers.compose.yml"
FILES = ("-f", str(project.COMPOSE_FILE), "-f", str(COMPOSE_FILE))
BUILD_TIMEOUT_S = 1_800
FIX = f"see .tarn/logs/{LOG.name}"


@contextmanager
def image(own: Own) -> Iterator[None]:
    """The worker's image, built from jars of Maven Central and removed at the end.

    Raises:
        StopError: it cannot be built.
    """
    try:
        shell.logged(
            ["docker", "compose", *FILES, "build", SERVICE],
            LOG,
            timeout_s=BUILD_TIMEOUT_S,
            what="the image of Kafka Connect with Iceberg's sink",
            fix=FIX,
            env=own.env,
            cwd=ROOT,
        )
        yield
    finally:
        tag = f"tarn/{SERVICE}:{own.env['COMPOSE_PROJECT_NAME']}"
        shell.capture(["docker", "image", "rm", tag], timeout_s=60)


@contextmanager
def worker(own: Own) -> Iterator[str]:
    """A worker in a container of its own, not yet ready; yields its name.

    If the block fails, what the worker said is added to the log of the benchmark.
    """
    container = f"{own.env['COMPOSE_PROJECT_NAME']}-{SERVICE}"
    run = ("run", "--detach", "--no-deps", "--use-aliases", "--name", container, SERVICE)
    try:
        own.compose(*FILES, *run)
        yield container
    except BaseException:
        keep_words(container)
        raise
    finally:
        shell.capture(["docker", "rm", "--force", container], timeout_s=60)


def keep_words(container: str) -> None:
    """Add what a worker said to the log of the benchmark."""
    said = shell.capture(["docker", "logs", "--tail", "300", container], timeout_s=60)
    with LOG.open("a", encoding="utf-8") as log:
        log.write(said.out + said.err)
