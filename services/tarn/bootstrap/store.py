"""`python -m tarn.bootstrap.store`: the bucket, the store users and their policies; repeatable.

It ends by trying what every user may and may not do. Exit codes: `tarn.core.exit_codes`; 1 is a policy that
does not hold, 3 a store that did not answer in time, 4 a wrong root secret.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import structlog

from tarn.adapters.service_settings import StoreSettings
from tarn.bootstrap.access import ANONYMOUS, Trial, probe_keys, trials
from tarn.bootstrap.log import configure
from tarn.bootstrap.policies import policies
from tarn.core.credentials import (
    ADDED_STORE_USERS_FILE,
    ROOT_FILES,
    STORE_USERS,
    STORE_USERS_FILE,
    StoreUser,
    is_tarn_access_key,
    parse_store_users,
)
from tarn.core.errors import (
    CorruptStateError,
    TarnError,
    UnavailableError,
)
from tarn.core.exit_codes import OK, exit_code

WAIT_S_MAX = 120.0
WAIT_STEP_S = 0.5
WAIT_LOG_EVERY_S = 5.0


class Settings(StoreSettings):
    """Settings of the bootstrap; see docs/reference.md."""


class Store(Protocol):
    """Store administration needed by bootstrap; `MinioStore` is the real implementation."""

    def ensure_bucket(self) -> bool:
        """Create the bucket if it is absent; returns whether it was created."""

    def put_policy(self, name: str, policy: Mapping[str, object]) -> None:
        """Create or replace a policy."""

    def users(self) -> dict[str, frozenset[str]]:
        """Return {access key: names of attached policies}."""

    def knows(self, user: StoreUser) -> bool:
        """Whether the user exists, is enabled and has this secret."""

    def put_user(self, user: StoreUser) -> None:
        """Create a user, or set the secret of an existing one."""

    def remove_user(self, access_key: str) -> None:
        """Remove a user."""

    def attach(self, access_key: str, policy: str) -> None:
        """Attach a policy that the user does not have yet."""

    def detach(self, access_key: str, policy: str) -> None:
        """Detach a policy from a user."""

    def put_object(self, key: str) -> None:
        """Write a small object as root."""

    def delete_object(self, key: str) -> None:
        """Delete an object as root; a missing one is not an error."""

    def attempt(self, trial: Trial, user: StoreUser | None) -> bool:
        """Whether the store allows the user the operation."""

    def may_administer(self, user: StoreUser) -> bool:
        """Whether a user may use the store's admin API."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Injected time: monotonic seconds, and a way to wait."""

    now_s: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


class PolicyError(TarnError):
    """A policy allows too much or too little: correct it."""


def await_bucket(store: Store, log: structlog.typing.FilteringBoundLogger, clock: Clock) -> bool:
    """Create the bucket as soon as the store has its buckets and its users; returns whether it was absent.

    MinIO loads the users after it begins to serve buckets, and answers requests about them by 503 until then.

    Args:
        store: store administration.
        log: logger.
        clock: time.

    Raises:
        UnavailableError: no response within `WAIT_S_MAX`.
        TarnError: the store rejected the request.
    """
    start_s = told_s = clock.now_s()
    made = False
    while True:
        try:
            made = store.ensure_bucket() or made
            store.users()
            return made
        except UnavailableError as error:
            waited_s = clock.now_s() - start_s
            if waited_s >= WAIT_S_MAX:
                raise UnavailableError(
                    f"gave up after {waited_s:.0f} s: {error.message}", **error.fields
                ) from error
            if clock.now_s() - told_s >= WAIT_LOG_EVERY_S:
                told_s = clock.now_s()
                log.info("waiting for the store", seconds=round(waited_s), of=WAIT_S_MAX, why=error.message)
            clock.wait(WAIT_STEP_S)


def all_users(secrets: Mapping[str, str]) -> dict[str, StoreUser]:
    """Return {user: keys} of all of Tarn's store users; users known only to a later release are omitted.

    Raises:
        InvalidError: a file has invalid content.
        CorruptStateError: a user is in neither file.
    """
    files = (STORE_USERS_FILE, ADDED_STORE_USERS_FILE)
    found = {name: user for file in files for name, user in parse_store_users(secrets[file], file).items()}
    missing = sorted(set(STORE_USERS) - set(found))
    if missing:
        raise CorruptStateError(
            f"{' and '.join(files)} name {sorted(found)}; {missing} are missing: run the service init",
            missing=missing,
        )
    return {name: found[name] for name in STORE_USERS}


