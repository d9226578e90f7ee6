"""Credentials that principals of the catalog lend to ingest, one object of the store each. Pure."""

from __future__ import annotations

import re

import orjson

from tarn.core import versioned_json
from tarn.core.errors import CorruptStateError, InvalidError
from tarn.core.spec.ingestor import PRINCIPAL_PATTERN

FORMAT = 1
PREFIX = "credentials/v1/"
_CREDENTIAL = re.compile(r"[A-Za-z0-9._~-]{1,200}:[\x21-\x7e]{8,4096}")


def credential_key(principal: str) -> str:
    """Key of the credential of a principal.

    Raises:
        InvalidError: no principal that a spec may name with runAs has this name.
    """
    if not re.fullmatch(PRINCIPAL_PATTERN, principal):
        raise InvalidError(
            f"no ingestor can run as {principal!r}: a principal's name for runAs is of letters, digits "
            "and _.@-, 64 at most, and begins with a letter, a digit or _"
        )
    return f"{PREFIX}{principal}.json"


def parse_credential(text: str) -> str:
    """The credential `client_id:client_secret` in the last line of a text, as `principal create` prints it.

    Raises:
        InvalidError: that line is none; its content is not shown.
    """
    lines = text.split("\n")
    found = next((line.strip() for line in reversed(lines) if line.strip()), "")
    if not _CREDENTIAL.fullmatch(found):
        raise InvalidError(
            "the last line of the input is no credential; give client_id:client_secret, as "
            "scripts/tarn principal create NAME prints it"
        )
    return found


def to_bytes(credential: str | None) -> bytes:
    """JSON, as stored; None: it was taken back."""
    return orjson.dumps({"v": FORMAT, "credential": credential})


def from_bytes(data: bytes, *, principal: str) -> str | None:
    """Parse the result of `to_bytes`.

    Raises:
        CorruptStateError: the object is not of this form.
    """
    key = credential_key(principal)
    try:
        found = versioned_json.read(data, FORMAT)["credential"]
        if found is not None and not isinstance(found, str):
            raise ValueError("the credential is no text")
    except (ValueError, KeyError, TypeError) as e:
        raise CorruptStateError(
            f"{key} is no credential; lend it again with scripts/tarn principal lend {principal}", key=key
        ) from e
    return found
