"""HTTP responses, and the one mapping from errors to status codes of the REST specification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog

from tarn.core.errors import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    InvalidLocationError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NoSuchViewError,
    NotEmptyError,
    NotFoundError,
    OutcomeUnknownError,
    TarnError,
    UnauthenticatedError,
    UnavailableError,
)
from tarn_catalog.metadata.view_metadata import InvalidVersionError
from tarn_catalog.operations.namespaces import UnprocessableError
from tarn_catalog.operations.tables import UnreadableError
from tarn_catalog.rest.auth import OAuthError
from tarn_catalog.rest.bodies import TooLargeError
from tarn_catalog.state.context import KeyReusedError

log = structlog.get_logger()

JSON_HEADERS = {"content-type": "application/json"}
RETRY_AFTER_S = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RestResponse:
    """An HTTP response.

    Attributes:
        status: the HTTP status.
        body: the body.
        headers: the headers, with lower-case names.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


class NoSuchRouteError(NotFoundError):
    """There is no route with this path (HTTP 404)."""


class NotSupportedError(InvalidError):
    """The specification has this operation, this version does not (HTTP 501)."""


class MethodError(InvalidError):
    """The path does not support this method (HTTP 405)."""


class NoSuchWarehouseError(NotFoundError):
    """The requested warehouse does not exist (HTTP 404)."""


def answer_json(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> RestResponse:
    """Return a JSON response.

    Args:
        value: the value to serialise.
        status: the HTTP status.
        headers: additional headers, with lower-case names.
    """
    return RestResponse(status=status, body=orjson.dumps(value), headers={**JSON_HEADERS, **(headers or {})})


NO_CONTENT = RestResponse(status=204)
NOT_MODIFIED = 304

# Ordered: the first matching type applies.
_STATUS: tuple[tuple[type[TarnError], int, str], ...] = (
    (UnauthenticatedError, 401, "NotAuthorizedException"),
    (ForbiddenError, 403, "ForbiddenException"),
    (NoSuchTableError, 404, "NoSuchTableException"),
    (NoSuchViewError, 404, "NoSuchViewException"),
    (NoSuchNamespaceError, 404, "NoSuchNamespaceException"),
    (NoSuchWarehouseError, 404, "NoSuchWarehouseException"),
    (NotFoundError, 404, "NotFoundException"),
    (UnreadableError, 404, "NotFoundException"),
    (AlreadyExistsError, 409, "AlreadyExistsException"),
    (NotEmptyError, 409, "NamespaceNotEmptyException"),
    (ConflictError, 409, "CommitFailedException"),
    (OutcomeUnknownError, 500, "CommitStateUnknownException"),
    (UnavailableError, 503, "ServiceUnavailableException"),
    (KeyReusedError, 422, "UnprocessableEntityException"),
    (UnprocessableError, 422, "UnprocessableEntityException"),
    (MethodError, 405, "MethodNotAllowedException"),
    (NotSupportedError, 501, "UnsupportedOperationException"),
    (TooLargeError, 413, "RequestTooLargeException"),
    (InvalidVersionError, 400, "IllegalArgumentException"),
    (InvalidLocationError, 400, "BadRequestException"),
    (InvalidError, 400, "BadRequestException"),
)


def answer_error(error: TarnError) -> RestResponse:
    """Return the response for an error: `IcebergErrorResponse`, or the OAuth2 format for OAuthError."""
    if isinstance(error, OAuthError):
        body = {"error": error.error, "error_description": error.message}
        headers = {"www-authenticate": 'Basic realm="tarn"'} if error.status == 401 else {}
        return answer_json(body, status=error.status, headers=headers)
    status, kind = next(
        ((status, kind) for type_, status, kind in _STATUS if isinstance(error, type_)),
        (500, "InternalServerException"),
    )
    extra: dict[str, str] = {}
    if status == 401:
        extra["www-authenticate"] = 'Bearer realm="tarn"'
    elif status == 503:
        extra["retry-after"] = str(RETRY_AFTER_S)
    return error_body(status, kind, error.message, extra)


def error_body(
    status: int, kind: str, message: str, headers: Mapping[str, str] | None = None
) -> RestResponse:
    """Return an error response in the format of the REST specification (`IcebergErrorResponse`).

    Args:
        status: the HTTP status, repeated as `code`.
        kind: the error `type`, a Java exception name.
        message: the message.
        headers: additional headers.
    """
    return answer_json(
        {"error": {"message": message, "type": kind, "code": status}}, status=status, headers=headers
    )


def broken(method: str, path: str, error: Exception) -> RestResponse:
    """Log a fault of the code while it is handled, and return its response."""
    log.exception("request broke", method=method, path=path)
    return error_body(500, "InternalServerException", f"Internal error: {type(error).__name__}; see the log")
