"""`python -m tarn.bootstrap.init`: create all credentials; on later runs only missing ones.

Runs as root with CHOWN, FOWNER and DAC_OVERRIDE and no network; every consumer's volume is mounted below one
folder. Exit codes: `tarn.core.exit_codes`.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tarn.adapters.service_settings import TarnSettings
from tarn.bootstrap.log import configure
from tarn.bootstrap.volumes import SecretVolumes
from tarn.core.credential_plan import plan
from tarn.core.credentials import (
    KAFKA_CLIENTS,
    KAFKA_PASSWORD_FILE,
    KAFKA_USERS_FILE,
    SecretFile,
    without_kafka_user,
)
from tarn.core.errors import TarnError
from tarn.core.exit_codes import FAILED, OK, exit_code
from tarn.core.kafka_users import ADMIN as KAFKA_ADMIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a run of init.

    Attributes:
        written: files written, in order.
        tidied: other corrections made.
    """

    written: tuple[SecretFile, ...]
    tidied: tuple[str, ...]


def make_credentials(
    volumes: SecretVolumes, *, random_bytes: Callable[[int], bytes] = secrets.token_bytes
) -> Result:
    """Complete the credentials in all volumes; existing ones are kept, missing ones created.

    A second run changes nothing. A crash at any point is repaired by the next run.

    Raises:
        InvalidError: a volume is not mounted, or a file has invalid content.
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


def forget_kafka_password(volumes: SecretVolumes, user: str) -> None:
    """Remove one user's Kafka password from every volume, so that `make_credentials` creates a new one.

    After a crash in between, the next run restores the old password or creates a new one, the same on both
    sides.

    Raises:
        InvalidError: the user does not exist.
        UnavailableError: a volume cannot be changed.
    """
    if user == KAFKA_ADMIN:
        volumes.remove(KAFKA_ADMIN, KAFKA_PASSWORD_FILE)
        return
    text = without_kafka_user(volumes.read()[KAFKA_ADMIN].get(KAFKA_USERS_FILE, "{}"), user)
    if user in KAFKA_CLIENTS:
        volumes.remove(user, KAFKA_PASSWORD_FILE)
    reason = f"{user} gets a new password"
    volumes.write(SecretFile(consumer=KAFKA_ADMIN, name=KAFKA_USERS_FILE, content=text, reason=reason))


def check_credentials(volumes: SecretVolumes) -> tuple[tuple[str, ...], TarnError | None]:
    """Return the missing files, as `consumer/file`, or the error that a run would raise; changes nothing."""
    try:
        there = volumes.read()
        writes = plan(there, random_bytes=bytes)
        return tuple(f"{w.consumer}/{w.name}" for w in writes if w.name not in there[w.consumer]), None
    except TarnError as error:
        return (), error


def main(argv: Sequence[str] | None = None) -> int:
    """Run init and return its exit code."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m tarn.bootstrap.init", description=__doc__
    )
    parser.add_argument(
        "--root", type=Path, default=Path("/secrets"), help="folder of the volumes, one per consumer"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing: print what is missing or wrong as JSON",
    )
    parser.add_argument(
        "--renew-kafka",
        metavar="USER",
        help="give this user of Kafka a new password; it counts once the service kafka was restarted",
    )
    options = parser.parse_args(argv)
    if options.check:
        missing, fault = check_credentials(SecretVolumes(root=options.root))
        print(json.dumps({"missing": missing, "fault": fault.message if fault else ""}))  # noqa: T201
        return exit_code(fault) if fault else FAILED if missing else OK
    try:
        log = configure("init", TarnSettings.read().log_level)
    except TarnError as error:
        print(f"init: {error.message}", file=sys.stderr)  # noqa: T201 - logging is not there yet
        return exit_code(error)
    try:
        if options.renew_kafka:
            forget_kafka_password(SecretVolumes(root=options.root), options.renew_kafka)
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
