"""Tarn's own routes, for principals, roles and grants; no Iceberg client asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tarn.core.errors import InvalidError
from tarn_catalog.operations.access import service
from tarn_catalog.operations.identifiers import TableIdentifier
from tarn_catalog.operations.rights import Operation, What
from tarn_catalog.rest.request import RestRequest, get, levels_of
from tarn_catalog.rest.response import NO_CONTENT, RestResponse, answer_json
from tarn_catalog.state.access import ADMIN, KINDS, NAMESPACE, WAREHOUSE, Grant, Privilege

Function = Callable[[RestRequest, list[str]], RestResponse]

PREFIX = "tarn/v1"
NO_STORE = {"cache-control": "no-store"}


def _whoami(call: RestRequest, _: list[str]) -> RestResponse:
    grants = call.session.whoami()
    caller = call.session.caller
    return answer_json(
        {
            "principal": caller.name,
            "client-id": caller.client_id,
            "roles": sorted({ADMIN} if caller.admin else caller.roles),
            "grants": [_grant_json(grant) for grant in grants],
        }
    )


def _list_principals(call: RestRequest, _: list[str]) -> RestResponse:
    state = call.session.list_principals()
    principals = [
        {"name": name, "client-id": client_id, "built-in": True, "admin": service(name, client_id).admin}
        for client_id, name in sorted(call.session.services.items(), key=lambda one: one[1])
    ]
    principals += [
        {
            "name": one.name,
            "client-id": one.client_id,
            "built-in": False,
            "created-ms": one.at_ms,
            "created-by": one.by,
        }
        for one in sorted(state.principals, key=lambda one: one.name)
    ]
    return answer_json({"principals": principals})


def _create_principal(call: RestRequest, _: list[str]) -> RestResponse:
    made = call.session.create_principal(get(call.json(), "name", str))
    return answer_json(
        {"name": made.name, "client-id": made.client_id, "client-secret": made.secret}, headers=NO_STORE
    )


def _rotate_secret(call: RestRequest, arguments: list[str]) -> RestResponse:
    grace_s = get(call.json(), "grace-s", int, 0)
    if isinstance(grace_s, bool):
        raise InvalidError("Cannot parse the request body: grace-s is missing or no int")
    made = call.session.rotate_secret(arguments[0], grace_s=grace_s)
    return answer_json(
        {
            "name": made.name,
            "client-id": made.client_id,
            "client-secret": made.secret,
            "former-ends-ms": made.former_ends_ms,
        },
        headers=NO_STORE,
    )


def _drop_principal(call: RestRequest, arguments: list[str]) -> RestResponse:
    call.session.drop_principal(arguments[0])
    return NO_CONTENT


def _list_roles(call: RestRequest, _: list[str]) -> RestResponse:
    state = call.session.list_principals()
    roles: Mapping[str, tuple[str, ...]] = {ADMIN: (), **state.roles}
    return answer_json(
        {"roles": [{"name": role, "members": sorted(members)} for role, members in sorted(roles.items())]}
    )


def _create_role(call: RestRequest, _: list[str]) -> RestResponse:
    name = get(call.json(), "name", str)
    call.session.create_role(name)
    return answer_json({"name": name, "members": []})


def _drop_role(call: RestRequest, arguments: list[str]) -> RestResponse:
    call.session.drop_role(arguments[0])
    return NO_CONTENT


def _add_member(call: RestRequest, arguments: list[str]) -> RestResponse:
    call.session.set_member(arguments[0], arguments[1], there=True)
    return NO_CONTENT


def _remove_member(call: RestRequest, arguments: list[str]) -> RestResponse:
    call.session.set_member(arguments[0], arguments[1], there=False)
    return NO_CONTENT


def _grant(call: RestRequest, _: list[str]) -> RestResponse:
    return _changed(call, call.session.grant)


def _revoke(call: RestRequest, _: list[str]) -> RestResponse:
    return _changed(call, call.session.revoke)


def _changed(
    call: RestRequest, change: Callable[[What, str, frozenset[Privilege]], frozenset[Privilege]]
) -> RestResponse:
    body = call.json()
    on = _what(get(body, "on", dict))
    to = get(body, "to", str)
    after = change(on, to, _privileges(get(body, "privileges", list)))
    return answer_json({"on": body["on"], "to": to, "privileges": sorted(after)})


def _list_grants(call: RestRequest, _: list[str]) -> RestResponse:
    kind = call.query.get("kind")
    if kind is None:
        return answer_json({"grants": [_grant_json(grant) for grant in call.session.list_grants()]})
    named: dict[str, Any] = {"kind": kind}
    if "namespace" in call.query:
        named["namespace"] = list(levels_of(call.query["namespace"]))
    if "name" in call.query:
        named["name"] = call.query["name"]
    on = _what(named)
    grants, owner = call.session.grants_on(on)
    return answer_json({"grants": [_grant_json(grant) for grant in grants], "owner": owner})


def _change_owner(call: RestRequest, _: list[str]) -> RestResponse:
    body = call.json()
    on, to = _what(get(body, "on", dict)), get(body, "to", str)
    call.session.change_owner(on, to)
    return answer_json({"on": body["on"], "owner": to})


def _grant_json(grant: Grant) -> dict[str, Any]:
    on = grant.on
    named: dict[str, Any] = {"kind": on.kind}
    if on.kind == NAMESPACE:
        named |= {"namespace": on.name, "uuid": on.uuid}
    elif on.kind != WAREHOUSE:
        named |= {"namespace": on.name[:-1], "name": on.name[-1], "uuid": on.uuid}
    return {"on": named, "to": grant.to, "privileges": sorted(grant.privileges)}


def _privileges(names: list[Any]) -> frozenset[Privilege]:
    """Return the privileges of a body.

    Raises:
        InvalidError: one is unknown, or there are none.
    """
    unknown = [name for name in names if name not in list(Privilege)]
    if unknown or not names:
        raise InvalidError(
            f"Invalid privileges {str(unknown or names)[:100]}: give a list of {', '.join(Privilege)}"
        )
    return frozenset(Privilege(name) for name in names)


def _what(named: Mapping[str, Any]) -> What:
    """Return what a grant is on: `{"kind": …, "namespace": […], "name": …}`.

    Raises:
        InvalidError: the kind is unknown, or a field is missing.
        InvalidNameError: a name is not allowed.
    """
    kind = get(named, "kind", str)
    if kind not in KINDS:
        raise InvalidError(f"Invalid kind {kind[:64]!r}: give {', '.join(KINDS)}")
    if kind == WAREHOUSE:
        return ()
    levels = get(named, "namespace", list)
    if not levels or not all(isinstance(level, str) and level for level in levels):
        raise InvalidError("Cannot parse the request: namespace is no list of names")
    if kind == NAMESPACE:
        return tuple(levels)
    return TableIdentifier.of(tuple(levels), get(named, "name", str), kind)


ROUTES: tuple[tuple[str, str, Function, tuple[Operation, ...]], ...] = (
    ("GET", f"{PREFIX}/whoami", _whoami, (Operation.WHOAMI,)),
    ("GET", f"{PREFIX}/principals", _list_principals, (Operation.LIST_PRINCIPALS,)),
    ("POST", f"{PREFIX}/principals", _create_principal, (Operation.CREATE_PRINCIPAL,)),
    ("DELETE", f"{PREFIX}/principals/{{principal}}", _drop_principal, (Operation.DROP_PRINCIPAL,)),
    ("POST", f"{PREFIX}/principals/{{principal}}/secret", _rotate_secret, (Operation.ROTATE_SECRET,)),
    ("GET", f"{PREFIX}/roles", _list_roles, (Operation.LIST_PRINCIPALS,)),
    ("POST", f"{PREFIX}/roles", _create_role, (Operation.CREATE_ROLE,)),
    ("DELETE", f"{PREFIX}/roles/{{role}}", _drop_role, (Operation.DROP_ROLE,)),
    ("PUT", f"{PREFIX}/roles/{{role}}/members/{{principal}}", _add_member, (Operation.CHANGE_ROLE,)),
    ("DELETE", f"{PREFIX}/roles/{{role}}/members/{{principal}}", _remove_member, (Operation.CHANGE_ROLE,)),
    ("GET", f"{PREFIX}/grants", _list_grants, (Operation.LIST_GRANTS,)),
    ("POST", f"{PREFIX}/grants", _grant, (Operation.GRANT,)),
    ("POST", f"{PREFIX}/grants/revoke", _revoke, (Operation.REVOKE,)),
    ("POST", f"{PREFIX}/owner", _change_owner, (Operation.CHANGE_OWNER,)),
)
"""Method, path, handler and the operations of each route, as `routes.Routes` serves them."""
