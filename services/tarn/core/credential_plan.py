"""Plan of the secret files to write: which are missing, and in which order they are created.

A *volume* is one consumer's folder of secret files. `plan` examines all volumes together and returns the
files to write, in order, or raises. It never changes a secret that a consumer already has.

Each secret has one authoritative copy:

- root user and password, and the store users' keys: the volume of `bootstrap`; all other copies follow it
  (the store user `vending` has no service of its own: its keys are in the volume of the catalog);
- the secret of a catalog principal: the consumer's own `catalog_credential`; the catalog has only the hash;
- the catalog's token key: the catalog alone;
- the token of JupyterLab: the volume of `jupyter`; `cli` has a copy, to show it to users;
- the token of Spark Connect: the volume of `spark`; all other copies follow it;
- the passwords of Kafka users: the volume of `kafka`; all other copies follow it. The admin's is only there.

The order of writes makes a crash between any two of them harmless: an authoritative file is written before
its copies, and the hash of a new principal before its secret is handed out. An existing file therefore agrees
with the authoritative one, and whatever is missing can be created again. Two files that disagree never result
from a crash; they come from a volume of another Tarn installation, and are rejected.

The loss of one volume is repaired in the same way: the root secret is restored from `minio`, the store users
from their consumers, the list of principals from the credentials, and a consumer without a credential gets a
new one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tarn.core.credentials import (
    ACCESS_KEY_CHARS,
    ACCESS_KEY_FILE,
    ADDED_STORE_USERS_FILE,
    CREDENTIAL_FILE,
    JUPYTER_CLIENTS,
    JUPYTER_TOKEN_FILE,
    KAFKA_CLIENTS,
    KAFKA_PASSWORD_FILE,
    KAFKA_USER_FILE,
    KAFKA_USERS_FILE,
    PRINCIPALS,
    PRINCIPALS_FILE,
    ROOT_FILES,
    SECRET_CHARS_MAX,
    SECRET_CHARS_MIN,
    SPARK_CLIENTS,
    SPARK_TOKEN_FILE,
    STORE_USERS,
    STORE_USERS_FILE,
    TOKEN_KEY_FILE,
    UIDS,
    VENDING_ACCESS_KEY_FILE,
    SecretFile,
    StoreUser,
    Volumes,
    access_key_stem,
    dump,
    files_of,
    holder_of,
    json_object,
    key_files,
    parse_credential,
    parse_kafka_users,
    parse_store_users,
    secret_sha256,
    store_users_file,
)
from tarn.core.errors import CorruptStateError, InvalidError
from tarn.core.kafka_users import ADMIN as KAFKA_ADMIN
from tarn.core.kafka_users import USERS as KAFKA_USERS

SECRET_BYTES = 32
_KNOWN_DEFAULTS = frozenset(
    {"minioadmin", "minio123", "minio", "admin", "password", "changeme", "secret", "tarn", "root"}
)

RandomBytes = Callable[[int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Two volumes with different values of one secret.

    Attributes:
        decides: volume with the authoritative copy.
        follows: volume whose copy should agree.
        about: name of the file in `follows`.
    """

    decides: str
    follows: str
    about: str


def plan(volumes: Volumes, *, random_bytes: RandomBytes) -> tuple[SecretFile, ...]:
    """Return the files to write, in order, so that every volume is complete and all of them agree.

    The result is empty if nothing is missing. Existing secrets are kept, unknown files left alone.

    Args:
        volumes: consumer to {file name: content}, of all consumers.
        random_bytes: returns the given number of cryptographically random bytes.

    Raises:
        InvalidError: a volume is not mounted, or a file has invalid content.
        CorruptStateError: two volumes contradict each other.
    """
    _check_shape(volumes)
    disagreements: list[Disagreement] = []
    writes: list[SecretFile] = []
    writes += _plan_root(volumes, random_bytes, disagreements)
    writes += _plan_store_users(volumes, random_bytes, disagreements)
    writes += _plan_token_key(volumes, random_bytes)
    writes += _plan_principals(volumes, random_bytes, disagreements)
    for owner, file, clients in (
        ("jupyter", JUPYTER_TOKEN_FILE, JUPYTER_CLIENTS),
        ("spark", SPARK_TOKEN_FILE, SPARK_CLIENTS),
    ):
        writes += _plan_token(owner, file, clients, volumes, random_bytes, disagreements)
    writes += _plan_kafka(volumes, random_bytes, disagreements)
    if disagreements:
        raise _contradiction(disagreements)
    return tuple(writes)


