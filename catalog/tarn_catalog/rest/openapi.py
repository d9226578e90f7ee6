"""The catalog's OpenAPI description: exactly the routes that are served, printed by `python -m` this module.

Requirements and updates are described by the types of `metadata.types`, paths and methods by the routes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import (
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import orjson

from tarn_catalog.metadata import types
from tarn_catalog.metadata.view_metadata import _UPDATES as VIEW_UPDATES
from tarn_catalog.operations.access import GRACE_S_MAX
from tarn_catalog.rest.access_routes import PREFIX
from tarn_catalog.rest.routes import SERVED
from tarn_catalog.rest.vended import VENDED_CREDENTIALS
from tarn_catalog.state.access import KINDS, NAMESPACE, WAREHOUSE, Privilege
from tarn_catalog.state.pointer import TABLE, VIEW

Json = dict[str, Any]

ERRORS = {
    "400": "the request is not valid",
    "401": "the token is missing or not valid",
    "403": "the principal may not",
    "404": "what is named does not exist",
    "409": "it exists already, or a requirement does not hold",
    "413": "the body is too large",
    "421": "the name in Host is not known",
    "422": "the request contradicts itself",
    "500": "whether the change happened is not known",
    "503": "try again later, nothing was changed",
}
"""What any route may answer instead."""
UUID7 = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"

STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}
BOOLEAN: Json = {"type": "boolean"}
STRINGS: Json = {"type": "object", "additionalProperties": STRING}
ANYTHING: Json = {"type": "object"}


def _list(of: Json, **more: Any) -> Json:
    return {"type": "array", "items": of, **more}


def _object(required: Mapping[str, Json], optional: Mapping[str, Json] | None = None) -> Json:
    return {
        "type": "object",
        "required": [*required],
        "properties": {**required, **{name: _or_null(one) for name, one in (optional or {}).items()}},
    }


def _or_null(schema: Json) -> Json:
    """Return the schema of an optional field, which may be null too."""
    return {"anyOf": [schema, {"type": "null"}]}


def _ref(name: str) -> Json:
    return {"$ref": f"#/components/schemas/{name}"}


def schema_of(kind: Any) -> Json:
    """Return the JSON schema of a type: a TypedDict, or what its fields may be.

    Raises:
        TypeError: the type has no JSON schema here.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (NotRequired, Required):
        return schema_of(arguments[0])
    if origin is Literal:
        return {"enum": [*arguments]}
    if origin in (Union, UnionType):
        return {"anyOf": [schema_of(one) for one in arguments]}
    if origin is list:
        return _list(schema_of(arguments[0]))
    if origin is dict or kind is dict:
        values = arguments[1] if arguments else Any
        return ANYTHING if values is Any else {"type": "object", "additionalProperties": schema_of(values)}
    if is_typeddict(kind):
        fields = {name: schema_of(one) for name, one in get_type_hints(kind, include_extras=True).items()}
        required = sorted(kind.__required_keys__)
        return {"type": "object", "required": required, "properties": fields}
    plain: dict[Any, Json] = {str: STRING, int: INTEGER, bool: BOOLEAN, NoneType: {"type": "null"}}
    if kind in plain:
        return plain[kind]
    if kind is Any:
        return {}
    raise TypeError(f"no JSON schema for {kind}")


LEVELS = _list({"type": "string", "minLength": 1}, minItems=1)
IDENTIFIER = _object({"namespace": LEVELS, "name": {"type": "string", "minLength": 1}})
OWNED: Json = {
    "oneOf": [
        _object({"kind": {"enum": [NAMESPACE]}, "namespace": LEVELS}),
        _object({"kind": {"enum": [TABLE, VIEW]}, "namespace": LEVELS, "name": STRING}),
    ]
}
GRANTED_ON: Json = {"oneOf": [_object({"kind": {"enum": [WAREHOUSE]}}), *OWNED["oneOf"]]}
PRIVILEGES = _list({"enum": [privilege.value for privilege in Privilege]}, minItems=1)
GRANT = _object(
    {
        "on": _object({"kind": STRING}, {"namespace": _list(STRING), "name": STRING, "uuid": STRING}),
        "to": STRING,
        "privileges": _list(STRING),
    }
)
ROLE = _object({"name": STRING, "members": _list(STRING)})
COMMIT = _object(
    {},
    {
        "identifier": _ref("Identifier"),
        "requirements": _list(_ref("TableRequirement")),
        "updates": _list(_ref("TableUpdate")),
    },
)
REGISTER = _object({"name": STRING, "metadata-location": STRING}, {"overwrite": BOOLEAN})
RENAME = _object({"source": _ref("Identifier"), "destination": _ref("Identifier")})

