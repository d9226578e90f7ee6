"""Object store administration on MinIO: users, policies and trials. Vendor errors stop here."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

import urllib3
from minio import Minio, MinioAdmin
from minio.credentials.providers import StaticProvider
from minio.error import InvalidResponseError, MinioAdminException, S3Error, ServerError

from tarn.bootstrap.access import Trial
from tarn.core.credentials import StoreUser
from tarn.core.errors import InvalidSettingError, TarnError, UnauthenticatedError, UnavailableError
from tarn.core.services import Action

CONNECT_TIMEOUT_S = 3.0
READ_TIMEOUT_S = 15.0
LIST_KEYS_MAX = 1
ABSENT_KEY = "warehouse/no-such-object"

_REFUSED = frozenset({"AccessDenied", "AllAccessDisabled"})
_ABSENT = frozenset({"NoSuchKey"})
_WRONG_SECRET = frozenset({"SignatureDoesNotMatch", "InvalidAccessKeyId", "XMinioInvalidAccessKey"})
_NOT_YET = frozenset(
    {
        "XMinioServerNotInitialized",
        "XMinioIAMNotInitialized",
        "ServiceUnavailable",
        "SlowDown",
        "InternalError",
    }
)

T = TypeVar("T")


class MinioStore:
    """MinIO as its root user, plus trials as other users.

    Args:
        endpoint: `http://host:port` or `https://…`.
        region: region of the store.
        bucket: the only bucket.
        root: credentials of the root user.
    """

    def __init__(self, *, endpoint: str, region: str, bucket: str, root: StoreUser) -> None:
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise InvalidSettingError(
                f"TARN_S3_ENDPOINT is {endpoint!r}; set it to http://host:port", endpoint=endpoint
            )
        self._endpoint = endpoint
        self._host = parts.netloc
        self._secure = parts.scheme == "https"
        self._region = region
        self._bucket = bucket
        self._root = root
        self._http = urllib3.PoolManager(
            timeout=urllib3.Timeout(connect=CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S),
            retries=urllib3.Retry(total=0),
        )
        self._admin = MinioAdmin(
            endpoint=self._host,
            credentials=StaticProvider(root.access_key, root.secret_key),
            region=region,
            secure=self._secure,
            http_client=self._http,
        )
        self._objects = self._client(root)

    def ensure_bucket(self) -> bool:
        """Create the bucket if it is absent; returns whether it was created."""

        def work() -> bool:
            # A listing distinguishes a wrong secret from a missing privilege; the response to HEAD has no
            # body.
            if any(bucket.name == self._bucket for bucket in self._objects.list_buckets()):
                return False
            self._objects.make_bucket(self._bucket)
            return True

        return self._call("make the bucket", work)

    def put_policy(self, name: str, policy: Mapping[str, object]) -> None:
        """Create or replace a policy."""
        self._call(f"set the policy {name}", lambda: self._admin.policy_add(name, policy=dict(policy)))

    def users(self) -> dict[str, frozenset[str]]:
        """Return {access key: names of attached policies}."""

        def work() -> dict[str, frozenset[str]]:
            listed: dict[str, Any] = json.loads(self._admin.user_list())
            return {
                access_key: frozenset(name for name in (entry.get("policyName") or "").split(",") if name)
                for access_key, entry in listed.items()
            }

        return self._call("list users", work)

    def knows(self, user: StoreUser) -> bool:
        """Whether the user exists, is enabled and has this secret: the store accepts its signature."""

        def work() -> bool:
            try:
                # Not HEAD: its response has no body with the reason.
                _drain(self._client(user).get_object(self._bucket, ABSENT_KEY))
            except S3Error as error:
                if error.code in _WRONG_SECRET:
                    return False
                if error.code not in _REFUSED | _ABSENT:
                    raise
            return True

        return self._call(f"ask as {user.access_key}", work)

    def put_user(self, user: StoreUser) -> None:
        """Create a user, or set the secret of an existing one."""
        self._call(
            f"make the user {user.access_key}", lambda: self._admin.user_add(user.access_key, user.secret_key)
        )

    def remove_user(self, access_key: str) -> None:
        """Remove a user."""
        self._call(f"remove the user {access_key}", lambda: self._admin.user_remove(access_key))

    def attach(self, access_key: str, policy: str) -> None:
        """Attach a policy that the user does not have yet."""
        self._call(
            f"attach {policy} to {access_key}", lambda: self._admin.attach_policy([policy], user=access_key)
        )

    def detach(self, access_key: str, policy: str) -> None:
        """Detach a policy from a user."""
        self._call(
            f"detach {policy} from {access_key}", lambda: self._admin.detach_policy([policy], user=access_key)
        )

    def put_object(self, key: str) -> None:
        """Write a small object as root."""
        self._call(
            f"write {key}", lambda: self._objects.put_object(self._bucket, key, io.BytesIO(b"tarn"), 4)
        )

    def delete_object(self, key: str) -> None:
        """Delete an object as root; a missing one is not an error."""
        self._call(f"delete {key}", lambda: self._objects.remove_object(self._bucket, key))

    def attempt(self, trial: Trial, user: StoreUser | None) -> bool:
        """Run a trial with the user's own key (None: anonymously); returns whether the store allowed it.

        Raises:
            TarnError: neither allowed nor denied.
        """
        client = self._client(user)
        actions: Mapping[Action, Callable[[], object]] = {
            Action.READ: lambda: _drain(client.get_object(self._bucket, trial.key)),
            Action.WRITE: lambda: client.put_object(self._bucket, trial.key, io.BytesIO(b"tried"), 5),
            Action.LIST: lambda: next(iter(client.list_objects(self._bucket, prefix=trial.key)), None),
            Action.DELETE: lambda: client.remove_object(self._bucket, trial.key),
        }

        def work() -> bool:
            try:
                actions[trial.action]()
            except S3Error as error:
                if error.code in _REFUSED:
                    return False
                raise
            return True

        return self._call(str(trial), work)

    def may_administer(self, user: StoreUser) -> bool:
        """Whether a user may use the store's admin API."""
        admin = MinioAdmin(
            endpoint=self._host,
            credentials=StaticProvider(user.access_key, user.secret_key),
            region=self._region,
            secure=self._secure,
            http_client=urllib3.PoolManager(retries=urllib3.Retry(total=0), timeout=READ_TIMEOUT_S),
        )

        def work() -> bool:
            try:
                admin.policy_list()
            except MinioAdminException as error:
                if _admin_code(error)[1] in _REFUSED:
                    return False
                raise
            return True

        return self._call(f"{user.access_key} administer", work)

    def _client(self, user: StoreUser | None) -> Minio:
        return Minio(
            self._host,
            access_key=user.access_key if user else None,
            secret_key=user.secret_key if user else None,
            secure=self._secure,
            region=self._region,
            http_client=self._http,
        )

    def _call(self, what: str, work: Callable[[], T]) -> T:
        try:
            return work()
        except S3Error as error:
            raise self._translate(what, error.code or "", error.message or "") from error
        except MinioAdminException as error:
            message, code = _admin_code(error)
            raise self._translate(what, code, message) from error
        except (ServerError, InvalidResponseError) as error:
            raise self._translate(what, "ServiceUnavailable", str(error)) from error
        except urllib3.exceptions.HTTPError as error:
            raise UnavailableError(
                f"could not {what}: {self._endpoint} does not answer "
                f"({type(getattr(error, 'reason', None) or error).__name__}); "
                "is the service minio running and healthy? see docker compose logs minio",
                endpoint=self._endpoint,
            ) from error

    def _translate(self, what: str, code: str, message: str) -> TarnError:
        if code in _NOT_YET:
            return UnavailableError(
                f"could not {what}: the store at {self._endpoint} says {code} ({message}); it is still "
                "starting or out of resources: wait, then see docker compose logs minio",
                code=code,
            )
        if code in _WRONG_SECRET:
            return UnauthenticatedError(
                f"could not {what}: the store at {self._endpoint} refuses the root user "
                f"{self._root.access_key} ({code}). It was started with another root secret than the one in "
                "secrets-bootstrap: run docker compose up --force-recreate minio bootstrap",
                code=code,
            )
        return TarnError(
            f"could not {what}: the store at {self._endpoint} says {code} ({message}); "
            "see docker compose logs minio",
            code=code,
        )


def _drain(response: Any) -> None:
    try:
        response.read()
    finally:
        response.close()
        response.release_conn()


def _admin_code(error: MinioAdminException) -> tuple[str, str]:
    """Return (message, code) of an admin API error, whose body is JSON or empty."""
    status, body = str(error.args[0]), ""
    _, _, body = status.partition("Body: ")
    try:
        value = json.loads(body)
        return str(value.get("Message", body)), str(value.get("Code", "")) or "unknown error"
    except (ValueError, AttributeError):
        return status[:300], "ServiceUnavailable" if "Status: 5" in status else "unknown error"
