"""Temporary keys from an S3 store's security token service (STS): AssumeRole, by plain HTTP.

MinIO serves it at the store's own address; the keys that sign the request are those of a store user, whose
rights the new keys have at most. Vendor errors stop here.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

from tarn.core.errors import InvalidError, UnavailableError
from tarn.core.temporary_keys import POLICY_CHARS_MAX, KeysRefusedError, TemporaryKeys

CONNECT_TIMEOUT_S = 2.0
ANSWER_TIMEOUT_S = 8.0
ANSWER_BYTES_MAX = 64 * 1024
VERSION = "2011-06-15"
CONTENT_TYPE = "application/x-www-form-urlencoded"
_WRONG_KEYS = frozenset(
    {"InvalidClientTokenId", "SignatureDoesNotMatch", "AccessDenied", "InvalidAccessKeyId", "STSAccessDenied"}
)
_WRONG_CLOCK = "RequestTimeTooSkewed"


class StoreTokenService:
    """A `TokenService` at an S3 store.

    Args:
        endpoint: `http://host:port` or `https://…`.
        region: region of the store.
        access_key_id: keys of the store user in whose name the keys are issued.
        secret_access_key: the same.
        now_s: wall clock, seconds since the epoch.
    """

    def __init__(
        self,
        *,
        endpoint: str,
        region: str,
        access_key_id: str,
        secret_access_key: str,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.endpoint = endpoint
        self._region = region
        self._access_key_id = access_key_id
        self._secret = secret_access_key
        self._now_s = now_s

    def __repr__(self) -> str:
        return f"StoreTokenService({self.endpoint})"

    def assume(self, policy: str, *, duration_s: int) -> TemporaryKeys:
        """See `TokenService.assume`."""
        if len(policy) > POLICY_CHARS_MAX:
            raise InvalidError(
                f"a policy of {len(policy)} characters is too long for temporary keys, at most "
                f"{POLICY_CHARS_MAX} are possible"
            )
        form = {
            "Action": "AssumeRole",
            "Version": VERSION,
            "DurationSeconds": str(duration_s),
            "Policy": policy,
        }
        status, answer = self._post(urlencode(form).encode())
        if status == 200:
            return self._keys(answer)
        raise self._refused(status, answer)

    def _post(self, body: bytes) -> tuple[int, bytes]:
        """Send one signed request; return status and body of the answer."""
        parts = urlsplit(self.endpoint)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.netloc, timeout=CONNECT_TIMEOUT_S)
        try:
            connection.connect()
            connection.sock.settimeout(ANSWER_TIMEOUT_S)
            connection.request("POST", "/", body=body, headers=self._signed(parts.netloc, body))
            answer = connection.getresponse()
            return answer.status, answer.read(ANSWER_BYTES_MAX)
        except (OSError, http.client.HTTPException) as e:
            raise UnavailableError(
                f"no temporary keys: the token service (STS) of the store at {self.endpoint} does not answer "
                f"({type(e).__name__}); wait for the store and try again",
                endpoint=self.endpoint,
            ) from e
        finally:
            connection.close()

    def _signed(self, host: str, body: bytes) -> dict[str, str]:
        """Return the headers of a request, signed with AWS Signature Version 4."""
        now = datetime.fromtimestamp(self._now_s(), UTC)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        digest = hashlib.sha256(body).hexdigest()
        headers = {
            "content-type": CONTENT_TYPE,
            "host": host,
            "x-amz-content-sha256": digest,
            "x-amz-date": stamp,
        }
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        canonical = f"POST\n/\n\n{lines}\n{names}\n{digest}"
        scope = f"{day}/{self._region}/sts/aws4_request"
        text = f"AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = f"AWS4{self._secret}".encode()
        for part in (day, self._region, "sts", "aws4_request"):
            key = hmac.digest(key, part.encode(), "sha256")
        signature = hmac.digest(key, text.encode(), "sha256").hex()
        credential = f"{self._access_key_id}/{scope}"
        authorization = (
            f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders={names}, Signature={signature}"
        )
        return {**headers, "authorization": authorization}

    def _keys(self, answer: bytes) -> TemporaryKeys:
        found = _texts(answer)
        try:
            expires = datetime.fromisoformat(found["Expiration"])
            return TemporaryKeys(
                access_key_id=found["AccessKeyId"],
                secret_access_key=found["SecretAccessKey"],
                session_token=found["SessionToken"],
                expires_ms=int(expires.timestamp() * 1000),
            )
        except (KeyError, ValueError) as e:
            raise UnavailableError(
                f"no temporary keys: the token service (STS) at {self.endpoint} gave an answer without "
                f"{e}; is it an S3 store with STS?",
                endpoint=self.endpoint,
            ) from e

    def _refused(self, status: int, answer: bytes) -> UnavailableError:
        found = _texts(answer)
        code = found.get("Code", f"HTTP {status}")
        said = f"the token service (STS) at {self.endpoint} says {code}: {found.get('Message', '')[:200]}"
        if code == _WRONG_CLOCK:
            return UnavailableError(f"no temporary keys: {said}; set the clocks of both machines", code=code)
        if code in _WRONG_KEYS or status in (401, 403):
            return UnavailableError(
                f"no temporary keys: {said}. It does not know the store user {self._access_key_id}: run "
                "scripts/up, which sets the store's users up",
                code=code,
            )
        if 400 <= status < 500 and status not in (404, 405, 408, 429):
            # The catalog chose policy and duration, not the client.
            return KeysRefusedError(
                f"no temporary keys: {said}. It refuses what the catalog asks for: use a store with MinIO's "
                "STS, or leave TARN_STS_ENDPOINT empty",
                code=code,
            )
        return UnavailableError(
            f"no temporary keys: {said}; wait for the store and try again. A store without STS vends no "
            "credentials: leave TARN_STS_ENDPOINT empty",
            code=code,
        )


def _texts(answer: bytes) -> dict[str, str]:
    """Return the text of each element of an XML answer by its local name; nothing of what is no XML."""
    try:
        root = ElementTree.fromstring(answer)  # noqa: S314 - an answer of the lake's own store
    except ElementTree.ParseError:
        return {}
    return {re.sub(r"^\{.*\}", "", element.tag): element.text or "" for element in root.iter()}
