"""Vended credentials in requests and responses, with the property names of Iceberg's clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.vending import Vended
from tarn_catalog.rest.request import SEPARATOR, ClientConfig, RestRequest

DELEGATION_HEADER = "x-iceberg-access-delegation"
VENDED_CREDENTIALS = "vended-credentials"
NO_STORE = {"cache-control": "no-store"}


def wants_keys(call: RestRequest) -> bool:
    """Return whether the client takes vended credentials; what else it may take is not offered."""
    wanted = call.headers.get(DELEGATION_HEADER, "").lower().split(",")
    return VENDED_CREDENTIALS in (mechanism.strip() for mechanism in wanted)


def keys_of(vended: Vended, side: ClientConfig) -> dict[str, str]:
    """Return vended credentials as properties of a client's file access.

    Args:
        vended: the credentials.
        side: the client configuration of the listener, for the store's address.
    """
    config = {name: value for name, value in side.defaults().items() if name != "io-impl"}
    return {
        **config,
        "s3.access-key-id": vended.keys.access_key_id,
        "s3.secret-access-key": vended.keys.secret_access_key,
        "s3.session-token": vended.keys.session_token,
        "s3.session-token-expires-at-ms": str(vended.keys.expires_ms),
    }


def storage_credentials(vended: Vended, side: ClientConfig) -> list[dict[str, Any]]:
    """Return the list `storage-credentials` of the REST specification."""
    return [{"prefix": vended.prefix, "config": keys_of(vended, side)}]


def fields_of(vended: Vended | None, side: ClientConfig, slot: TableIdentifier) -> Mapping[str, Any]:
    """Return what a `LoadTableResult` has besides the metadata.

    Clients that read only `config` find the credentials there too, and all of them where to renew them.
    """
    if vended is None:
        return {"config": {}}
    levels, name = (quote(text, safe="") for text in (SEPARATOR.join(slot.namespace), slot.name))
    renewed_at = f"v1/namespaces/{levels}/tables/{name}/credentials"
    return {
        "config": {**keys_of(vended, side), "client.refresh-credentials-endpoint": renewed_at},
        "storage-credentials": storage_credentials(vended, side),
    }
