"""The routes of the Iceberg REST catalog, as functions from a request to a response. Uses no sockets."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote, unquote_plus

import orjson

from tarn.core.errors import InvalidError, InvalidNameError, UnauthenticatedError
from tarn_catalog.metadata.table_metadata import refs_only
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.delegation import DelegatingSession
from tarn_catalog.operations.identifiers import CreateTableRequest, TableIdentifier
from tarn_catalog.operations.multi_table_commit import Change
from tarn_catalog.operations.session import Operation
from tarn_catalog.operations.vending import Vended
from tarn_catalog.operations.views import CreateViewRequest
from tarn_catalog.rest import access_routes
from tarn_catalog.rest.auth import Authenticator, Principal
from tarn_catalog.rest.lines import Place
from tarn_catalog.rest.request import SEPARATOR, RestRequest, get, levels_of, objects, strings
from tarn_catalog.rest.response import (
    JSON_HEADERS,
    NO_CONTENT,
    NOT_MODIFIED,
    MethodError,
    NoSuchRouteError,
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


class Routes:
    """All routes over one catalog. A handler reaches the catalog through the session of its request alone."""

    def __init__(self, catalog: Catalog, access: Authenticator) -> None:
        self._health_of = catalog.health
        self._endpoints = ENDPOINTS if catalog.vending is not None else ENDPOINTS_WITHOUT_KEYS
        self._access = access
        self._open = partial(DelegatingSession, catalog)

    def admit(self, method: str, path: str, authorization: str | None) -> Admitted:
        """Authenticate a request and find its route, from the head alone: no body is read before.

        Args:
            method: the HTTP method.
            path: the path, still percent-encoded.
            authorization: the Authorization header, or None.

        Raises:
            UnauthenticatedError: the route requires a token, and there is no valid one.
            TarnError: there is no such route or method.
        """
        try:
            # Iceberg's Java client up to 1.11 (Trino 483) encodes a space as `+`; its server decodes that.
            parts = [unquote_plus(segment, errors="strict") for segment in path.strip("/").split("/")]
        except UnicodeDecodeError as e:
            raise InvalidNameError("Invalid path: its percent escapes are no UTF-8") from e
        route, arguments = _match(method, parts)
        principal = None if route.public else self._access.principal(authorization, probe=route.probe)
        return Admitted(
            public=route.public,
            waits=route.waits or (principal is not None and principal.stored),
            function=route.function,
            arguments=arguments,
            asks=route.asks,
            principal=principal,
            place=route.place(arguments),
        )

    def answer(self, call: RestRequest, admitted: Admitted) -> RestResponse:
        """Return the response to an admitted request.

        Raises:
            TarnError: the request failed; `response.answer_error` maps it.
        """
        principal = admitted.principal
        if principal is None or principal.probe:
            return admitted.function(self, call, admitted.arguments)
        session = self._open(self._access.caller(principal), services=self._access.services)
        answer = admitted.function(self, replace(call, opened=session), admitted.arguments)
        assert session.asked <= admitted.asks, call.path
        assert session.asked or not admitted.asks, call.path
        return answer

    # -- service

    def _health(self, call: RestRequest, _: list[str]) -> RestResponse:
        # Public; a token, if sent (the probe sends one), is verified.
        header = call.headers.get("authorization")
        if header is not None:
            try:
                self._access.principal(header, probe=True)
            except UnauthenticatedError:
                self._access.caller(self._access.principal(header))
        return self._healthy(self._health_of.shallow())

    def _health_deep(self, _call: RestRequest, _: list[str]) -> RestResponse:
        return self._healthy(self._health_of.deep())

    @staticmethod
    def _healthy(problem: str | None) -> RestResponse:
        if problem is not None:
            return error_body(503, "ServiceUnavailableException", problem, {"retry-after": "1"})
        return answer_json({"status": "ok"})

    def _token(self, call: RestRequest, _: list[str]) -> RestResponse:
        try:
            form = dict(parse_qsl(call.body.decode(), keep_blank_values=True, max_num_fields=20))
        except ValueError as e:
            raise InvalidError(f"Cannot parse the request body as a form: {e}") from e
        answer = self._access.token(form, call.headers.get("authorization"))
        return answer_json(answer, headers={"cache-control": "no-store"})

    def _config(self, call: RestRequest, _: list[str]) -> RestResponse:
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

    def _list_namespaces(self, call: RestRequest, _: list[str]) -> RestResponse:
        token, size = call.page()
        # Clients encode the parent twice; names cannot contain percent escapes, so this is harmless.
        parent = unquote_plus(call.query.get("parent", ""))
        page = call.session.list_namespaces(levels_of(parent) if parent else (), token=token, page_size=size)
        return answer_json({"namespaces": page.names, "next-page-token": page.next_token})

    def _create_namespace(self, call: RestRequest, _: list[str]) -> RestResponse:
        body = call.json()
        levels = get(body, "namespace", list)
        if not all(isinstance(level, str) for level in levels):
            raise InvalidError("Cannot parse the request body: a level of namespace is no string")
        properties = call.session.create_namespace(
            tuple(levels), strings(body, "properties"), repeat=call.repeat("create-namespace")
        )
        return answer_json({"namespace": levels, "properties": properties})

    def _load_namespace(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        levels = levels_of(arguments[0])
        return answer_json({"namespace": levels, "properties": call.session.load_namespace(levels)})

    def _namespace_exists(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        call.session.load_namespace(levels_of(arguments[0]))
        return NO_CONTENT

    def _drop_namespace(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        call.session.drop_namespace(levels_of(arguments[0]), repeat=call.repeat("drop-namespace"))
        return NO_CONTENT

    def _update_namespace(self, call: RestRequest, arguments: list[str]) -> RestResponse:
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

    def _list_tables(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        return self._list(call, arguments, TABLE)

    def _list(self, call: RestRequest, arguments: list[str], kind: str) -> RestResponse:
        token, size = call.page()
        page = call.session.list_names(levels_of(arguments[0]), kind, token=token, page_size=size)
        identifiers = [{"namespace": found[:-1], "name": found[-1]} for found in page.names]
        return answer_json({"identifiers": identifiers, "next-page-token": page.next_token})

    def _create_table(self, call: RestRequest, arguments: list[str]) -> RestResponse:
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

    def _load_table(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        mode = call.query.get("snapshots", "all")
        if mode not in ("all", "refs"):
            raise InvalidError(f"Invalid snapshots {mode!r}: give all or refs")
        slot = TableIdentifier.of(levels_of(arguments[0]), arguments[1])
        if not wants_keys(call):
            return self._table(call, call.session.load(slot), mode=mode)
        stored, keys = call.session.load_with_keys(slot)
        return self._table(call, stored, mode=mode, slot=slot, keys=keys)

    def _credentials(self, call: RestRequest, arguments: list[str]) -> RestResponse:
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
        answered = "\0".join((stored.location, mode, call.side.name, call.side.s3_endpoint, client, key))
        etag = f'"{hashlib.sha256(answered.encode()).hexdigest()[:32]}"'
        wanted = [tag.strip().removeprefix("W/") for tag in call.headers.get("if-none-match", "").split(",")]
        if call.method == "GET" and etag in wanted:
            return RestResponse(status=NOT_MODIFIED, headers={"etag": etag})
        raw = stored.raw if mode == "all" else orjson.dumps(refs_only(stored.parsed))
        head = orjson.dumps(stored.location)
        more = b'"config":{}}' if slot is None else orjson.dumps(fields_of(keys, call.side, slot))[1:]
        body = b'{"metadata-location":' + head + b',"metadata":' + raw + b"," + more
        return RestResponse(body=body, headers={**JSON_HEADERS, **(NO_STORE if keys else {}), "etag": etag})

    def _table_exists(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        call.session.check_exists(TableIdentifier.of(levels_of(arguments[0]), arguments[1]))
        return NO_CONTENT

    def _commit_table(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        body = call.json()
        slot = _named_by(body, TableIdentifier.of(levels_of(arguments[0]), arguments[1]))
        stored = call.session.commit(
            slot, objects(body, "requirements"), objects(body, "updates"), repeat=call.repeat("commit")
        )
        return self._table(call, stored)

    def _drop_table(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        slot = TableIdentifier.of(levels_of(arguments[0]), arguments[1])
        purge = call.query.get("purgeRequested", "false").lower()
        if purge not in ("true", "false"):
            raise InvalidError(f"Invalid purgeRequested {purge[:64]!r}: give true or false")
        drop = call.session.purge if purge == "true" else call.session.drop
        # The key is bound to path and body; purgeRequested is in neither, so the operation names it.
        drop(slot, repeat=call.repeat(f"drop-table-{purge}"))
        return NO_CONTENT

    def _rename_table(self, call: RestRequest, _: list[str]) -> RestResponse:
        body = call.json()
        call.session.rename(
            _named(body, "source"), _named(body, "destination"), repeat=call.repeat("rename-table")
        )
        return NO_CONTENT

    def _commit_tables(self, call: RestRequest, _: list[str]) -> RestResponse:
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

    def _register_table(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        return self._register(call, arguments, TABLE)

    def _register(self, call: RestRequest, arguments: list[str], kind: str) -> RestResponse:
        body = call.json()
        slot = TableIdentifier.of(levels_of(arguments[0]), get(body, "name", str), kind)
        location = get(body, "metadata-location", str)
        overwrite = kind == TABLE and get(body, "overwrite", bool, False)
        repeat = call.repeat(f"register-{kind}")
        if kind == VIEW or not wants_keys(call):
            return self._table(
                call, call.session.register(slot, location, overwrite=overwrite, repeat=repeat)
            )
        stored, keys = call.session.register_with_keys(slot, location, overwrite=overwrite, repeat=repeat)
        return self._table(call, stored, slot=slot, keys=keys)

    def _metrics(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        slot = TableIdentifier.of(levels_of(arguments[0]), arguments[1])
        call.session.report(slot, call.json())
        return NO_CONTENT

    # -- views

    def _list_views(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        return self._list(call, arguments, VIEW)

    def _create_view(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        body = call.json()
        wanted = CreateViewRequest(
            schema=get(body, "schema", dict),
            version=get(body, "view-version", dict),
            properties=strings(body, "properties"),
            location=get(body, "location", str, None),
        )
        slot = TableIdentifier.of(levels_of(arguments[0]), get(body, "name", str), VIEW)
        return self._table(call, call.session.create_view(slot, wanted, repeat=call.repeat("create-view")))

    def _load_view(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        return self._table(call, call.session.load(_view(arguments)))

    def _view_exists(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        call.session.check_exists(_view(arguments))
        return NO_CONTENT

    def _replace_view(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        body = call.json()
        get(body, "updates", list)  # must be there, unlike a table's
        stored = call.session.commit_view(
            _named_by(body, _view(arguments)),
            objects(body, "requirements"),
            objects(body, "updates"),
            repeat=call.repeat("replace-view"),
        )
        return self._table(call, stored)

    def _drop_view(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        call.session.drop(_view(arguments), repeat=call.repeat("drop-view"))
        return NO_CONTENT

    def _rename_view(self, call: RestRequest, _: list[str]) -> RestResponse:
        body = call.json()
        call.session.rename(
            _named(body, "source", VIEW), _named(body, "destination", VIEW), repeat=call.repeat("rename-view")
        )
        return NO_CONTENT

    def _register_view(self, call: RestRequest, arguments: list[str]) -> RestResponse:
        return self._register(call, arguments, VIEW)

    def _not_supported(self, call: RestRequest, _: list[str]) -> RestResponse:
        raise NotSupportedError(
            f"{call.method} {unquote(call.path)[:200]!r} is not supported by this version of the "
            "catalog; /v1/config lists what is"
        )


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


Function = Callable[[Routes, RestRequest, list[str]], RestResponse]


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """An authenticated request with its route.

    Attributes:
        public: whether the route requires no token.
        waits: whether the handler may wait for the store; if not, it runs without a thread.
        function: the handler.
        arguments: the arguments in the path.
        asks: the operations that the handler may carry out; it checks the rights of at least one.
        principal: who sent it; None for a public route.
        place: the line that it has to wait in; None if it need not wait for others.
    """

    public: bool
    waits: bool
    function: Function
    arguments: list[str]
    asks: frozenset[Operation]
    principal: Principal | None
    place: Place | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    method: str
    template: str
    function: Function
    asks: frozenset[Operation]
    public: bool = False
    probe: bool = False
    waits: bool = True
    advertised: bool = True
    alone: bool = False
    several: bool = False

    def place(self, arguments: list[str]) -> Place | None:
        """Return the line of a request: that of its table or view, or that of changes of several objects."""
        if self.alone:
            return Place(what=".".join((*arguments[0].split(SEPARATOR), arguments[1])))
        return SEVERAL if self.several else None


# Which objects these change is in their bodies. Each may take long: some threads are left to others.
SEVERAL = Place(what="several objects at once", width=8)
_NS = "v1/namespaces/{namespace}"
_TABLE = f"{_NS}/tables/{{table}}"
_CREDENTIALS = f"{_TABLE}/credentials"
_VIEW = f"{_NS}/views/{{view}}"


def _apart(function: access_routes.Function) -> Function:
    """Return a handler that needs nothing of `Routes`."""
    return lambda _, call, arguments: function(call, arguments)


# Order matters only where a fixed segment and a placeholder of one method and length both match. A route
# names the operations that it carries out, whose rights are in `session.RIGHTS`.
_ROUTES = tuple(
    _Route(method=method, template=template, function=function, asks=frozenset(asks), **options)
    for method, template, function, asks, options in (
        ("GET", "health", Routes._health, (), {"public": True, "advertised": False}),
        ("POST", "health/deep", Routes._health_deep, (), {"probe": True, "advertised": False}),
        ("POST", "v1/oauth/tokens", Routes._token, (), {"public": True, "advertised": False}),
        ("GET", "v1/config", Routes._config, (), {"waits": False, "advertised": False}),
        ("GET", "v1/namespaces", Routes._list_namespaces, (Operation.LIST_NAMESPACES,), {}),
        ("POST", "v1/namespaces", Routes._create_namespace, (Operation.CREATE_NAMESPACE,), {}),
        ("GET", _NS, Routes._load_namespace, (Operation.LOAD_NAMESPACE,), {}),
        ("HEAD", _NS, Routes._namespace_exists, (Operation.LOAD_NAMESPACE,), {}),
        ("DELETE", _NS, Routes._drop_namespace, (Operation.DROP_NAMESPACE,), {}),
        ("POST", f"{_NS}/properties", Routes._update_namespace, (Operation.UPDATE_NAMESPACE,), {}),
        ("GET", f"{_NS}/tables", Routes._list_tables, (Operation.LIST,), {}),
        ("POST", f"{_NS}/tables", Routes._create_table, (Operation.CREATE, Operation.VEND), {}),
        ("GET", _TABLE, Routes._load_table, (Operation.LOAD, Operation.VEND), {}),
        ("GET", _CREDENTIALS, Routes._credentials, (Operation.VEND,), {}),
        ("HEAD", _TABLE, Routes._table_exists, (Operation.LOAD,), {}),
        ("POST", _TABLE, Routes._commit_table, (Operation.COMMIT, Operation.CREATE), {"alone": True}),
        ("DELETE", _TABLE, Routes._drop_table, (Operation.DROP,), {"alone": True}),
        ("POST", f"{_TABLE}/metrics", Routes._metrics, (Operation.REPORT,), {}),
        (
            "POST",
            f"{_NS}/register",
            Routes._register_table,
            (Operation.REGISTER, Operation.VEND),
            {"several": True},
        ),
        ("POST", "v1/tables/rename", Routes._rename_table, (Operation.RENAME,), {"several": True}),
        (
            "POST",
            "v1/transactions/commit",
            Routes._commit_tables,
            (Operation.COMMIT, Operation.CREATE),
            {"several": True},
        ),
        ("GET", f"{_NS}/views", Routes._list_views, (Operation.LIST,), {}),
        ("POST", f"{_NS}/views", Routes._create_view, (Operation.CREATE,), {}),
        ("GET", _VIEW, Routes._load_view, (Operation.LOAD,), {}),
        ("HEAD", _VIEW, Routes._view_exists, (Operation.LOAD,), {}),
        ("POST", _VIEW, Routes._replace_view, (Operation.COMMIT,), {"alone": True}),
        ("DELETE", _VIEW, Routes._drop_view, (Operation.DROP,), {"alone": True}),
        ("POST", f"{_NS}/register-view", Routes._register_view, (Operation.REGISTER,), {"several": True}),
        ("POST", "v1/views/rename", Routes._rename_view, (Operation.RENAME,), {"several": True}),
        # In the specification, not in this version.
        ("POST", f"{_TABLE}/plan", Routes._not_supported, (), {"advertised": False}),
        ("POST", f"{_TABLE}/tasks", Routes._not_supported, (), {"advertised": False}),
        # Tarn's own.
        *(
            (method, template, _apart(function), asks, {"advertised": False})
            for method, template, function, asks in access_routes.ROUTES
        ),
    )
)

ENDPOINTS = tuple(
    f"{route.method} /v1/{{prefix}}/{route.template.removeprefix('v1/')}"
    for route in _ROUTES
    if route.advertised
)
ENDPOINTS_WITHOUT_KEYS = tuple(one for one in ENDPOINTS if not one.endswith("/credentials"))

SERVED = tuple(
    (route.method, route.template, route.public)
    for route in _ROUTES
    if route.function is not Routes._not_supported
)
"""Method, path and whether it needs no token, of each route that this version carries out."""


def _fits(template: str, parts: list[str]) -> list[str] | None:
    """Return the arguments if the path matches the template, else None."""
    pieces = template.split("/")
    if len(pieces) != len(parts):
        return None
    arguments: list[str] = []
    for piece, part in zip(pieces, parts, strict=True):
        if piece.startswith("{"):
            arguments.append(part)
        elif piece != part:
            return None
    return arguments


def _match(method: str, parts: list[str]) -> tuple[_Route, list[str]]:
    """Return the route and the arguments in the path.

    Raises:
        MethodError: the path has routes, but none with this method.
        NoSuchRouteError: no route has this path.
    """
    allowed: list[str] = []
    for route in _ROUTES:
        arguments = _fits(route.template, parts)
        if arguments is None:
            continue
        if route.method == method:
            return route, arguments
        allowed.append(route.method)
    if allowed:
        raise MethodError(
            f"Method {method} is not allowed here; use one of {', '.join(sorted(set(allowed)))}"
        )
    raise NoSuchRouteError(
        f"No route for {method} /{'/'.join(parts)[:200]}; see /v1/config for what there is"
    )