STORAGE_CREDENTIAL = _object({"prefix": STRING, "config": STRINGS})

COMPONENTS: dict[str, Json] = {
    "Error": _object({"error": _object({"message": STRING, "type": STRING, "code": INTEGER})}),
    "OAuthError": _object({"error": STRING}, {"error_description": STRING}),
    "Token": _object({"access_token": STRING, "token_type": STRING}, {"expires_in": INTEGER}),
    "Config": _object(
        {"defaults": STRINGS, "overrides": STRINGS, "endpoints": _list(STRING)},
        {"idempotency-key-lifetime": STRING},
    ),
    "Identifier": IDENTIFIER,
    "Namespace": _object({"namespace": LEVELS}, {"properties": STRINGS}),
    "Namespaces": _object({"namespaces": _list(LEVELS)}, {"next-page-token": STRING}),
    "Identifiers": _object({"identifiers": _list(_ref("Identifier"))}, {"next-page-token": STRING}),
    "PropertiesChanged": _object({name: _list(STRING) for name in ("updated", "removed", "missing")}),
    "Loaded": _object(
        {"metadata": ANYTHING},
        {"metadata-location": STRING, "config": STRINGS, "storage-credentials": _list(STORAGE_CREDENTIAL)},
    ),
    "TableRequirement": schema_of(types.TableRequirement),
    "TableUpdate": schema_of(types.TableUpdate),
    "ViewRequirement": _object({"type": {"enum": ["assert-view-uuid"]}, "uuid": STRING}),
    "ViewUpdate": _object({"action": {"enum": sorted(VIEW_UPDATES)}}),
    "Grant": GRANT,
    "Role": ROLE,
}

BODIES: Mapping[str, Json] = {
    "POST v1/namespaces": _object({"namespace": LEVELS}, {"properties": STRINGS}),
    "POST v1/namespaces/{namespace}/properties": _object({}, {"removals": _list(STRING), "updates": STRINGS}),
    "POST v1/namespaces/{namespace}/tables": _object(
        {"name": STRING, "schema": ANYTHING},
        {
            "partition-spec": ANYTHING,
            "write-order": ANYTHING,
            "properties": STRINGS,
            "location": STRING,
            "stage-create": BOOLEAN,
        },
    ),
    "POST v1/namespaces/{namespace}/tables/{table}": COMMIT,
    "POST v1/namespaces/{namespace}/tables/{table}/metrics": ANYTHING,
    "POST v1/namespaces/{namespace}/register": REGISTER,
    "POST v1/tables/rename": RENAME,
    "POST v1/transactions/commit": _object(
        {
            "table-changes": _list(
                _object(
                    {"identifier": _ref("Identifier")},
                    {"requirements": _list(_ref("TableRequirement")), "updates": _list(_ref("TableUpdate"))},
                ),
                minItems=1,
            )
        }
    ),
    "POST v1/namespaces/{namespace}/views": _object(
        {"name": STRING, "schema": ANYTHING, "view-version": ANYTHING},
        {"properties": STRINGS, "location": STRING},
    ),
    "POST v1/namespaces/{namespace}/views/{view}": _object(
        {"updates": _list(_ref("ViewUpdate"))},
        {"identifier": _ref("Identifier"), "requirements": _list(_ref("ViewRequirement"))},
    ),
    "POST v1/namespaces/{namespace}/register-view": REGISTER,
    "POST v1/views/rename": RENAME,
    f"POST {PREFIX}/principals": _object({"name": STRING}),
    f"POST {PREFIX}/principals/{{principal}}/secret": _object(
        {}, {"grace-s": {"type": "integer", "minimum": 0, "maximum": GRACE_S_MAX}}
    ),
    f"POST {PREFIX}/owner": _object({"on": OWNED, "to": STRING}),
    f"POST {PREFIX}/roles": _object({"name": STRING}),
    f"POST {PREFIX}/grants": _object({"on": GRANTED_ON, "to": STRING, "privileges": PRIVILEGES}),
    f"POST {PREFIX}/grants/revoke": _object({"on": GRANTED_ON, "to": STRING, "privileges": PRIVILEGES}),
}
"""Method and path of a route -> the schema of its body, which is JSON."""

