"""The routes of the Iceberg REST catalog: which handler, operations and line belong to a request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from urllib.parse import unquote_plus

import structlog

from tarn.core.errors import InvalidNameError, TarnError
from tarn_catalog.operations.access import service
from tarn_catalog.operations.catalog import Catalog
from tarn_catalog.operations.delegation import DelegatingSession
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.rights import Operation
from tarn_catalog.rest import access_routes
from tarn_catalog.rest.auth import Authenticator, Principal
from tarn_catalog.rest.handlers import Handlers
from tarn_catalog.rest.lines import Place
from tarn_catalog.rest.request import SEPARATOR, RestRequest, levels_of
from tarn_catalog.rest.response import MethodError, NoSuchRouteError, RestResponse, answer_error
from tarn_catalog.state.pointer import TABLE, VIEW

log = structlog.get_logger()

Function = Callable[[Handlers, RestRequest, list[str]], RestResponse]


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
        waits_for: what its sender needs the right to, to wait there: an operation, and the table or view, or
            None for the warehouse; None if the head of the request does not say that.
    """

    public: bool
    waits: bool
    function: Function
    arguments: list[str]
    asks: frozenset[Operation]
    principal: Principal | None
    place: Place | None = None
    waits_for: tuple[Operation, TableIdentifier | None] | None = None


def is_limited(principal: Principal) -> bool:
    """Return whether what a principal may do has to be looked for: it is neither the probe nor an admin."""
    return principal.stored or not (principal.probe or service(principal.name, principal.client_id).admin)


class Routes:
    """All routes over one catalog."""

    def __init__(self, catalog: Catalog, access: Authenticator) -> None:
        endpoints = ENDPOINTS if catalog.vending is not None else ENDPOINTS_WITHOUT_KEYS
        self._handlers = Handlers(catalog.health, access, endpoints)
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
            waits_for=route.waits_for(arguments),
        )

    def may_wait(self, admitted: Admitted) -> bool:
        """Return whether the sender of a request may take a place in its line. May wait for the store.

        Who may not change a table neither fills the line of those who may, nor learns that there is one: its
        request is answered by the handler at once.

        Raises:
            TarnError: that cannot be found out now.
        """
        principal, waits_for = admitted.principal, admitted.waits_for
        if principal is None or not is_limited(principal) or waits_for is None:
            return True
        session = self._open(self._access.caller(principal), services=self._access.services)
        return session.may_wait(*waits_for)

    def answer(self, call: RestRequest, admitted: Admitted) -> RestResponse:
        """Return the response to an admitted request.

        Raises:
            TarnError: the request failed; `response.answer_error` maps it.
        """
        principal = admitted.principal
        if principal is None or principal.probe:
            return admitted.function(self._handlers, call, admitted.arguments)
        session = self._open(self._access.caller(principal), services=self._access.services)
        answer = admitted.function(self._handlers, replace(call, opened=session), admitted.arguments)
        assert session.asked <= admitted.asks, call.path
        assert session.asked or not admitted.asks, call.path
        return answer

    def run(self, call: RestRequest, admitted: Admitted) -> RestResponse:
        """Return the response to an admitted request, and log it; errors of the catalog become responses."""
        started = time.monotonic()
        try:
            answer = self.answer(call, admitted)
        except TarnError as e:
            answer = answer_error(e)
            if answer.status >= 500:
                log.warning(
                    "request failed", method=call.method, path=call.path, status=answer.status, why=e.message
                )
        elapsed_ms = round((time.monotonic() - started) * 1000, 2)
        log.debug(
            "request",
            method=call.method,
            path=call.path,
            status=answer.status,
            ms=elapsed_ms,
            side=call.side.name,
        )
        return answer


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
    alone: str | None = None
    several: bool = False
    needed: Operation | None = None

    def place(self, arguments: list[str]) -> Place | None:
        """Return the line of a request: that of its table or view, or that of changes of several objects."""
        if self.alone is not None:
            return Place(what=".".join(map(_quoted, (*arguments[0].split(SEPARATOR), arguments[1]))))
        return SEVERAL if self.several else None

    def waits_for(self, arguments: list[str]) -> tuple[Operation, TableIdentifier | None] | None:
        """Return what the right to is needed to wait; see `Admitted`."""
        if self.needed is None:
            return None
        if self.alone is None:
            return self.needed, None
        return self.needed, TableIdentifier.of(levels_of(arguments[0]), arguments[1], self.alone)


def _quoted(level: str) -> str:
    """Return a part of a name, quoted as in SQL if it has a dot: two names never have one line."""
    return '"' + level.replace('"', '""') + '"' if "." in level or '"' in level else level


# Which objects these change is in their bodies. Each may take long: some threads are left to others.
SEVERAL = Place(what="several objects at once", width=8)
_NS = "v1/namespaces/{namespace}"
_TABLE = f"{_NS}/tables/{{table}}"
_CREDENTIALS = f"{_TABLE}/credentials"
_VIEW = f"{_NS}/views/{{view}}"