def applied(volumes: Volumes, writes: tuple[SecretFile, ...]) -> dict[str, dict[str, str]]:
    """Return the volumes after the writes."""
    result = {consumer: dict(files) for consumer, files in volumes.items()}
    for write in writes:
        result.setdefault(write.consumer, {})[write.name] = write.content
    return result


def _plan_root(
    volumes: Volumes, random_bytes: RandomBytes, disagreements: list[Disagreement]
) -> Iterator[SecretFile]:
    for name in ROOT_FILES:
        truth, copy = volumes["bootstrap"].get(name), volumes["minio"].get(name)
        if truth is not None and copy is not None and truth != copy:
            disagreements.append(Disagreement(decides="bootstrap", follows="minio", about=name))
            continue
        made = _secret(random_bytes) if name == "root_password" else f"tarn-root-{_suffix(random_bytes, 6)}"
        value = truth or copy or made
        if truth is None:
            reason = "made" if copy is None else "taken back from minio"
            yield SecretFile(consumer="bootstrap", name=name, content=value, reason=reason)
        if copy is None:
            yield SecretFile(consumer="minio", name=name, content=value, reason="copied from bootstrap")


def _plan_store_users(
    volumes: Volumes, random_bytes: RandomBytes, disagreements: list[Disagreement]
) -> Iterator[SecretFile]:
    held_by_file = {
        file: parse_store_users(volumes["bootstrap"].get(file, "{}"), file)
        for file in (STORE_USERS_FILE, ADDED_STORE_USERS_FILE)
    }
    known = held_by_file[STORE_USERS_FILE] | held_by_file[ADDED_STORE_USERS_FILE]
    users = dict(known)
    reasons: dict[str, str] = {}
    for user in STORE_USERS:
        if user in users:
            continue
        held = volumes[holder_of(user)]
        access_key_file, secret_key_file = key_files(user)
        if access_key_file in held and secret_key_file in held:
            users[user] = StoreUser(access_key=held[access_key_file], secret_key=held[secret_key_file])
            reasons[user] = "taken back from its volume"
        else:
            users[user] = StoreUser(
                access_key=_access_key(user, random_bytes), secret_key=_secret(random_bytes)
            )
            reasons[user] = "made"
    # The additional users first: after a crash, a user that moves is in both files, never in neither.
    for file in (ADDED_STORE_USERS_FILE, STORE_USERS_FILE):
        before = held_by_file[file]
        # Users known only to a later release are kept.
        wanted = {
            name: user
            for name, user in users.items()
            if (store_users_file(name) == file if name in STORE_USERS else name in before)
        }
        if wanted != before:
            why = [f"{name} {reasons.get(name, 'moved')}" for name in wanted if name not in before]
            why += [f"{name} moved" for name in before if name not in wanted]
            content = {
                name: {"access_key": user.access_key, "secret_key": user.secret_key}
                for name, user in wanted.items()
            }
            yield SecretFile(consumer="bootstrap", name=file, content=dump(content), reason=", ".join(why))
    for user in STORE_USERS:
        holder = holder_of(user)
        for name, value in zip(
            key_files(user), (users[user].access_key, users[user].secret_key), strict=True
        ):
            found = volumes[holder].get(name)
            if found == value:
                continue
            if found is not None and user in known:
                disagreements.append(Disagreement(decides="bootstrap", follows=holder, about=name))
                continue
            # A key whose other half and whose entry are both lost is useless: replace it.
            yield SecretFile(consumer=holder, name=name, content=value, reason="copied from bootstrap")


def _plan_token_key(volumes: Volumes, random_bytes: RandomBytes) -> Iterator[SecretFile]:
    if TOKEN_KEY_FILE not in volumes["catalog"]:
        key = base64.urlsafe_b64encode(random_bytes(SECRET_BYTES)).decode()
        yield SecretFile(consumer="catalog", name=TOKEN_KEY_FILE, content=key, reason="made")


