"""The handlers of the Iceberg REST catalog's routes, from a request to a response. Use no sockets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus

import orjson

from tarn.core.errors import InvalidError, UnauthenticatedError
from tarn_catalog.metadata.table_metadata import refs_only
from tarn_catalog.operations.health import Health
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.vending import Vended
from tarn_catalog.operations.views import CreateViewRequest, answered
from tarn_catalog.rest.auth import Authenticator
from tarn_catalog.rest.request import RestRequest, get, levels_of, objects, strings
from tarn_catalog.rest.response import (
    JSON_HEADERS,
    NO_CONTENT,
    NOT_MODIFIED,
    NoSuchWarehouseError,
    NotSupportedError,
    RestResponse,
    answer_json,
    error_body,
)
from tarn_catalog.rest.vended import NO_STORE, fields_of, storage_credentials, wants_keys
from tarn_catalog.state.context import Metadata
from tarn_catalog.state.pointer import TABLE, VIEW
from tarn_catalog.state.request_history import LIFETIME_MS

IDEMPOTENCY_KEY_LIFETIME = f"PT{LIFETIME_MS // 60_000}M"

ANY_TAG = "*"


class Handlers:
    """A handler for each route; `…` is the path of a namespace. Reaches the catalog through a session alone.

    Args:
        health: the health of the catalog.
        access: who may ask.
        endpoints: what `/v1/config` lists.
    """

    def __init__(self, health: Health, access: Authenticator, endpoints: Sequence[str]) -> None:
        self._health_of = health
        self._access = access
        self._endpoints = endpoints

    # -- service

    def health(self, call: RestRequest, _: list[str]) -> RestResponse:
        """Answer `GET health`."""
        # Public; a token, if sent (the probe sends one), is verified.
        header = call.headers.get("authorization")
        if header is not None:
            try:
                self._access.principal(header, probe=True)
            except UnauthenticatedError:
                self._access.caller(self._access.principal(header))
        return self._healthy(self._health_of.shallow())

    def health_deep(self, _call: RestRequest, _: list[str]) -> RestResponse:
        """Answer `POST health/deep`."""
        return self._healthy(self._health_of.deep())

    @staticmethod
    def _healthy(problem: str | None) -> RestResponse:
        if problem is not None:
            return error_body(503, "ServiceUnavailableException", problem, {"retry-after": "1"})
        return answer_json({"status": "ok"})

    def token(self, call: RestRequest, _: list[str]) -> RestResponse:
        """Answer `POST v1/oauth/tokens`."""
        try:
            form = dict(parse_qsl(call.body.decode(), keep_blank_values=True, max_num_fields=20))
        except ValueError as e:
            raise InvalidError(f"Cannot parse the request body as a form: {e}") from e
        answer = self._access.token(form, call.headers.get("authorization"))
        return answer_json(answer, headers={"cache-control": "no-store"})

    def config(self, call: RestRequest, _: list[str]) -> RestResponse:
        """Answer `GET v1/config`."""
        wanted, known = call.query.get("warehouse"), call.side.warehouse
        if wanted and wanted != known:
            raise NoSuchWarehouseError(
                f"Warehouse does not exist: {wanted}; this catalog has one warehouse, {known}",
                warehouse=wanted,
            )
        return answer_json(
            {
                "defaults": call.side.defaults(),
                "overrides": {},
                "endpoints": self._endpoints,
                "idempotency-key-lifetime": IDEMPOTENCY_KEY_LIFETIME,
            }
        )

    # -- namespaces

    def list_namespaces(self, call: RestRequest, _: list[str]) -> RestResponse:
        """Answer `GET v1/namespaces`."""
        token, size = call.page()
        # Clients encode the parent twice; names cannot contain percent escapes, so this is harmless.
        parent = unquote_plus(call.query.get("parent", ""))
        page = call.session.list_namespaces(levels_of(parent) if parent else (), token=token, page_size=size)
        return answer_json({"namespaces": page.names, "next-page-token": page.next_token})

    def create_namespace(self, call: RestRequest, _: list[str]) -> RestResponse:
        """Answer `POST v1/namespaces`."""
        body = call.json()
        levels = get(body, "namespace", list)
        if not all(isinstance(level, str) for level in levels):
            raise InvalidError("Cannot parse the request body: a level of namespace is no string")
        properties = call.session.create_namespace(
            tuple(levels), strings(body, "properties"), repeat=call.repeat("create-namespace")
        )
        return answer_json({"namespace": levels, "properties": properties})

    def load_namespace(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `GET …`."""
        levels = levels_of(arguments[0])
        return answer_json({"namespace": levels, "properties": call.session.load_namespace(levels)})

    def namespace_exists(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `HEAD …`."""
        call.session.load_namespace(levels_of(arguments[0]))
        return NO_CONTENT

    def drop_namespace(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `DELETE …`."""
        call.session.drop_namespace(levels_of(arguments[0]), repeat=call.repeat("drop-namespace"))
        return NO_CONTENT

    def update_namespace(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `POST …/properties`."""
        body = call.json()
        removals = get(body, "removals", list, [])
        if not all(isinstance(name, str) for name in removals):
            raise InvalidError("Cannot parse the request body: removals holds something that is no string")
        changed = call.session.update_namespace(
            levels_of(arguments[0]),
            updates=strings(body, "updates"),
            removals=removals,
            repeat=call.repeat("update-namespace"),
        )
        return answer_json(
            {"updated": changed.updated, "removed": changed.removed, "missing": changed.missing}
        )

    # -- tables

    def list_tables(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `GET …/tables`."""
        return self._list(call, arguments, TABLE)

    def _list(self, call: RestRequest, arguments: list[str], kind: str) -> RestResponse:
        token, size = call.page()
        page = call.session.list_names(levels_of(arguments[0]), kind, token=token, page_size=size)
        identifiers = [{"namespace": found[:-1], "name": found[-1]} for found in page.names]
        return answer_json({"identifiers": identifiers, "next-page-token": page.next_token})

    def create_table(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `POST …/tables`."""
        body = call.json()
        slot = TableIdentifier.of(levels_of(arguments[0]), get(body, "name", str))
        wanted = CreateTableRequest(
            schema=get(body, "schema", dict),
            spec=get(body, "partition-spec", dict, None),
            order=get(body, "write-order", dict, None),
            properties=strings(body, "properties"),
            location=get(body, "location", str, None),
        )
        if get(body, "stage-create", bool, False):
            if not wants_keys(call):
                return answer_json({"metadata": call.session.stage(slot, wanted), "config": {}})
            staged, keys = call.session.stage_with_keys(slot, wanted)
            return answer_json({"metadata": staged, **fields_of(keys, call.side, slot)}, headers=NO_STORE)
        repeat = call.repeat("create-table")
        if not wants_keys(call):
            return self._table(call, call.session.create_table(slot, wanted, repeat=repeat))
        stored, keys = call.session.create_table_with_keys(slot, wanted, repeat=repeat)
        return self._table(call, stored, slot=slot, keys=keys)

    def load_table(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `GET …/tables/{table}`."""
        mode = call.query.get("snapshots", "all")
        if mode not in ("all", "refs"):
            raise InvalidError(f"Invalid snapshots {mode!r}: give all or refs")
        slot = TableIdentifier.of(levels_of(arguments[0]), arguments[1])
        if not wants_keys(call):
            return self._table(call, call.session.load(slot), mode=mode)
        stored, keys = call.session.load_with_keys(slot)
        return self._table(call, stored, mode=mode, slot=slot, keys=keys)

    def credentials(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `GET …/tables/{table}/credentials`."""
        keys = call.session.keys(TableIdentifier.of(levels_of(arguments[0]), arguments[1]))
        if keys is None:
            raise NotSupportedError(
                "This catalog vends no credentials: it has no address of a token service (STS) of the store; "
                "set TARN_STS_ENDPOINT, or use store keys of your own"
            )
        return answer_json({"storage-credentials": storage_credentials(keys, call.side)}, headers=NO_STORE)

    def _table(
        self,
        call: RestRequest,
        stored: Metadata,
        *,
        mode: str = "all",
        slot: TableIdentifier | None = None,
        keys: Vended | None = None,
    ) -> RestResponse:
        """Return a `LoadTableResult` or `LoadViewResult`.

        Its entity tag covers what can differ by client. With vended credentials it names them: they change
        before their end, so no client is referred to those that it has, unless they are still vended.

        Args:
            call: the request.
            stored: the metadata.
            mode: which snapshots to return.
            slot: the identifier of a table with vended credentials.
            keys: vended credentials.
        """
        client, key = call.session.caller.client_id or "", keys.keys.access_key_id if keys else ""
        answer = "\0".join((stored.location, mode, call.side.name, call.side.s3_endpoint, client, key))
        etag = f'"{hashlib.sha256(answer.encode()).hexdigest()[:32]}"'
        if call.method == "GET" and _matches(call.headers.get("if-none-match", ""), etag):
            return RestResponse(status=NOT_MODIFIED, headers={"etag": etag})
        raw = stored.raw if mode == "all" else orjson.dumps(refs_only(stored.parsed))
        head = orjson.dumps(stored.location)
        more = b'"config":{}}' if slot is None else orjson.dumps(fields_of(keys, call.side, slot))[1:]
        body = b"".join((b'{"metadata-location":', head, b',"metadata":', raw, b",", more))
        return RestResponse(body=body, headers={**JSON_HEADERS, **(NO_STORE if keys else {}), "etag": etag})

    def table_exists(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `HEAD …/tables/{table}`."""
        call.session.check_exists(TableIdentifier.of(levels_of(arguments[0]), arguments[1]))
        return NO_CONTENT

    def commit_table(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `POST …/tables/{table}`."""
        body = call.json()
        slot = _named_by(body, TableIdentifier.of(levels_of(arguments[0]), arguments[1]))
        stored = call.session.commit(
            slot, objects(body, "requirements"), objects(body, "updates"), repeat=call.repeat("commit")
        )
        return self._table(call, stored)

    def drop_table(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `DELETE …/tables/{table}`."""
        slot = TableIdentifier.of(levels_of(arguments[0]), arguments[1])
        purge = call.query.get("purgeRequested", "false").lower()
        if purge not in ("true", "false"):
            raise InvalidError(f"Invalid purgeRequested {purge[:64]!r}: give true or false")
        drop = call.session.purge if purge == "true" else call.session.drop
        # The key is bound to path and body; purgeRequested is in neither, so the operation names it.
        drop(slot, repeat=call.repeat(f"drop-table-{purge}"))
        return NO_CONTENT

    def rename_table(self, call: RestRequest, _: list[str]) -> RestResponse:
        """Answer `POST v1/tables/rename`."""
        body = call.json()
        call.session.rename(
            _named(body, "source"), _named(body, "destination"), repeat=call.repeat("rename-table")
        )
        return NO_CONTENT

    def commit_tables(self, call: RestRequest, _: list[str]) -> RestResponse:
        """Answer `POST v1/transactions/commit`."""
        changes = [
            Change(
                slot=_named(change, "identifier"),
                requirements=objects(change, "requirements"),
                updates=objects(change, "updates"),
            )
            for change in objects(call.json(), "table-changes")
        ]
        call.session.commit_tables(changes, repeat=call.repeat("commit-tables"))
        return NO_CONTENT

    def register_table(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `POST …/register`."""
        return self._register(call, arguments, TABLE)

    def _register(self, call: RestRequest, arguments: list[str], kind: str) -> RestResponse:
        body = call.json()
        slot = TableIdentifier.of(levels_of(arguments[0]), get(body, "name", str), kind)
        location = get(body, "metadata-location", str)
        overwrite = kind == TABLE and get(body, "overwrite", bool, False)
        repeat = call.repeat(f"register-{kind}")
        if kind == VIEW or not wants_keys(call):
            stored = call.session.register(slot, location, overwrite=overwrite, repeat=repeat)
            return self._table(call, answered(stored) if kind == VIEW else stored)
        stored, keys = call.session.register_with_keys(slot, location, overwrite=overwrite, repeat=repeat)
        return self._table(call, stored, slot=slot, keys=keys)

    def metrics(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `POST …/tables/{table}/metrics`."""
        slot = TableIdentifier.of(levels_of(arguments[0]), arguments[1])
        call.session.report(slot, call.json())
        return NO_CONTENT

    # -- views

    def list_views(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `GET …/views`."""
        return self._list(call, arguments, VIEW)

    def create_view(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `POST …/views`."""
        body = call.json()
        wanted = CreateViewRequest(
            schema=get(body, "schema", dict),
            version=get(body, "view-version", dict),
            properties=strings(body, "properties"),
            location=get(body, "location", str, None),
        )
        slot = TableIdentifier.of(levels_of(arguments[0]), get(body, "name", str), VIEW)
        stored = call.session.create_view(slot, wanted, repeat=call.repeat("create-view"))
        return self._table(call, answered(stored))

    def load_view(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `GET …/views/{view}`."""
        return self._table(call, answered(call.session.load(_view(arguments))))

    def view_exists(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `HEAD …/views/{view}`."""
        call.session.check_exists(_view(arguments))
        return NO_CONTENT

    def replace_view(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `POST …/views/{view}`."""
        body = call.json()
        get(body, "updates", list)  # must be there, unlike a table's
        stored = call.session.commit_view(
            _named_by(body, _view(arguments)),
            objects(body, "requirements"),
            objects(body, "updates"),
            repeat=call.repeat("replace-view"),
        )
        return self._table(call, answered(stored))

    def drop_view(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `DELETE …/views/{view}`."""
        call.session.drop(_view(arguments), repeat=call.repeat("drop-view"))
        return NO_CONTENT

    def rename_view(self, call: RestRequest, _: list[str]) -> RestResponse:
        """Answer `POST v1/views/rename`."""
        body = call.json()
        call.session.rename(
            _named(body, "source", VIEW), _named(body, "destination", VIEW), repeat=call.repeat("rename-view")
        )
        return NO_CONTENT

    def register_view(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        """Answer `POST …/register-view`."""
        return self._register(call, arguments, VIEW)

    def not_supported(self, call: RestRequest, _: list[str]) -> RestResponse:
        """Answer a route of the specification that this version does not have."""
        raise NotSupportedError(
            f"{call.method} {unquote(call.path)[:200]!r} is not supported by this version of the "
            "catalog; /v1/config lists what is"
        )


def _matches(header: str, etag: str) -> bool:
    """Return whether an If-None-Match header names an entity tag; a weak one compares as a strong one.

    `*` names every one (RFC 9110).
    """
    return header.strip() == ANY_TAG or etag in (tag.strip().removeprefix("W/") for tag in header.split(","))


def _view(arguments: list[str]) -> TableIdentifier:
    """Return the view identifier in a path."""
    return TableIdentifier.of(levels_of(arguments[0]), arguments[1], VIEW)


def _named_by(body: dict[str, Any], slot: TableIdentifier) -> TableIdentifier:
    """Return the identifier of the path, which the body of a commit may repeat.

    Raises:
        InvalidError: the body names another.
    """
    named = get(body, "identifier", dict, None)
    if named is not None and (named.get("namespace"), named.get("name")) != ([*slot.namespace], slot.name):
        raise InvalidError(f"Cannot commit: the body names {named}, the path {slot.text}")
    return slot


def _named(body: dict[str, Any], field: str, kind: str = TABLE) -> TableIdentifier:
    """Return the identifier in a field of a body.

    Raises:
        InvalidError: the field is missing or malformed.
        InvalidNameError: a name is not allowed.
    """
    named = get(body, field, dict)
    levels = get(named, "namespace", list)
    if not levels or not all(isinstance(level, str) and level for level in levels):
        raise InvalidError(f"Cannot parse the request body: {field}.namespace is no list of names")
    return TableIdentifier.of(tuple(levels), get(named, "name", str), kind)
