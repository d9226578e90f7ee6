"""Names of namespaces and tables, the object keys derived from them, and permitted locations. Pure.

A name reaches a key, a location or a policy only through `encode`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from tarn.core.errors import InvalidLocationError, InvalidNameError

NAMESPACES_PREFIX = "catalog/v1/namespaces/"
POINTERS_PREFIX = "catalog/v1/pointers/"
KEY_PAGES_PREFIX = "catalog/v1/keys/"
TRANSACTIONS_PREFIX = "catalog/v1/transactions/"
CLAIMS_PREFIX = "catalog/v1/claims/"
PROBE_PREFIX = "catalog/v1/probe/"
GRANTS_KEY = "catalog/v1/grants.json"
WAREHOUSE = "warehouse"

ENCODED_BYTES_MAX = 200
NAMESPACE_LEVELS_MAX = 8
LOCATION_BYTES_MAX = 900

_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_PLAIN_PART = re.compile("[A-Za-z0-9_-]+")
"""Names that are valid, and their own encoding: nearly all."""
_REFUSED = frozenset("/*?${}")
_PERCENT_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_ENDS_IN_UUID = re.compile(f"(^|.*[-/]){_UUID}$")
_GRANTEE = re.compile("[A-Za-z0-9_][A-Za-z0-9_.@-]{0,63}")
_LOCATION_SEGMENT = re.compile("[A-Za-z0-9_.~=+,@:-]+")


def check_part(part: str, *, what: str) -> str:
    """Validate a name and return it unchanged.

    Args:
        part: table name or one level of a namespace.
        what: kind of name, for the message.

    Raises:
        InvalidNameError: the name is empty, too long once encoded, or contains something that must not reach
            a key, a URL or a policy.
    """
    if _PLAIN_PART.fullmatch(part):
        return part
    if not part:
        raise InvalidNameError(f"Invalid {what} name: it is empty; give it at least one character", name=part)
    if any(ord(char) < 0x20 or 0x7F <= ord(char) <= 0x9F for char in part):
        raise InvalidNameError(
            f"Invalid {what} name {part!r}: control characters are not allowed; remove them", name=part
        )
    if any(0xD800 <= ord(char) <= 0xDFFF for char in part):
        raise InvalidNameError(f"Invalid {what} name {part!r}: it is not valid Unicode", name=part)
    refused = sorted(_REFUSED.intersection(part))
    if refused:
        raise InvalidNameError(
            f"Invalid {what} name {part!r}: {' '.join(refused)} not allowed; use letters, digits, _ or -",
            name=part,
        )
    if ".." in part or part == ".":
        raise InvalidNameError(
            f"Invalid {what} name {part!r}: it looks like a path; remove the dots", name=part
        )
    if _PERCENT_ESCAPE.search(part):
        raise InvalidNameError(
            f"Invalid {what} name {part!r}: percent escapes are not allowed; write the character itself",
            name=part,
        )
    return part


def check_grantee(name: str, *, what: str) -> str:
    """Validate the name of a principal or role and return it unchanged.

    Args:
        name: the name; it becomes part of a client id, which ends at a colon.
        what: `principal` or `role`, for the message.

    Raises:
        InvalidNameError: the name is empty or too long, or not made of letters, digits and _ . @ - alone.
    """
    if not _GRANTEE.fullmatch(name):
        raise InvalidNameError(
            f"Invalid {what} name {name[:100]!r}: use 1 to 64 letters, digits and _ . @ - and begin with a "
            "letter, a digit or _",
            name=name[:100],
        )
    return name


def encode(part: str) -> str:
    """Encode every byte outside `A-Z a-z 0-9 _ -` as `~XX` (UTF-8, upper-case hex)."""
    if _PLAIN_PART.fullmatch(part):
        return part
    return "".join(chr(byte) if byte in _PLAIN else f"~{byte:02X}" for byte in part.encode())


def decode(encoded: str) -> str:
    """Decode a name encoded by `encode`.

    Raises:
        InvalidNameError: the text is not an encoded name.
    """
    out = bytearray()
    position = 0
    try:
        while position < len(encoded):
            if encoded[position] == "~":
                out.append(int(encoded[position + 1 : position + 3], 16))
                position += 3
            else:
                out.extend(encoded[position].encode("ascii"))
                position += 1
        name = out.decode()
    except ValueError as e:
        raise InvalidNameError(f"Invalid key part {encoded!r}: it is no encoded name", name=encoded) from e
    if encode(name) != encoded:
        raise InvalidNameError(f"Invalid key part {encoded!r}: it is no encoded name", name=encoded)
    return name


def encode_namespace(namespace: Sequence[str]) -> str:
    """Validate and encode the levels, joined by dots.

    Raises:
        InvalidNameError: a level is invalid, there are none or too many, or the result is too long.
    """
    if not namespace:
        raise InvalidNameError("Invalid namespace: it is empty; name at least one level")
    if len(namespace) > NAMESPACE_LEVELS_MAX:
        raise InvalidNameError(
            f"Invalid namespace: {len(namespace)} levels, at most {NAMESPACE_LEVELS_MAX} are allowed",
            namespace=tuple(namespace),
        )
    encoded = ".".join(encode(check_part(level, what="namespace")) for level in namespace)
    return _bounded(encoded, what="namespace")


def encode_name(name: str) -> str:
    """Validate and encode the name of a table or view.

    Raises:
        InvalidNameError: the name is invalid or too long.
    """
    return _bounded(encode(check_part(name, what="table")), what="table")


def _bounded(encoded: str, *, what: str) -> str:
    if len(encoded) > ENCODED_BYTES_MAX:
        raise InvalidNameError(
            f"Invalid {what} name: {len(encoded)} bytes once encoded, at most {ENCODED_BYTES_MAX} are "
            "allowed; choose a shorter one",
            bytes=len(encoded),
        )
    return encoded


def decode_namespace(encoded: str) -> tuple[str, ...]:
    """Decode the levels encoded by `encode_namespace`."""
    return tuple(decode(level) for level in encoded.split("."))


def namespace_key(namespace: Sequence[str]) -> str:
    """Key of a namespace object."""
    return f"{NAMESPACES_PREFIX}{encode_namespace(namespace)}.json"


def namespace_of_key(key: str) -> tuple[str, ...]:
    """Namespace of a namespace object's key."""
    return decode_namespace(key.removeprefix(NAMESPACES_PREFIX).removesuffix(".json"))