UNKEYED = ("POST v1/namespaces/{namespace}/tables/{table}/metrics",)
"""Routes of the specification that take no Idempotency-Key: a report that is sent twice is kept twice."""

CONDITIONAL = ("GET v1/namespaces/{namespace}/tables/{table}", "GET v1/namespaces/{namespace}/views/{view}")
"""Routes that answer 304 to the entity tag of what they would answer."""

DELEGATING = (
    "POST v1/namespaces/{namespace}/tables",
    "GET v1/namespaces/{namespace}/tables/{table}",
    "POST v1/namespaces/{namespace}/register",
)
"""Routes that answer with vended credentials to who asks for them."""

NOT_EVERYWHERE = ("GET v1/namespaces/{namespace}/tables/{table}/credentials",)
"""Routes that answer 501 where the catalog was not set up for them."""

SECRET = (
    "POST v1/oauth/tokens",
    "GET v1/namespaces/{namespace}/tables/{table}/credentials",
    f"POST {PREFIX}/principals",
    f"POST {PREFIX}/principals/{{principal}}/secret",
    *DELEGATING,
)
"""Routes whose answer may have a secret: it says that it is not to be stored."""

PAGED = {"pageToken": STRING, "pageSize": {"type": "integer", "minimum": 1}}
QUERIES: Mapping[str, Mapping[str, Json]] = {
    "GET v1/config": {"warehouse": STRING},
    "GET v1/namespaces": {"parent": STRING, **PAGED},
    "GET v1/namespaces/{namespace}/tables": PAGED,
    "GET v1/namespaces/{namespace}/views": PAGED,
    "GET v1/namespaces/{namespace}/tables/{table}": {"snapshots": {"enum": ["all", "refs"]}},
    "DELETE v1/namespaces/{namespace}/tables/{table}": {"purgeRequested": BOOLEAN},
    f"GET {PREFIX}/grants": {"kind": {"enum": [*KINDS]}, "namespace": STRING, "name": STRING},
}
"""Method and path of a route -> its query parameters."""

ANSWERS: Mapping[str, Json] = {
    "GET health": _object({"status": STRING}),
    "POST health/deep": _object({"status": STRING}),
    "POST v1/oauth/tokens": _ref("Token"),
    "GET v1/config": _ref("Config"),
    "GET v1/namespaces": _ref("Namespaces"),
    "POST v1/namespaces": _ref("Namespace"),
    "GET v1/namespaces/{namespace}": _ref("Namespace"),
    "POST v1/namespaces/{namespace}/properties": _ref("PropertiesChanged"),
    "GET v1/namespaces/{namespace}/tables": _ref("Identifiers"),
    "GET v1/namespaces/{namespace}/views": _ref("Identifiers"),
    "POST v1/namespaces/{namespace}/tables": _ref("Loaded"),
    "GET v1/namespaces/{namespace}/tables/{table}": _ref("Loaded"),
    "GET v1/namespaces/{namespace}/tables/{table}/credentials": _object(
        {"storage-credentials": _list(STORAGE_CREDENTIAL)}
    ),
    "POST v1/namespaces/{namespace}/tables/{table}": _ref("Loaded"),
    "POST v1/namespaces/{namespace}/register": _ref("Loaded"),
    "POST v1/namespaces/{namespace}/views": _ref("Loaded"),
    "GET v1/namespaces/{namespace}/views/{view}": _ref("Loaded"),
    "POST v1/namespaces/{namespace}/views/{view}": _ref("Loaded"),
    "POST v1/namespaces/{namespace}/register-view": _ref("Loaded"),
    f"GET {PREFIX}/whoami": _object(
        {
            "principal": STRING,
            "client-id": STRING,
            "roles": _list(STRING),
            "grants": _list(_ref("Grant")),
        }
    ),
    f"GET {PREFIX}/principals": _object(
        {
            "principals": _list(
                _object(
                    {"name": STRING, "client-id": STRING, "built-in": BOOLEAN},
                    {"admin": BOOLEAN, "created-ms": INTEGER, "created-by": STRING},
                )
            )
        }
    ),
    f"POST {PREFIX}/principals": _object({"name": STRING, "client-id": STRING, "client-secret": STRING}),
    f"POST {PREFIX}/principals/{{principal}}/secret": _object(
        {
            "name": STRING,
            "client-id": STRING,
            "client-secret": STRING,
            "former-ends-ms": {"type": ["integer", "null"]},
        }
    ),
    f"POST {PREFIX}/owner": _object({"on": ANYTHING, "owner": STRING}),
    f"GET {PREFIX}/roles": _object({"roles": _list(_ref("Role"))}),
    f"POST {PREFIX}/roles": _ref("Role"),
    f"GET {PREFIX}/grants": _object({"grants": _list(_ref("Grant"))}, {"owner": STRING}),
    f"POST {PREFIX}/grants": _object({"on": ANYTHING, "to": STRING, "privileges": _list(STRING)}),
    f"POST {PREFIX}/grants/revoke": _object({"on": ANYTHING, "to": STRING, "privileges": _list(STRING)}),
}
"""Method and path of a route -> the schema of its answer; routes that are not here answer 204 without one."""

