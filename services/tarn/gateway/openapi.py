"""The gateway's OpenAPI description: what it serves, with examples."""

from __future__ import annotations

from typing import Any

from tarn.core.write_keys import KEY_CHARS_MAX, WINDOW_S
from tarn.gateway.bodies import BODY_BYTES_MAX, DEPTH_MAX, ROWS_MAX

Json = dict[str, Any]

STRING: Json = {"type": "string"}
INTEGER: Json = {"type": "integer"}
BOOLEAN: Json = {"type": "boolean"}

ROW: Json = {"id": 1, "at": "2026-11-23T08:00:00Z"}
RECEIPT: Json = {
    "durability": "lake",
    "accepted": 1,
    "rejected": [{"row": 1, "reason": "id: required, but missing or null"}],
    "snapshot-id": 4_611_686_018_427_387_904,
    "repeated": False,
}

ERRORS: dict[int, tuple[str, str, str]] = {
    400: ("BadRequest", "the request is not valid", "the body is no JSON object and no array of objects"),
    401: ("Unauthenticated", "the token is missing, or not valid", "the request has no bearer token"),
    403: (
        "Forbidden",
        "the principal may not write the table",
        "the principal may not write table shop.orders",
    ),
    404: ("NotFound", "there is no such table or path", "table shop.orders does not exist"),
    405: ("MethodNotAllowed", "the path does not take this method", "'GET' is not taken here, POST is"),
    408: (
        "SlowBody",
        "the body did not come in time; nothing was written",
        "the body did not come within 30 s",
    ),
    409: (
        "OutOfSequence",
        "rows before these are missing, or part of them is in the table (OutOfSequence, with the row that is "
        "expected); or the table cannot take rows, as a property or what it states of producers and keys is "
        "unreadable (TableTakesNoRows)",
        "producer 'p' sends rows from 5 on, table shop.orders wants row 2 next",
    ),
    413: (
        "TooLarge",
        "the body is over a limit (TooLarge), or more than the owner's quota of a whole day (OverQuota)",
        f"the body has 20000 rows, at most {ROWS_MAX} are allowed",
    ),
    415: ("UnsupportedMediaType", "the format is not taken", "Content-Type 'text/csv' is not taken"),
    421: ("Misdirected", "the name in Host is not known", "the name in Host is not known"),
    429: (
        "Busy",
        "too much waits, the table's health holds writers back (Busy), or the owner's quota is used up "
        "(QuotaUsedUp); nothing was written, Retry-After says when to come again",
        "table shop.orders: 33554432 bytes wait for a commit",
    ),
    501: ("NotServed", "this gateway does not do that", "this gateway has no Kafka; send durability=lake"),
    503: ("Unavailable", "something does not respond; nothing was written", "the catalog does not respond"),
    504: (
        "OutcomeUnknown",
        "the rows may be there or still come: repeat it",
        "table shop.orders did not confirm",
    ),
}
"""Status to the error's name, what it means, and the beginning of a message."""


def _parameter(
    name: str, place: str, schema: Json, text: str, *, example: object, required: bool = False
) -> Json:
    return {
        "name": name,
        "in": place,
        "required": required,
        "description": text,
        "schema": schema,
        "example": example,
    }


def _error(status: int) -> Json:
    kind, text, message = ERRORS[status]
    more: Json = {"expected": 2} if status == 409 else {}
    shown = {"error": {"type": kind, "code": status, "message": message, **more}}
    found: Json = {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}, "example": shown}},
    }
    if status in (429, 503):
        found["headers"] = {"Retry-After": {"schema": INTEGER, "description": "seconds"}}
    return found


def _receipt(text: str, example: Json) -> Json:
    return {
        "description": text,
        "headers": {
            "Tarn-Pressure": {"schema": STRING, "description": "why this writer is delayed, if it is"}
        },
        "content": {
            "application/json": {"schema": {"$ref": "#/components/schemas/Receipt"}, "example": example}
        },
    }


LIMITS = f"At most {BODY_BYTES_MAX} bytes and {ROWS_MAX} rows, nested {DEPTH_MAX} deep."
_UNWRITTEN = {
    **RECEIPT,
    "accepted": 0,
    "rejected": [{"row": 0, "reason": "id: required, but missing or null"}],
}

