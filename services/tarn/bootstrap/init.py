"""`python -m tarn.bootstrap.init`: make every credential on first start, later what is missing.

Runs as root with CHOWN, FOWNER and DAC_OVERRIDE and no network; every consumer's volume is mounted below one
folder. Exit codes: `tarn.core.exits`.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tarn.bootstrap.log import configure
from tarn.bootstrap.volumes import SecretVolumes
from tarn.core.credentials import SecretFile, plan
from tarn.core.errors import TarnError
from tarn.core.exits import FAILED, OK, exit_code


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run of init did.

    Attributes:
        written: the files it wrote, in order.
        tidied: what it put right besides.
    """

    written: tuple[SecretFile, ...]
    tidied: tuple[str, ...]


def make_credentials(
    volumes: SecretVolumes, *, random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> Result:
    """Complete the credentials in all volumes; existing ones are kept, whatever is missing is made.

    A second run changes nothing. A crash at any point is healed by the next run.

    Raises:
        InvalidError: a volume is not mounted, or a file cannot be what it should be.
        CorruptStateError: the volumes contradict each other; nothing was changed.
        UnavailableError: a volume cannot be read or written.
    """
    writes = plan(volumes.read(), random_bytes=random_bytes)
    for write in writes:
        volumes.write(write)
    tidied = volumes.tidy()
    left = plan(volumes.read(), random_bytes=random_bytes)
    assert not left, f"still missing after writing: {[f'{w.consumer}/{w.name}' for w in left]}"
    return Result(written=writes, tidied=tidied)


def check_credentials(volumes: SecretVolumes) -> tuple[tuple[str, ...], TarnError | None]:
    """Which files are missing, as `consumer/file`, or why a run would refuse; nothing is changed."""
    try:
        there = volumes.read()
        writes = plan(there, random_bytes=bytes)
        return tuple(f"{w.consumer}/{w.name}" for w in writes if w.name not in there[w.consumer]), None
    except TarnError as error:
        return (), error


def main(argv: Sequence[str] | None = None) -> int:
    """Run init and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tarn.bootstrap.init", description=__doc__)
    parser.add_argument(
        "--root", type=Path, default=Path("/secrets"), help="folder of the volumes, one per consumer"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing: print what is missing or wrong as JSON",
    )
    options = parser.parse_args(argv)
    if options.check:
        missing, fault = check_credentials(SecretVolumes(root=options.root))
        print(json.dumps({"missing": missing, "fault": fault.message if fault else ""}))  # noqa: T201
        return exit_code(fault) if fault else FAILED if missing else OK
    try:
        log = configure("init", os.environ.get("TARN_LOG_LEVEL", "info"))
    except TarnError as error:
        print(f"init: {error.message}", file=sys.stderr)  # noqa: T201 - logging is not there yet
        return exit_code(error)
    try:
        result = make_credentials(SecretVolumes(root=options.root))
    except TarnError as error:
        log.error("credentials not made", reason=error.message, **error.fields)
        return exit_code(error)
    for file in result.written:
        log.info("secret written", consumer=file.consumer, file=file.name, why=file.reason)
    for change in result.tidied:
        log.info("put right", what=change)
    log.info("credentials complete", written=len(result.written))
    return OK


if __name__ == "__main__":
    sys.exit(main())
