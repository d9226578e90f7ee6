"""A declared ingestor: its spec as one object of the store, and the changes of it. Pure.

An object is never deleted: a deleted ingestor leaves a tombstone, so that a write that arrives late cannot
bring it back, and the next ingestor of the name goes on counting its generations.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tarn.core import versioned_json
from tarn.core.errors import AlreadyExistsError, CorruptStateError, InvalidSpecError, NotFoundError
from tarn.core.spec import IngestorSpec, spec_of
from tarn.core.spec.ingestor import NAME_PATTERN
from tarn.core.years import MS_MAX

FORMAT = 1
PREFIX = "specs/v1/"
SPECS_PREFIX = f"{PREFIX}ingestors/"
STATUS_PREFIX = f"{PREFIX}status/"
GENERATION_MAX = 2**53
HAND = "hand"
"""Owner of a spec that a person applied."""
_FILE = "file:"


def is_name(name: str) -> bool:
    """Whether an ingestor can have this name; the key of any other text may be another object's."""
    return re.fullmatch(NAME_PATTERN, name) is not None


def spec_key(name: str) -> str:
    """Key of the spec of an ingestor."""
    return f"{SPECS_PREFIX}{name}.json"


def status_key(name: str) -> str:
    """Key of the status of an ingestor."""
    return f"{STATUS_PREFIX}{name}.json"


def name_of(key: str) -> str | None:
    """Name of the ingestor whose spec has this key; None for a key of another form."""
    name = key.removeprefix(SPECS_PREFIX).removesuffix(".json")
    return name if spec_key(name) == key else None


def owner_of_file(file: str) -> str:
    """Owner of the specs that come from a file of the spec folder."""
    return _FILE + file