DESCRIPTION: Json = {
    "openapi": "3.1.0",
    "info": {
        "title": "Tarn gateway",
        "version": "1",
        "description": "Small writes over HTTP: one snapshot for all that wait, each row once.",
        "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
    },
    "paths": {
        "/v1/tables/{table}/rows": {
            "post": {
                "operationId": "writeRows",
                "summary": "Write rows into a table",
                "description": "Answers once the rows can be read. A row that does not fit is named, others "
                "are written.",
                "security": [{"token": []}],
                "parameters": [
                    _parameter(
                        "table", "path", STRING, "namespace.table", example="shop.orders", required=True
                    ),
                    _parameter(
                        "durability",
                        "query",
                        {"enum": ["lake", "log"], "default": "lake"},
                        "when to answer: lake, once the rows can be read; log, once they are in the table's "
                        "topic of Kafka",
                        example="lake",
                    ),
                    _parameter(
                        "Tarn-Producer",
                        "header",
                        STRING,
                        "id of a producer that numbers its rows from 0 on, per table; with Tarn-Sequence",
                        example="till-7",
                    ),
                    _parameter(
                        "Tarn-Sequence",
                        "header",
                        {"type": "integer", "minimum": 0},
                        "number of the first row in the body",
                        example=0,
                    ),
                    _parameter(
                        "Idempotency-Key",
                        "header",
                        {"type": "string", "maxLength": KEY_CHARS_MAX},
                        f"a repeat with the same key and body within {WINDOW_S} s is answered as the first "
                        "time; not with Tarn-Producer",
                        example="4f1c2f0e-order-17",
                    ),
                ],
                "requestBody": {
                    "required": True,
                    "description": LIMITS,
                    "content": {
                        "application/json": {
                            "schema": {
                                "anyOf": [{"type": "object"}, {"type": "array", "items": {"type": "object"}}]
                            },
                            "examples": {
                                "one": {"value": ROW},
                                "several": {"value": [ROW, {**ROW, "id": 2}]},
                            },
                        },
                        "application/x-ndjson": {
                            "schema": STRING,
                            "example": '{"id": 1}\n{"id": 2}\n',
                        },
                        "application/vnd.apache.arrow.stream": {
                            "schema": {
                                "type": "string",
                                "contentMediaType": "application/vnd.apache.arrow.stream",
                            },
                        },
                    },
                },
                "responses": {
                    "200": _receipt("at least one row is in the table, or in its log", RECEIPT),
                    "422": {
                        "description": "no row was accepted; or the Idempotency-Key came with another body "
                        "before (KeyReused)",
                        "content": {
                            "application/json": {
                                "schema": {
                                    "anyOf": [
                                        {"$ref": "#/components/schemas/Receipt"},
                                        {"$ref": "#/components/schemas/Error"},
                                    ]
                                },
                                "example": _UNWRITTEN,
                            }
                        },
                    },
                    **{str(status): _error(status) for status in ERRORS},
                },
            }
        },
        "/health": {
            "get": {
                "operationId": "health",
                "summary": "Whether the gateway serves; /health?ready: whether store and catalog answer it",
                "responses": {
                    "200": {
                        "description": "it does",
                        "content": {
                            "application/json": {
                                "schema": {
                                    "type": "object",
                                    "required": ["status"],
                                    "properties": {"status": {"const": "ok"}},
                                },
                                "example": {"status": "ok"},
                            }
                        },
                    },
                    "421": _error(421),
                    "503": {
                        "description": "it cannot work; only to /health?ready and /health?deep",
                        "content": {
                            "application/json": {
                                "schema": {
                                    "type": "object",
                                    "required": ["status", "faults"],
                                    "properties": {
                                        "status": {"const": "unusable"},
                                        "faults": {"type": "array", "items": {"type": "string"}},
                                    },
                                },
                                "example": {"status": "unusable", "faults": ["store: does not respond"]},
                            }
                        },
                    },
                },
            }
        },
        "/openapi.json": {
            "get": {
                "operationId": "description",
                "summary": "This description",
                "responses": {
                    "200": {
                        "description": "an OpenAPI description",
                        "content": {"application/json": {"schema": {"type": "object"}}},
                    },
                    "421": _error(421),
                },
            }
        },
    },
    "components": {
        "securitySchemes": {
            "token": {
                "type": "http",
                "scheme": "bearer",
                "description": "a token of the catalog: POST /v1/oauth/tokens there",
            }
        },
        "schemas": {
            "Receipt": {
                "type": "object",
                "required": ["durability", "accepted", "rejected", "repeated"],
                "properties": {
                    "durability": {"enum": ["lake", "log"]},
                    "accepted": {
                        "type": ["integer", "null"],
                        "description": "number of rows in the table, or its log; null in the answer to a "
                        "repeat if it is not known any more",
                    },
                    "rejected": {
                        "type": ["array", "null"],
                        "description": "the rows that are not in the table; null where `accepted` is",
                        "items": {
                            "type": "object",
                            "required": ["row", "reason"],
                            "properties": {"row": {**INTEGER, "description": "from 0 on"}, "reason": STRING},
                        },
                    },
                    "snapshot-id": {
                        "type": ["integer", "null"],
                        "description": "a snapshot of the table that has the rows; 64 bits; with lake only",
                    },
                    "topic": {**STRING, "description": "the topic that has the rows; with log only"},
                    "offsets": {
                        "type": "array",
                        "description": "where the accepted rows are, in their order; with log only. Empty if "
                        "that of a repeat is not remembered",
                        "items": {
                            "type": "object",
                            "required": ["partition", "first", "last"],
                            "properties": {"partition": INTEGER, "first": INTEGER, "last": INTEGER},
                        },
                    },
                    "repeated": {**BOOLEAN, "description": "whether an earlier request brought them in"},
                },
            },
            "Error": {
                "type": "object",
                "required": ["error"],
                "properties": {
                    "error": {
                        "type": "object",
                        "required": ["type", "code", "message"],
                        "properties": {
                            "type": STRING,
                            "code": INTEGER,
                            "message": STRING,
                            "expected": {**INTEGER, "description": "the row that the table wants next"},
                        },
                    }
                },
            },
        },
    },
}
"""The description."""
