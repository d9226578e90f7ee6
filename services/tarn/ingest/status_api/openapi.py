"""The OpenAPI description of the status API, made from its routes and from the classes of its answers."""

from __future__ import annotations

from typing import Any

import orjson
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema

from tarn.ingest.status_api import models
from tarn.ingest.status_api.routes import NAME_CHARS_MAX, ROUTES, Parameter, Route

Json = dict[str, Any]

FAULT_HEADER = "X-Tarn-Fault-Token"

ERRORS = {
    400: ("BadRequest", "a parameter is unknown or has a value that is not allowed"),
    403: ("Forbidden", "faults are not made here, the token is wrong, or a page of another origin asks"),
    404: ("NotFound", "there is no such thing, or path"),
    405: ("MethodNotAllowed", "the path takes another method"),
    409: ("Conflict", "the ingestor does not run, or a fault is under way"),
    421: ("Misdirected", "the name in Host is not known"),
    503: ("Unavailable", "the catalog or the store does not answer, or too many ask about tables at once"),
}
"""Status to the error's name and what it means."""
OK = {"GET": 200, "POST": 202}
"""Status of an answer by method."""
ONLY_CHANGES = (403, 409)
"""Errors of requests that change something."""


class _Plain(GenerateJsonSchema):
    """Schemas without a title of each field, which only repeats its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """See pydantic: never."""
        return False


def _schemas() -> Json:
    wanted: list[type[BaseModel]] = [models.Error]
    wanted += [route.answer for route in ROUTES if route.answer is not None]
    mode: JsonSchemaMode = "serialization"
    _, found = models_json_schema(
        [(one, mode) for one in wanted],
        ref_template="#/components/schemas/{model}",
        schema_generator=_Plain,
    )
    schemas: Json = found["$defs"]
    return schemas


def _content(name: str) -> Json:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def _parameter(one: Parameter) -> Json:
    return {
        "name": one.name,
        "in": "query",
        "required": one.required,
        "description": one.description,
        "schema": dict(one.schema),
    }


def _operation(route: Route) -> Json:
    parameters = [_parameter(one) for one in route.parameters]
    if route.named:
        (name,) = [part.strip("{}") for part in route.path.split("/") if part.startswith("{")]
        parameters.append(
            {
                "name": name,
                "in": "path",
                "required": True,
                "description": f"name of the {route.named}",
                "schema": {"type": "string", "minLength": 1, "maxLength": NAME_CHARS_MAX},
            }
        )
    if route.method != "GET":
        parameters.append(
            {
                "name": FAULT_HEADER,
                "in": "header",
                "required": True,
                "description": "token of GET /v1/faults",
                "schema": {"type": "string"},
            }
        )
    content = {"application/json": {"schema": {"type": "object"}}}
    return {
        "operationId": route.operation,
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            str(OK[route.method]): {
                "description": route.summary,
                "content": content if route.answer is None else _content(route.answer.__name__),
            },
            **{
                str(status): {"description": text, "content": _content(models.Error.__name__)}
                for status, (_, text) in ERRORS.items()
                if route.method != "GET" or status not in ONLY_CHANGES
            },
        },
    }


DESCRIPTION: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "Tarn status",
        "version": "1",
        "description": "Ingestors, tables, commits, storage and services, as ingest knows them. Read only, "
        "but for faults by hand where they are allowed. "
        "Times are ISO 8601 in UTC; unknown is null, never 0; units are in the names or descriptions.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "paths": {route.path: {route.method.lower(): _operation(route)} for route in ROUTES},
    "components": {"schemas": _schemas()},
}
"""The description."""
DESCRIPTION_BYTES = orjson.dumps(DESCRIPTION)