def revision_of(uid: str, spec: IngestorSpec, version: str) -> str:
    """What a writer runs, as 12 hex digits: another one if anything in the spec or the program changes.

    Args:
        uid: the ingestor's uid; a deleted and recreated one has other writers.
        spec: the spec, with its defaults.
        version: version of the program.
    """
    content = orjson.dumps([uid, version, spec.model_dump(mode="json", by_alias=True)])
    return hashlib.sha256(content).hexdigest()[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The object of an ingestor.

    Attributes:
        name: name of the ingestor.
        uid: unique per creation of the name.
        generation: number of the spec's version; 1 more with each change, also beyond a deletion.
        owner: who changes the spec: `hand`, or a file of the spec folder (`owner_of_file`).
        document: the spec as its author wrote it, without defaults.
        created_ms: when the ingestor was created, in milliseconds since the epoch.
        changed_ms: when the spec was changed last, likewise.
        deleting_ms: when its deletion was requested, likewise; None: it was not.
        gone: whether this is the tombstone of a deleted ingestor.
        nonce: unique per write, so that a writer recognises its own.
    """

    name: str
    uid: str
    generation: int
    owner: str
    document: Mapping[str, Any]
    created_ms: int
    changed_ms: int
    deleting_ms: int | None = None
    gone: bool = False
    nonce: str = ""

    @property
    def spec(self) -> IngestorSpec:
        """The spec.

        Raises:
            InvalidSpecError: this version of Tarn does not take it.
        """
        found = spec_of(self.document, file=self.label)
        if found.name != self.name:
            raise InvalidSpecError(
                f"{self.label}: metadata.name is {found.name!r}, and the object belongs to {self.name!r}; "
                "apply the spec again",
                file=self.label,
            )
        return found

    @property
    def file(self) -> str | None:
        """The file of the spec folder that it comes from; None if a person applied it."""
        return self.owner.removeprefix(_FILE) if self.owner.startswith(_FILE) else None

    @property
    def label(self) -> str:
        """What messages call it: its file, or its name."""
        return self.file or f"ingestor {self.name}"

    @property
    def deleting(self) -> bool:
        """Whether its deletion was requested."""
        return self.deleting_ms is not None

    def to_bytes(self) -> bytes:
        """JSON, as stored."""
        return orjson.dumps(
            {
                "v": FORMAT,
                "name": self.name,
                "uid": self.uid,
                "generation": self.generation,
                "owner": self.owner,
                "createdMs": self.created_ms,
                "changedMs": self.changed_ms,
                "deletingMs": self.deleting_ms,
                "gone": self.gone,
                "nonce": self.nonce,
                "spec": self.document,
            },
            option=orjson.OPT_INDENT_2,
        )

    @staticmethod
    def from_bytes(data: bytes, *, name: str) -> Declared:
        """Parse the result of `to_bytes`; the spec itself is parsed by `spec`.

        Raises:
            CorruptStateError: the object is not of this form.
        """
        try:
            value = versioned_json.read(data, FORMAT)
            deleting = value["deletingMs"]
            found = Declared(
                name=str(value["name"]),
                uid=str(value["uid"]),
                generation=_number(value["generation"], GENERATION_MAX),
                owner=str(value["owner"]),
                document=dict(value["spec"]),
                created_ms=_number(value["createdMs"], MS_MAX),
                changed_ms=_number(value["changedMs"], MS_MAX),
                deleting_ms=None if deleting is None else _number(deleting, MS_MAX),
                gone=bool(value["gone"]),
                nonce=str(value["nonce"]),
            )
            if found.name != name:
                raise ValueError(f"it names {found.name!r}")
        except (ValueError, KeyError, TypeError) as e:
            raise CorruptStateError(
                f"{spec_key(name)} is not the spec of an ingestor ({e}); restore the object, or apply the "
                "spec again with --replace",
                key=spec_key(name),
            ) from e
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """What a change does not choose itself.

    Attributes:
        now_ms: wall-clock time, in milliseconds since the epoch.
        uid: a unique id.
        nonce: another one.
    """

    now_ms: int
    uid: str
    nonce: str


def applied(
    found: Declared | None,
    document: Mapping[str, Any],
    *,
    file: str,
    owner: str,
    stamp: Stamp,
    take_over: bool = False,
) -> Declared:
    """The object once a spec is applied; `found` itself if that changes nothing.

    Args:
        found: the object as it is, if there is one.
        document: the spec as its author wrote it.
        file: what messages call it.
        owner: who applies it.
        stamp: time and ids.
        take_over: whether a spec of another owner may be changed; its owner is then this one.

    Raises:
        InvalidSpecError: the spec is invalid.
        AlreadyExistsError: the spec has another owner, or is being deleted.
    """
    document = _as_json(document, file=file)
    spec = spec_of(document, file=file)
    if found is None or found.gone:
        return Declared(
            name=spec.name,
            uid=stamp.uid,
            generation=1 if found is None else found.generation + 1,
            owner=owner,
            document=document,
            created_ms=stamp.now_ms,
            changed_ms=stamp.now_ms,
            nonce=stamp.nonce,
        )
    _require_not_deleting(found)
    if found.owner != owner and not take_over:
        raise _owned(found, by=owner)
    if _same(found, spec) and found.owner == owner:
        return found
    more = 0 if _same(found, spec) else 1
    return replace(
        found,
        document=document,
        owner=owner,
        generation=found.generation + more,
        changed_ms=stamp.now_ms,
        nonce=stamp.nonce,
    )


def scaled(found: Declared, replicas: int, *, stamp: Stamp, take_over: bool = False) -> Declared:
    """The object with another number of replicas; `found` itself if it has that already.

    Raises:
        InvalidSpecError: the number is not allowed.
        NotFoundError, AlreadyExistsError: as `applied`, and of an ingestor that is gone.
    """
    _require_there(found)
    present = found.spec.spec.replicas
    body = dict(found.document["spec"])
    if present != replicas:
        body["replicas"] = replicas
    return applied(
        found,
        {**found.document, "spec": body},
        file=found.label,
        owner=HAND if take_over else found.owner if found.file is None else HAND,
        stamp=stamp,
        take_over=take_over,
    )


def deleted(found: Declared, *, stamp: Stamp) -> Declared:
    """The object once its deletion is requested; `found` itself if that was before.

    Raises:
        NotFoundError: it is gone.
    """
    _require_there(found)
    return found if found.deleting else replace(found, deleting_ms=stamp.now_ms, nonce=stamp.nonce)


def finalized(found: Declared, *, stamp: Stamp) -> Declared:
    """The tombstone of an ingestor whose writers have ended; `found` itself if it is one."""
    if found.gone:
        return found
    return replace(found, gone=True, document={}, changed_ms=stamp.now_ms, nonce=stamp.nonce)


def _number(value: Any, most: int) -> int:
    """A number of an object, which people and notebooks may write.

    Raises:
        ValueError: it is none that a command writes.
    """
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"{str(value)[:40]} is no number from 0 to {most}")
    return value


def _as_json(document: Mapping[str, Any], *, file: str) -> dict[str, Any]:
    """The values of a spec's YAML as the object will give them back."""
    try:
        found: dict[str, Any] = orjson.loads(orjson.dumps(dict(document), option=orjson.OPT_NON_STR_KEYS))
    except (TypeError, ValueError) as e:
        raise InvalidSpecError(
            f"{file}: a value cannot be stored as JSON: {e}; put it in quotes", file=file
        ) from e
    return found


def _same(found: Declared, spec: IngestorSpec) -> bool:
    """Whether the stored spec means the same, defaults included; one that cannot be read does not."""
    try:
        return found.spec == spec
    except InvalidSpecError:
        return False


def _require_there(found: Declared) -> None:
    if found.gone:
        raise NotFoundError(f"there is no ingestor {found.name}; scripts/tarn get lists those that there are")


def _require_not_deleting(found: Declared) -> None:
    if found.deleting:
        raise AlreadyExistsError(
            f"ingestor {found.name} is being deleted: its writers end first; apply the spec again in a few "
            "seconds (scripts/tarn describe shows what it waits for)",
            name=found.name,
        )


def _owned(found: Declared, *, by: str) -> AlreadyExistsError:
    if found.file is not None:
        if by == HAND:
            return AlreadyExistsError(
                f"ingestor {found.name} belongs to {found.file} of the spec folder: change that file and "
                "restart ingest, or add --take-over, after which the file changes it no more",
                name=found.name,
                owner=found.owner,
            )
        return AlreadyExistsError(
            f"metadata.name {found.name!r} belongs to {found.file}, another file of the spec folder; rename "
            "one of the two, or remove one",
            name=found.name,
            owner=found.owner,
        )
    return AlreadyExistsError(
        f"metadata.name {found.name!r} belongs to an ingestor that was applied by hand, which a file does "
        f"not change; remove the file, or delete the ingestor (scripts/tarn delete {found.name}) and restart "
        "ingest",
        name=found.name,
        owner=found.owner,
    )
