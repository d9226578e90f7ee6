"""Tarn's credentials as data: consumers, names of their secret files, and parsers of the contents.

`credential_plan` determines which of them are missing and in which order they are created.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tarn.core.errors import InvalidError
from tarn.core.kafka_users import ADMIN as KAFKA_ADMIN
from tarn.core.kafka_users import USERS as KAFKA_USERS
from tarn.core.services import SERVICES, StoreRights

UIDS: Mapping[str, int] = {name: service.uid for name, service in SERVICES.items()}
"""Consumer to the uid (and gid) that may read its volume."""

VENDING_USER = "vending"
"""The store user whose keys sign for the credentials that the catalog vends."""
VENDING_HOLDER = next(name for name, service in SERVICES.items() if service.vending is not None)
STORE_RIGHTS: Mapping[str, StoreRights] = {
    **{name: service.store for name, service in SERVICES.items() if service.store is not None},
    VENDING_USER: SERVICES[VENDING_HOLDER].vending or {},
}
"""Store user to its privileges; a service's own user has the name of the service."""
STORE_USERS = tuple(STORE_RIGHTS)
FIRST_STORE_USERS = ("catalog", "ingest", "spark", "trino", "cli", "jupyter", "keeper")
"""Store users that every release knows; this list never changes. All others are in a file of their own: a
release rejects a `store_users.json` with users unknown to it, and a downgrade must remain possible."""
PRINCIPALS = tuple(name for name, service in SERVICES.items() if "catalog" in service.credentials_for)
SPARK_CLIENTS = tuple(name for name, service in SERVICES.items() if "spark" in service.credentials_for)
"""Consumers that have the token of Spark Connect, besides Spark itself."""
JUPYTER_CLIENTS = tuple(name for name, service in SERVICES.items() if "jupyter" in service.credentials_for)
"""Consumers that have the token of JupyterLab, besides JupyterLab itself."""
KAFKA_CLIENTS = tuple(name for name, service in SERVICES.items() if service.kafka)
"""Consumers that log in to Kafka, each as a user of the same name."""

ROOT_FILES = ("root_user", "root_password")
STORE_USERS_FILE = "store_users.json"
ACCESS_KEY_FILE = "s3_access_key_id"
SECRET_KEY_FILE = "s3_secret_access_key"  # noqa: S105 - a file name
VENDING_ACCESS_KEY_FILE = "vending_access_key_id"
VENDING_SECRET_KEY_FILE = "vending_secret_access_key"  # noqa: S105 - a file name
TOKEN_KEY_FILE = "token_key"  # noqa: S105 - a file name
ADDED_STORE_USERS_FILE = "store_users_added.json"
PRINCIPALS_FILE = "principals.json"
CREDENTIAL_FILE = "catalog_credential"
JUPYTER_TOKEN_FILE = "jupyter_token"  # noqa: S105 - a file name
SPARK_TOKEN_FILE = "spark_token"  # noqa: S105 - a file name
KAFKA_USER_FILE = "kafka_user"
KAFKA_PASSWORD_FILE = "kafka_password"  # noqa: S105 - a file name
KAFKA_USERS_FILE = "kafka_users.json"

ACCESS_KEY_CHARS = 20
ACCESS_KEY_PREFIX = "TARN"
SECRET_CHARS_MIN = 16
SECRET_CHARS_MAX = 4096

Volumes = Mapping[str, Mapping[str, str]]


