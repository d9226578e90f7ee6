"""Asks the catalog whether the bearer of a token may write a table, with that token.

The question is a commit of nothing: the catalog checks it like any commit and changes nothing, so there is
one implementation of the checks, and the catalog's trail names who asked.
"""

from __future__ import annotations

from urllib.parse import quote

import orjson

from tarn.adapters.http_client import HttpClient, NoAnswerError, NotSentError
from tarn.core.errors import ForbiddenError, NoSuchTableError, UnauthenticatedError, UnavailableError
from tarn.core.table_catalog import TableName

READ_TIMEOUT_S = 20.0
LEVEL_SEPARATOR = "\x1f"
NOTHING = orjson.dumps({"requirements": [], "updates": []})


class CatalogRights:
    """Rights as the catalog's API answers. Thread-safe.

    Args:
        uri: base URL of the catalog.
    """

    def __init__(self, uri: str) -> None:
        self._http = HttpClient(uri, read_timeout_s=READ_TIMEOUT_S)
        self._uri = self._http.uri

    def writer(self, token: str, table: TableName) -> str:
        """The client id of the token's principal, which may write the table.

        Raises:
            UnauthenticatedError: the token is not valid.
            ForbiddenError: the principal may not write it.
            NoSuchTableError: there is no such table.
            UnavailableError: the catalog does not respond.
        """
        levels, name = (quote(x, safe="") for x in (LEVEL_SEPARATOR.join(table.namespace), table.name))
        self._ask("POST", f"/v1/namespaces/{levels}/tables/{name}", token, NOTHING, table)
        try:
            return str(orjson.loads(self._ask("GET", "/tarn/v1/whoami", token, None, table))["client-id"])
        except (orjson.JSONDecodeError, KeyError, TypeError) as e:
            raise UnavailableError(f"the catalog at {self._uri} does not say whose token it is: {e!r}") from e

    def _ask(self, method: str, path: str, token: str, body: bytes | None, table: TableName) -> bytes:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            answer = self._http.send(method, path, body=body, headers=headers)
        except (NotSentError, NoAnswerError) as e:
            raise UnavailableError(
                f"the catalog at {self._uri} does not say who may write {table}: {e}; wait"
            ) from e
        status, text = answer.status, answer.body
        if 200 <= status < 300:
            return text
        reason = _reason(text)
        if status in (401, 419):
            raise UnauthenticatedError(f"the catalog does not know the token: {reason}; get a new one")
        if status == 403:
            raise ForbiddenError(f"the principal may not write table {table}: {reason}", table=str(table))
        if status == 404:
            raise NoSuchTableError(f"table {table} does not exist: {reason}", table=str(table))
        raise UnavailableError(f"the catalog at {self._uri} answers {status} about {table}: {reason}; wait")


def _reason(answer: bytes) -> str:
    try:
        return str(orjson.loads(answer)["error"]["message"])[:300]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return answer[:100].decode(errors="replace")