def _apart(function: access_routes.Function) -> Function:
    """Return a handler that needs nothing of `Handlers`."""
    return lambda _, call, arguments: function(call, arguments)


# Order matters only where a fixed segment and a placeholder of one method and length both match. A route
# names the operations that it carries out, whose rights are in `rights.RIGHTS`.
_ROWS: tuple[tuple[str, str, Function, tuple[Operation, ...], Mapping[str, Any]], ...] = (
    ("GET", "health", Handlers.health, (), {"public": True, "advertised": False}),
    ("POST", "health/deep", Handlers.health_deep, (), {"probe": True, "advertised": False}),
    ("POST", "v1/oauth/tokens", Handlers.token, (), {"public": True, "advertised": False}),
    ("GET", "v1/config", Handlers.config, (), {"waits": False, "advertised": False}),
    ("GET", "v1/namespaces", Handlers.list_namespaces, (Operation.LIST_NAMESPACES,), {}),
    ("POST", "v1/namespaces", Handlers.create_namespace, (Operation.CREATE_NAMESPACE,), {}),
    ("GET", _NS, Handlers.load_namespace, (Operation.LOAD_NAMESPACE,), {}),
    ("HEAD", _NS, Handlers.namespace_exists, (Operation.LOAD_NAMESPACE,), {}),
    ("DELETE", _NS, Handlers.drop_namespace, (Operation.DROP_NAMESPACE,), {}),
    ("POST", f"{_NS}/properties", Handlers.update_namespace, (Operation.UPDATE_NAMESPACE,), {}),
    ("GET", f"{_NS}/tables", Handlers.list_tables, (Operation.LIST,), {}),
    ("POST", f"{_NS}/tables", Handlers.create_table, (Operation.CREATE, Operation.VEND), {}),
    ("GET", _TABLE, Handlers.load_table, (Operation.LOAD, Operation.VEND), {}),
    ("GET", _CREDENTIALS, Handlers.credentials, (Operation.VEND,), {}),
    ("HEAD", _TABLE, Handlers.table_exists, (Operation.LOAD,), {}),
    (
        "POST",
        _TABLE,
        Handlers.commit_table,
        (Operation.COMMIT, Operation.CREATE),
        {"alone": TABLE, "needed": Operation.COMMIT},
    ),
    (
        "DELETE",
        _TABLE,
        Handlers.drop_table,
        (Operation.DROP,),
        {"alone": TABLE, "needed": Operation.DROP},
    ),
    ("POST", f"{_TABLE}/metrics", Handlers.metrics, (Operation.REPORT,), {}),
    (
        "POST",
        f"{_NS}/register",
        Handlers.register_table,
        (Operation.REGISTER, Operation.VEND),
        {"several": True, "needed": Operation.REGISTER},
    ),
    ("POST", "v1/tables/rename", Handlers.rename_table, (Operation.RENAME,), {"several": True}),
    (
        "POST",
        "v1/transactions/commit",
        Handlers.commit_tables,
        (Operation.COMMIT, Operation.CREATE),
        {"several": True},
    ),
    ("GET", f"{_NS}/views", Handlers.list_views, (Operation.LIST,), {}),
    ("POST", f"{_NS}/views", Handlers.create_view, (Operation.CREATE,), {}),
    ("GET", _VIEW, Handlers.load_view, (Operation.LOAD,), {}),
    ("HEAD", _VIEW, Handlers.view_exists, (Operation.LOAD,), {}),
    (
        "POST",
        _VIEW,
        Handlers.replace_view,
        (Operation.COMMIT,),
        {"alone": VIEW, "needed": Operation.COMMIT},
    ),
    ("DELETE", _VIEW, Handlers.drop_view, (Operation.DROP,), {"alone": VIEW, "needed": Operation.DROP}),
    (
        "POST",
        f"{_NS}/register-view",
        Handlers.register_view,
        (Operation.REGISTER,),
        {"several": True, "needed": Operation.REGISTER},
    ),
    ("POST", "v1/views/rename", Handlers.rename_view, (Operation.RENAME,), {"several": True}),
    # In the specification, not in this version.
    ("POST", f"{_TABLE}/plan", Handlers.not_supported, (), {"advertised": False}),
    ("POST", f"{_TABLE}/tasks", Handlers.not_supported, (), {"advertised": False}),
    # Tarn's own.
    *(
        (method, template, _apart(function), asks, {"advertised": False})
        for method, template, function, asks in access_routes.ROUTES
    ),
)
_ROUTES = tuple(
    _Route(method=method, template=template, function=function, asks=frozenset(asks), **options)
    for method, template, function, asks, options in _ROWS
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
    if route.function is not Handlers.not_supported
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