def _plan_principals(
    volumes: Volumes, random_bytes: RandomBytes, disagreements: list[Disagreement]
) -> Iterator[SecretFile]:
    text = volumes["catalog"].get(PRINCIPALS_FILE)
    known = {} if text is None else json_object(text, f"catalog/{PRINCIPALS_FILE}")
    principals = dict(known)
    handed_out: list[SecretFile] = []
    reasons: list[str] = []
    for name in PRINCIPALS:
        credential = volumes[name].get(CREDENTIAL_FILE)
        if credential is None:
            client_id, secret = f"{name}-{_suffix(random_bytes, 6)}", _secret(random_bytes)
            principals = {key: entry for key, entry in principals.items() if _name_of(entry) != name}
            principals[client_id] = {"name": name, "secret_sha256": secret_sha256(secret)}
            handed_out.append(
                SecretFile(
                    consumer=name, name=CREDENTIAL_FILE, content=f"{client_id}:{secret}", reason="made"
                )
            )
            reasons.append(f"{name} made")
            continue
        client_id, secret = parse_credential(credential, name)
        entry = {"name": name, "secret_sha256": secret_sha256(secret)}
        if text is None:
            principals[client_id] = entry
            reasons.append(f"{name} taken back from its credential")
        elif known.get(client_id) != entry:
            disagreements.append(Disagreement(decides="catalog", follows=name, about=CREDENTIAL_FILE))
    if principals != known:
        yield SecretFile(
            consumer="catalog", name=PRINCIPALS_FILE, content=dump(principals), reason=", ".join(reasons)
        )
    yield from handed_out


def _plan_token(
    owner: str,
    file: str,
    clients: tuple[str, ...],
    volumes: Volumes,
    random_bytes: RandomBytes,
    disagreements: list[Disagreement],
) -> Iterator[SecretFile]:
    """A token that a service demands of its clients: its own volume is authoritative, theirs have copies."""
    truth = volumes[owner].get(file)
    copies = {consumer: volumes[consumer].get(file) for consumer in clients}
    holder = next((consumer for consumer, copy in copies.items() if copy is not None), None)
    value = truth or (copies[holder] if holder else None) or _secret(random_bytes)
    if truth is None:
        reason = f"taken back from {holder}" if holder else "made"
        yield SecretFile(consumer=owner, name=file, content=value, reason=reason)
    for consumer, copy in copies.items():
        if copy is None:
            yield SecretFile(consumer=consumer, name=file, content=value, reason=f"copied from {owner}")
        elif copy != value:
            decides = owner if truth is not None else str(holder)
            disagreements.append(Disagreement(decides=decides, follows=consumer, about=file))


def _plan_kafka(
    volumes: Volumes, random_bytes: RandomBytes, disagreements: list[Disagreement]
) -> Iterator[SecretFile]:
    own = volumes[KAFKA_ADMIN]
    text = own.get(KAFKA_USERS_FILE)
    known = {} if text is None else parse_kafka_users(text)
    users = dict(known)
    reasons: list[str] = []
    for user in KAFKA_USERS:
        if user in users:
            continue
        held = volumes[user].get(KAFKA_PASSWORD_FILE) if user in KAFKA_CLIENTS else None
        users[user] = held or _secret(random_bytes)
        reasons.append(f"{user} taken back from its volume" if held else f"{user} made")
    if users != known:
        yield SecretFile(
            consumer=KAFKA_ADMIN, name=KAFKA_USERS_FILE, content=dump(users), reason=", ".join(reasons)
        )
    if KAFKA_PASSWORD_FILE not in own:
        yield SecretFile(
            consumer=KAFKA_ADMIN, name=KAFKA_PASSWORD_FILE, content=_secret(random_bytes), reason="made"
        )
    for user in KAFKA_CLIENTS:
        found = volumes[user].get(KAFKA_PASSWORD_FILE)
        if found is None:
            yield SecretFile(
                consumer=user,
                name=KAFKA_PASSWORD_FILE,
                content=users[user],
                reason=f"copied from {KAFKA_ADMIN}",
            )
        elif found != users[user]:
            disagreements.append(Disagreement(decides=KAFKA_ADMIN, follows=user, about=KAFKA_PASSWORD_FILE))
    for user in (KAFKA_ADMIN, *KAFKA_CLIENTS):
        if volumes[user].get(KAFKA_USER_FILE) != user:
            yield SecretFile(consumer=user, name=KAFKA_USER_FILE, content=user, reason="its name at Kafka")