TOKEN_FORM = _object(
    {"grant_type": {"enum": ["client_credentials", "urn:ietf:params:oauth:grant-type:token-exchange"]}},
)
TOKEN_FORM["properties"] |= dict.fromkeys(
    ("client_id", "client_secret", "scope", "subject_token", "subject_token_type"), STRING
)


def _header(what: str) -> Json:
    return {"description": what, "schema": STRING}


def _answers(route: str, *, body: bool) -> Json:
    """Return the responses of a route, by status.

    Args:
        route: its method and path.
        body: whether errors have a body.
    """
    error = _ref("OAuthError") if route == "POST v1/oauth/tokens" else _ref("Error")
    answers: dict[str, Json] = {}
    for status, what in ERRORS.items():
        answers[status] = {"description": what}
        if body:
            answers[status]["content"] = {"application/json": {"schema": error}}
    answers["401"]["headers"] = {"WWW-Authenticate": _header("how to authenticate")}
    answers["503"]["headers"] = {"Retry-After": _header("seconds to wait")}
    etag = {"ETag": _header("entity tag of the metadata, and of the credentials if there are any")}
    done: Json = {"description": "done"}
    if route in ANSWERS:
        done["content"] = {"application/json": {"schema": ANSWERS[route]}}
        headers = etag if ANSWERS[route] == _ref("Loaded") else {}
        if route in SECRET:
            headers = {**headers, "Cache-Control": _header("no-store, if there are secrets in it")}
        if headers:
            done["headers"] = headers
    answers["200" if route in ANSWERS else "204"] = done
    if route in CONDITIONAL:
        answers["304"] = {"description": "the client has it", "headers": etag}
    if route in NOT_EVERYWHERE:
        answers["501"] = {**answers["400"], "description": "this catalog is not set up for it"}
    return dict(sorted(answers.items()))


def _operation(method: str, template: str, *, public: bool) -> Json:
    route = f"{method} {template}"
    parameters = [
        {"in": "path", "name": name, "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)}", template)
    ]
    for name, schema in QUERIES.get(route, {}).items():
        parameters.append({"in": "query", "name": name, "schema": schema})
    if method in ("POST", "DELETE") and template.startswith("v1/") and not public and route not in UNKEYED:
        key = {"type": "string", "format": "uuid", "pattern": UUID7}
        parameters.append({"in": "header", "name": "Idempotency-Key", "schema": key})
    if route in CONDITIONAL:
        parameters.append({"in": "header", "name": "If-None-Match", "schema": STRING})
    if route in DELEGATING:
        parameters.append(
            {
                "in": "header",
                "name": "X-Iceberg-Access-Delegation",
                "description": f"what the client takes, separated by commas; {VENDED_CREDENTIALS} is offered",
                "schema": STRING,
            }
        )
    operation: Json = {
        "operationId": re.sub(r"\W+", "_", route).strip("_").lower(),
        "parameters": parameters,
        "responses": _answers(route, body=method != "HEAD"),
        "security": [] if public else [{"token": []}],
    }
    if route in BODIES:
        body = {"application/json": {"schema": BODIES[route]}}
        operation["requestBody"] = {"required": True, "content": body}
    elif route == "POST v1/oauth/tokens":
        form = {"application/x-www-form-urlencoded": {"schema": TOKEN_FORM}}
        operation["requestBody"] = {"required": True, "content": form}
    return operation


def description() -> Json:
    """Return the OpenAPI 3.1 description."""
    paths: dict[str, Json] = {}
    for method, template, public in SERVED:
        paths.setdefault(f"/{template}", {})[method.lower()] = _operation(method, template, public=public)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Tarn's catalog", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": COMPONENTS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(description(), option=orjson.OPT_INDENT_2) + b"\n")