def pointers_prefix(namespace: Sequence[str]) -> str:
    """Key prefix of the pointers of a namespace."""
    return f"{POINTERS_PREFIX}{encode_namespace(namespace)}/"


def pointer_key(namespace: Sequence[str], name: str) -> str:
    """Key of the pointer of a table or view."""
    return f"{pointers_prefix(namespace)}{encode_name(name)}.json"


def name_of_pointer_key(key: str) -> str:
    """Name of the table or view of a pointer key."""
    return decode(key.rsplit("/", 1)[-1].removesuffix(".json"))


def transaction_key(transaction: str) -> str:
    """Key of a transaction record; `transaction` is a UUID."""
    return f"{TRANSACTIONS_PREFIX}{transaction}.json"


def claim_key(table_uuid: str) -> str:
    """Key of the claim on a table: which name holds it, or that its files are to be deleted."""
    return f"{CLAIMS_PREFIX}{table_uuid}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class WarehouseLayout:
    """Mapping between object keys and locations: the location of key `k` is `<base>/<k>`.

    Attributes:
        base: location of the store's empty key, such as `s3://tarn` or `file:///tmp/lake`, without a trailing
            slash.
    """

    base: str

    @property
    def warehouse(self) -> str:
        """Location that contains all tables."""
        return f"{self.base}/{WAREHOUSE}"

    def location(self, key: str) -> str:
        """Location of a key."""
        return f"{self.base}/{key}"

    def key(self, location: str) -> str:
        """Key of a location.

        Raises:
            InvalidLocationError: the location is not in this store.
        """
        prefix = f"{self.base}/"
        if not location.startswith(prefix):
            raise InvalidLocationError(
                f"Invalid location {location}: it is not under {prefix}", location=location, base=self.base
            )
        return location[len(prefix) :]

    def new_table(
        self, namespace: Sequence[str], name: str, table_uuid: str, *, requested: str | None = None
    ) -> str:
        """A location that no other table has or will have: it ends in the table's UUID (invariant I7).

        Args:
            namespace: namespace of the table.
            name: name of the table.
            table_uuid: new UUID of the table.
            requested: folder in the warehouse that the caller prefers.

        Raises:
            InvalidLocationError: the requested folder is outside the warehouse, inside a table's location, or
                too long for a table in it to be registered, or for the store.
        """
        if requested is None:
            parent = f"{self.warehouse}/{encode_namespace(namespace)}"
        else:
            parent = self.check_parent(requested)
        location = f"{parent}/{encode_name(name)}-{table_uuid}"
        if requested is not None and len(location.encode()) > LOCATION_BYTES_MAX:
            raise InvalidLocationError(
                f"Invalid location {requested}: the table's own folder in it has {len(location.encode())} "
                f"bytes, at most {LOCATION_BYTES_MAX} are allowed; ask for a shorter folder, or for none",
                bytes=len(location.encode()),
            )
        return location

    def check_parent(self, requested: str) -> str:
        """Require that a table may be created below the folder; returns it without trailing slashes.

        Raises:
            InvalidLocationError: the folder is outside the warehouse or inside a table's location.
        """
        parent = requested.rstrip("/")
        for segment in self._segments(parent):
            if _ENDS_IN_UUID.match(segment):
                raise InvalidLocationError(
                    f"Invalid location {requested}: {segment} is the location of another table, and "
                    "locations are never shared; ask for another folder, or for none",
                    location=requested,
                )
        return parent

    def check_table(self, location: str, table_uuid: str) -> str:
        """Require that the catalog could have assigned the location to this table; returns it unchanged.

        Raises:
            InvalidLocationError: it is outside the warehouse, in another table's location, or lacks the UUID.
        """
        segments = self._segments(location)
        ends = segments and re.fullmatch(f"[A-Za-z0-9_~-]+-{re.escape(table_uuid)}", segments[-1])
        if not ends or any(_ENDS_IN_UUID.match(segment) for segment in segments[:-1]):
            raise InvalidLocationError(
                f"Invalid location {location}: it was not handed out by this catalog for the table with uuid "
                f"{table_uuid}; stage the create and use the location in its answer",
                location=location,
                uuid=table_uuid,
            )
        return location

    def check_inside(self, location: str) -> str:
        """Require a well-formed location in the warehouse; returns it unchanged.

        Raises:
            InvalidLocationError: the location is malformed or outside the warehouse.
        """
        self._segments(location)
        return location

    def _segments(self, location: str) -> list[str]:
        if location != self.warehouse and not location.startswith(f"{self.warehouse}/"):
            raise InvalidLocationError(
                f"Invalid location {location}: it is not under {self.warehouse}/; ask for a folder there, or "
                "for none and the catalog chooses",
                location=location,
                warehouse=self.warehouse,
            )
        if len(location.encode()) > LOCATION_BYTES_MAX:
            raise InvalidLocationError(
                f"Invalid location: {len(location.encode())} bytes, at most {LOCATION_BYTES_MAX} are allowed",
                bytes=len(location.encode()),
            )
        rest = location[len(self.warehouse) :].removeprefix("/")
        segments = rest.split("/") if rest else []
        for segment in segments:
            if not _LOCATION_SEGMENT.fullmatch(segment) or set(segment) == {"."} or ".." in segment:
                raise InvalidLocationError(
                    f"Invalid location {location}: the part {segment!r} is not allowed; use letters, digits, "
                    "_ - . = only",
                    location=location,
                )
        return segments


PATH_PROPERTIES = (
    "write.data.path",
    "write.metadata.path",
    "write.object-storage.path",
    "write.folder-storage.path",
)


def check_path_properties(properties: dict[str, str], location: str) -> None:
    """Require that every property that sets a write path stays inside the table's location.

    Raises:
        InvalidLocationError: a property points elsewhere.
    """
    for name in PATH_PROPERTIES:
        path = properties.get(name)
        if path is None:
            continue
        inside = path.rstrip("/") == location or path.startswith(f"{location}/")
        if not inside or ".." in path.split("/") or any(ord(char) < 0x20 for char in path):
            raise InvalidLocationError(
                f"Invalid {name} {path}: files of a table lie under its own location {location}; remove the "
                "property or choose a folder there",
                property=name,
                location=path,
            )