def set_up_users(
    store: Store, users: Mapping[str, StoreUser], wanted: Mapping[str, Mapping[str, object]]
) -> tuple[str, ...]:
    """Give the store exactly Tarn's users, each with exactly its own policy.

    A user of Tarn's form whose key is no longer in use is removed; users created by hand are left alone. A
    user that the store knows with its secret is not rewritten: a write derives a key on both sides (Argon2,
    64 MiB).

    Args:
        store: store administration.
        users: user to keys.
        wanted: user to policy.

    Returns:
        The changes made.
    """
    for name, policy in wanted.items():
        store.put_policy(name, policy)
    changes: list[str] = []
    before = store.users()
    for name, user in users.items():
        if user.access_key not in before or not store.knows(user):
            store.put_user(user)
        attached = before.get(user.access_key, frozenset())
        if user.access_key not in before:
            changes.append(f"made {name} ({user.access_key})")
        for other in sorted(attached - {name}):
            store.detach(user.access_key, other)
            changes.append(f"took policy {other} from {name}")
        if name not in attached:
            store.attach(user.access_key, name)
            changes.append(f"gave {name} its policy")
    in_use = {user.access_key for user in users.values()}
    for access_key in sorted(before):
        if is_tarn_access_key(access_key) and access_key not in in_use:
            store.remove_user(access_key)
            changes.append(f"removed the retired {access_key}")
    return tuple(changes)


def verify(store: Store, users: Mapping[str, StoreUser], run_id: str) -> int:
    """Try everything that users may and may not do; leaves nothing behind.

    Args:
        store: store administration.
        users: user to keys.
        run_id: id of this run, part of every key.

    Returns:
        The number of trials.

    Raises:
        PolicyError: something is allowed that must be denied, or the reverse.
    """
    keys = [
        key
        for user in (*STORE_USERS, ANONYMOUS)
        for area in probe_keys(user, run_id).values()
        for key in area
    ]
    wrong: list[str] = []
    tried = trials(run_id)
    try:
        for key in keys:
            store.put_object(key)
        for trial in tried:
            if store.attempt(trial, users.get(trial.user)) != trial.allowed:
                wrong.append(f"{trial} is {'refused' if trial.allowed else 'allowed'}")
        for name, user in users.items():
            if store.may_administer(user):
                wrong.append(f"{name} may administer the store")
    finally:
        for key in keys:
            store.delete_object(key)
    if wrong:
        raise PolicyError(
            f"{len(wrong)} of {len(tried) + len(users)} trials went the wrong way: {'; '.join(wrong[:10])}. "
            "Correct tarn.bootstrap.policies (what must hold: docs/reference.md, Store users), build again",
            wrong=wrong,
        )
    return len(tried) + len(users)


def run(settings: Settings, log: structlog.typing.FilteringBoundLogger, clock: Clock) -> None:
    """Prepare the store.

    Args:
        settings: settings of the job.
        log: logger.
        clock: time.

    Raises:
        TarnError: the store could not be prepared, or its privileges are wrong.
    """
    from tarn.bootstrap.minio_store import MinioStore

    names = (*ROOT_FILES, STORE_USERS_FILE, ADDED_STORE_USERS_FILE)
    secrets = {name: settings.secret(name) for name in names}
    users = all_users(secrets)
    root = StoreUser(access_key=secrets["root_user"], secret_key=secrets["root_password"])
    store = MinioStore(
        endpoint=settings.s3_endpoint, region=settings.region, bucket=settings.bucket, root=root
    )
    made = await_bucket(store, log, clock)
    log.info("bucket ready", bucket=settings.bucket, made=made)
    for change in set_up_users(store, users, policies(settings.bucket)):
        log.info("store user changed", what=change)
    start_s = clock.now_s()
    count = verify(store, users, uuid.uuid4().hex)
    log.info("rights verified", trials=count, seconds=round(clock.now_s() - start_s, 2))


def main(argv: Sequence[str] | None = None) -> int:
    """Run bootstrap and return its exit code."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="python -m tarn.bootstrap.store", description=__doc__
    )
    parser.parse_args(argv)
    try:
        settings = Settings.read()
        log = configure("bootstrap", settings.log_level)
    except TarnError as error:
        print(f"bootstrap: {error.message}", file=sys.stderr)  # noqa: T201 - logging is not there yet
        return exit_code(error)
    try:
        run(settings, log, Clock())
    except TarnError as error:
        log.error("store not prepared", reason=error.message, **error.fields)
        return exit_code(error)
    log.info("store prepared")
    return OK


if __name__ == "__main__":
    sys.exit(main())
