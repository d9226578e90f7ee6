"""Sets the broker's users and ACLs at every start: started by the entry point beside the broker.

Passwords come from the secret files, so a renewed one is valid from the next start on; ACLs from the table
in `tarn.core.services`. Whatever is not in the table is removed. The operation is idempotent, so a log from
before there were users gets them in the same way as a new one, and keeps its records.

A file shows the progress to the health check: the broker is unhealthy until this is done. Removals come
first, and a user's ACLs before its password, so that at no moment a user has more privileges than the table
grants.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path[:0] = ["/opt/tarn/python", "/opt/tarn/lib"]

from tarn.core.kafka_users import ADMIN, MECHANISM, USERS, Changes, Rule, changes  # noqa: E402

LOCAL = ("127.0.0.1", 9095)
TOLD = Path("/tmp/tarn-kafka-users.json")  # noqa: S108 - the container's own tmpfs
POLL_S = 0.1
RETRY_S = 1.0
TRIES_MAX = 600
REQUEST_TIMEOUT_MS = 10_000
NODE_ID = "1"
LOGIN_LOGGER = "org.apache.kafka.common.network.Selector"


def main() -> int:
    """Set users and ACLs; returns 0 on success, 1 if all attempts failed, which the health check reports."""
    folder = Path(os.environ.get("TARN_SECRETS_DIR", "/run/tarn/secrets"))
    tell(False, "the broker has not started yet")
    logging.disable(logging.CRITICAL)  # what the client meets comes back as exceptions
    fault = ""
    for _ in range(TRIES_MAX):
        try:
            import kafka.admin  # noqa: F401 - while the broker starts, not after

            await_port()
            done = give(folder)
        except Exception as error:  # noqa: BLE001 - whatever it is: logged, and tried again
            if (now := f"{type(error).__name__}: {error}"[:300]) != fault:
                fault = now
                tell(False, fault)
                say("warning", f"users and rights are not in yet: {fault}; trying again every {RETRY_S:g} s")
            time.sleep(RETRY_S)
            continue
        tell(True, "")
        try:
            log_refusals(folder)
        except Exception as error:  # noqa: BLE001 - whatever it is: the broker is usable without these lines
            say("warning", f"who is not let in will not be logged: {type(error).__name__}: {error}"[:300])
        say(
            "info",
            f"users and rights are in: {', '.join(USERS)}; {len(done.add)} rules added, {len(done.remove)} "
            f"removed, users removed: {', '.join(done.remove_users) or 'none'}",
        )
        return 0
    say("error", f"users and rights were not taken in {TRIES_MAX} tries: {fault}; restart the service kafka")
    return 1


def await_port() -> None:
    """Wait until the broker listens; if the broker ends, the container and this process end with it."""
    while True:
        try:
            socket.create_connection(LOCAL, timeout=1).close()
        except OSError:
            time.sleep(POLL_S)
        else:
            return


def give(folder: Path) -> Changes:
    """Make the broker's users and ACLs those of the table; returns the changes.

    Raises:
        Exception: of any kind: the broker does not respond (yet), or a file cannot be read.
    """
    passwords = read_passwords(folder)
    admin = client(folder)
    try:
        todo = changes(found_users(admin), found_rules(admin))
        apply(admin, todo, passwords)
        return todo
    finally:
        admin.close()


def client(folder: Path) -> Any:
    """Admin client, logged in."""
    from kafka.admin import KafkaAdminClient

    return KafkaAdminClient(
        bootstrap_servers=f"{LOCAL[0]}:{LOCAL[1]}",
        client_id="tarn-kafka-users",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_plain_username=ADMIN,
        sasl_plain_password=(folder / "kafka_password").read_text(encoding="utf-8").rstrip("\n"),
        request_timeout_ms=REQUEST_TIMEOUT_MS,
        bootstrap_timeout_ms=REQUEST_TIMEOUT_MS,
    )


def log_refusals(folder: Path) -> None:
    """Have the broker log rejected logins from now on; at a first start it rejects all until it has users.

    Raises:
        Exception: of any kind: the broker does not respond or rejects the request.
    """
    from kafka.admin import ConfigResource, ConfigResourceType

    admin = client(folder)
    try:
        level = ConfigResource(ConfigResourceType.BROKER_LOGGER, NODE_ID, {LOGIN_LOGGER: "INFO"})
        admin.alter_configs([level], raise_on_unknown=False, incremental=True)
    finally:
        admin.close()


def read_passwords(folder: Path) -> Mapping[str, str]:
    """Return {user: password} of every user in the table.

    Raises:
        RuntimeError: the file lacks a user, or cannot be parsed.
    """
    path = folder / "kafka_users.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    missing = [user for user in USERS if not found.get(user)]
    if missing:
        raise RuntimeError(f"{path} has no password of {', '.join(missing)}; run init, it adds them")
    return {user: str(found[user]) for user in USERS}


def found_users(admin: Any) -> dict[str, list[Any]]:
    """Return {user: mechanisms} of all users with a password at the broker."""
    described = admin.describe_user_scram_credentials()
    return {user: [c["mechanism"] for c in known["credential_infos"]] for user, known in described.items()}


def found_rules(admin: Any) -> set[Rule]:
    """All ACLs of the broker."""
    found, _ = admin.describe_acls(_filter_of(None))
    return {
        Rule(
            principal=acl.principal,
            resource=acl.resource_pattern.resource_type.name,
            name=acl.resource_pattern.resource_name,
            pattern=acl.resource_pattern.pattern_type.name,
            operation=acl.operation.name,
            permission=acl.permission_type.name,
            host=acl.host,
        )
        for acl in found
    }


def apply(admin: Any, todo: Changes, passwords: Mapping[str, str]) -> None:
    """Apply the changes.

    Args:
        admin: admin client.
        todo: changes to make.
        passwords: user to password, of every user in the table.

    Raises:
        RuntimeError: the broker rejected a part of them.
    """
    from kafka.admin import UserScramCredentialDeletion, UserScramCredentialUpsertion

    alterations: list[Any] = [
        UserScramCredentialDeletion(user, mechanism)
        for user, mechanisms in found_users(admin).items()
        for mechanism in mechanisms
        if user in todo.remove_users or mechanism.name != MECHANISM.replace("-", "_")
    ]
    if alterations:
        _require_taken(admin.alter_user_scram_credentials(alterations))
    for _, _, error in admin.delete_acls([_filter_of(rule) for rule in todo.remove]) if todo.remove else ():
        if error.errno:
            raise RuntimeError(f"a rule was not removed: {error.__name__}")
    # Denials before permissions, so that nothing is allowed that is to be denied.
    for permission in ("DENY", "ALLOW"):
        rules = [_acl(rule) for rule in todo.add if rule.permission == permission]
        failed = admin.create_acls(rules)["failed"] if rules else ()
        if failed:
            raise RuntimeError(f"{len(failed)} rules were not taken: {failed[0].__name__}")
    upserts = [UserScramCredentialUpsertion(user, MECHANISM, passwords[user]) for user in todo.set_passwords]
    _require_taken(admin.alter_user_scram_credentials(upserts))


def _require_taken(answers: Mapping[str, str | None]) -> None:
    refused = {user: error for user, error in answers.items() if error is not None}
    if refused:
        raise RuntimeError(f"users were not taken: {refused}")


def _acl(rule: Rule) -> Any:
    from kafka.admin import (
        ACL,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePattern,
        ResourceType,
    )

    return ACL(
        principal=rule.principal,
        host=rule.host,
        operation=ACLOperation[rule.operation],
        permission_type=ACLPermissionType[rule.permission],
        resource_pattern=ResourcePattern(
            ResourceType[rule.resource], rule.name, ACLResourcePatternType[rule.pattern]
        ),
    )


def _filter_of(rule: Rule | None) -> Any:
    """ACL filter that matches one ACL, or all."""
    from kafka.admin import (
        ACLFilter,
        ACLOperation,
        ACLPermissionType,
        ACLResourcePatternType,
        ResourcePatternFilter,
        ResourceType,
    )

    if rule is not None:
        return _acl(rule)
    return ACLFilter(
        principal=None,
        host=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
        resource_pattern=ResourcePatternFilter(ResourceType.ANY, None, ACLResourcePatternType.ANY),
    )


def tell(done: bool, fault: str) -> None:
    """Write the progress for the health check, atomically."""
    scratch = TOLD.with_suffix(".new")
    scratch.write_text(json.dumps({"done": done, "fault": fault}), encoding="utf-8")
    scratch.replace(TOLD)


def say(level: str, text: str) -> None:
    """Write a log line, in the format of Tarn's services."""
    now_s = time.time()
    stamp = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{int(now_s * 1000) % 1000:03}Z"
    line = {"timestamp": stamp, "level": level, "event": text, "service": "kafka", "logger": "users"}
    print(json.dumps(line), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