def files_of(consumer: str) -> tuple[str, ...]:
    """Return the names of the secret files in a consumer's complete volume.

    Raises:
        InvalidError: the consumer is unknown.
    """
    if consumer not in UIDS:
        raise InvalidError(
            f"unknown consumer {consumer!r}: choose one of {', '.join(UIDS)}", consumer=consumer
        )
    names: list[str] = []
    if consumer in ("minio", "bootstrap"):
        names += ROOT_FILES
    if consumer == "bootstrap":
        names += (STORE_USERS_FILE, ADDED_STORE_USERS_FILE)
    if SERVICES[consumer].store is not None:
        names += (ACCESS_KEY_FILE, SECRET_KEY_FILE)
    if consumer == VENDING_HOLDER:
        names += key_files(VENDING_USER)
    if consumer == "catalog":
        names += (TOKEN_KEY_FILE, PRINCIPALS_FILE)
    if consumer in PRINCIPALS:
        names.append(CREDENTIAL_FILE)
    if consumer == "jupyter" or consumer in JUPYTER_CLIENTS:
        names.append(JUPYTER_TOKEN_FILE)
    if consumer == "spark" or consumer in SPARK_CLIENTS:
        names.append(SPARK_TOKEN_FILE)
    if consumer == KAFKA_ADMIN or consumer in KAFKA_CLIENTS:
        names += (KAFKA_USER_FILE, KAFKA_PASSWORD_FILE)
    if consumer == KAFKA_ADMIN:
        names.append(KAFKA_USERS_FILE)
    return tuple(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUser:
    """Credentials of an object store user.

    Attributes:
        access_key: access key id, 20 capital letters and digits; not a secret.
        secret_key: secret access key.
    """

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretFile:
    """One secret file to write.

    Attributes:
        consumer: volume.
        name: file name.
        content: complete content, without a trailing newline.
        reason: why it is written, for the log; never contains the secret.
    """

    consumer: str
    name: str
    content: str = field(repr=False)
    reason: str


def holder_of(user: str) -> str:
    """Return the consumer whose volume has the keys of a store user."""
    return VENDING_HOLDER if user == VENDING_USER else user


def key_files(user: str) -> tuple[str, str]:
    """Return the names of the files with a store user's access key id and secret access key."""
    if user == VENDING_USER:
        return VENDING_ACCESS_KEY_FILE, VENDING_SECRET_KEY_FILE
    return ACCESS_KEY_FILE, SECRET_KEY_FILE


def store_users_file(user: str) -> str:
    """Return the name of the file in the volume of `bootstrap` that has a store user's keys."""
    return STORE_USERS_FILE if user in FIRST_STORE_USERS else ADDED_STORE_USERS_FILE


def parse_store_users(text: str, file: str = STORE_USERS_FILE) -> dict[str, StoreUser]:
    """Return {user: keys} from the content of `store_users.json` or of the file of additional store users.

    Raises:
        InvalidError: the content is not of this form.
    """
    users: dict[str, StoreUser] = {}
    for name, entry in json_object(text, f"bootstrap/{file}").items():
        match entry:
            case {"access_key": str(access_key), "secret_key": str(secret_key)}:
                users[name] = StoreUser(access_key=access_key, secret_key=secret_key)
            case _:
                raise InvalidError(
                    f"secret file bootstrap/{file}: user {name!r} needs access_key and "
                    "secret_key; remove the volume secrets-bootstrap, it is made again from the others",
                    user=name,
                )
    return users


def parse_credential(text: str, consumer: str) -> tuple[str, str]:
    """Return (client id, secret) from the content of `catalog_credential`.

    Raises:
        InvalidError: the content is not `client_id:client_secret`.
    """
    client_id, colon, secret = text.partition(":")
    if not (client_id and colon and secret) or ":" in secret:
        raise InvalidError(
            f"secret file {consumer}/{CREDENTIAL_FILE} is not client_id:client_secret; "
            f"remove the volume secrets-{consumer}, it gets a new credential",
            consumer=consumer,
        )
    return client_id, secret


def parse_kafka_users(text: str) -> dict[str, str]:
    """Return {user: password} from the content of `kafka_users.json`.

    Raises:
        InvalidError: the content is not of this form.
    """
    users: dict[str, str] = {}
    for name, password in json_object(text, f"{KAFKA_ADMIN}/{KAFKA_USERS_FILE}").items():
        if not isinstance(password, str) or len(password) < SECRET_CHARS_MIN:
            raise InvalidError(
                f"secret file {KAFKA_ADMIN}/{KAFKA_USERS_FILE}: user {name!r} needs a password of at least "
                f"{SECRET_CHARS_MIN} characters; remove the volume secrets-{KAFKA_ADMIN}, it is made again "
                "from the others",
                user=name,
            )
        users[name] = password
    return users


def without_kafka_user(text: str, user: str) -> str:
    """Return the content of `kafka_users.json` without one user, so that `plan` creates a new password.

    Raises:
        InvalidError: the user does not exist, or the content is not of this form.
    """
    users = parse_kafka_users(text)
    if user not in KAFKA_USERS:
        raise InvalidError(
            f"no such user of Kafka: {user!r}; choose one of {', '.join(KAFKA_USERS)}", user=user
        )
    users.pop(user, None)
    return dump(users)


def secret_sha256(secret: str) -> str:
    """Return the lower-case hex SHA-256 of a principal's secret, as `principals.json` stores it."""
    return hashlib.sha256(secret.encode()).hexdigest()


def is_tarn_access_key(access_key: str) -> bool:
    """Whether an access key has the form that Tarn generates."""
    return (
        len(access_key) == ACCESS_KEY_CHARS
        and access_key.startswith(tuple(access_key_stem(user) for user in STORE_USERS))
        and access_key.isascii()
        and access_key.isalnum()
        and access_key == access_key.upper()
    )


def json_object(text: str, where: str) -> dict[str, object]:
    """Parse the JSON object in a secret file; `where` is consumer/file, for error messages.

    Raises:
        InvalidError: the content is not a JSON object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidError(
            f"secret file {where} is not JSON ({error}); "
            f"remove the volume secrets-{where.partition('/')[0]}, it is made again from the others",
            file=where,
        ) from error
    if not isinstance(value, dict):
        raise InvalidError(
            f"secret file {where} is not a JSON object; remove the volume secrets-{where.partition('/')[0]}, "
            "it is made again from the others",
            file=where,
        )
    return value


def dump(value: Mapping[str, object]) -> str:
    """Return an object as the content of a secret file."""
    return json.dumps(value, sort_keys=True)


def access_key_stem(user: str) -> str:
    """Return the prefix of a store user's access key."""
    return f"{ACCESS_KEY_PREFIX}{user.upper()}"