def _check_shape(volumes: Volumes) -> None:
    missing = [consumer for consumer in UIDS if consumer not in volumes]
    if missing:
        names = ", ".join(f"secrets-{consumer}" for consumer in missing)
        raise InvalidError(
            f"not mounted: {names}; mount every volume at /secrets/<consumer>", missing=missing
        )
    for consumer in UIDS:
        for name in files_of(consumer):
            content = volumes[consumer].get(name)
            if content is not None:
                _check_content(consumer, name, content)


def _check_content(consumer: str, name: str, content: str) -> None:
    fix = f"remove the volume secrets-{consumer} and start again, it is filled again"
    if not content or len(content) > SECRET_CHARS_MAX or not content.isprintable():
        raise InvalidError(
            f"secret file {consumer}/{name} has {len(content)} characters of the wrong kind; "
            f"expected 1 to {SECRET_CHARS_MAX} printable ones on one line; {fix}",
            consumer=consumer,
            file=name,
        )
    if content.lower() in _KNOWN_DEFAULTS:
        raise InvalidError(f"secret file {consumer}/{name} holds a well-known default; {fix}", file=name)
    ids = ("root_user", ACCESS_KEY_FILE, VENDING_ACCESS_KEY_FILE, KAFKA_USER_FILE)
    if name not in ids and len(content) < SECRET_CHARS_MIN:
        raise InvalidError(
            f"secret file {consumer}/{name} has {len(content)} characters; "
            f"at least {SECRET_CHARS_MIN} are needed; {fix}",
            consumer=consumer,
            file=name,
        )


def _contradiction(disagreements: list[Disagreement]) -> CorruptStateError:
    strangers = _strangers(disagreements)
    found = "; ".join(
        f"secrets-{d.follows} ({d.about}) disagrees with secrets-{d.decides}" for d in disagreements
    )
    volumes = " ".join(f"<project>_secrets-{name}" for name in strangers)
    return CorruptStateError(
        f"the secret volumes contradict each other: {found}. Nothing was changed. Probably a volume of "
        f"another copy is mounted. Stop the stack, remove the stranger (docker volume rm {volumes}) and "
        "start again: it is filled to agree with the others.",
        disagreements=[f"{d.follows}/{d.about} vs {d.decides}" for d in disagreements],
        remove=[f"secrets-{name}" for name in strangers],
    )


def _strangers(disagreements: list[Disagreement]) -> list[str]:
    """Return the volumes to blame: the authoritative one if all its copies disagree, else the copies."""
    followers = {
        "bootstrap": {"minio", *(holder_of(user) for user in STORE_USERS)},
        "catalog": set(PRINCIPALS),
        KAFKA_ADMIN: set(KAFKA_CLIENTS),
    }
    blamed: list[str] = []
    for decides, expected in followers.items():
        odd = {d.follows for d in disagreements if d.decides == decides}
        blamed += [decides] if odd == expected else sorted(odd)
    # A single copy cannot outvote the authoritative one; a foreign volume differs in other secrets too.
    blamed += [d.follows for d in disagreements if d.decides == "jupyter" and "jupyter" not in blamed]
    token = [
        d for d in disagreements if d.about == SPARK_TOKEN_FILE and not {d.decides, d.follows} & {*blamed}
    ]
    blamed += [d.follows for d in token]
    return list(dict.fromkeys(blamed))


def _name_of(entry: object) -> object:
    return entry.get("name") if isinstance(entry, dict) else None


def _secret(random_bytes: RandomBytes) -> str:
    return base64.urlsafe_b64encode(random_bytes(SECRET_BYTES)).rstrip(b"=").decode()


def _suffix(random_bytes: RandomBytes, count: int) -> str:
    return base64.b32encode(random_bytes(count)).decode()[:count].lower()


def _access_key(user: str, random_bytes: RandomBytes) -> str:
    stem = access_key_stem(user)
    count = ACCESS_KEY_CHARS - len(stem)
    return stem + base64.b32encode(random_bytes(count)).decode()[:count]
