"""Temporary keys to the object store, as its security token service (STS) issues them; a small interface.

`tarn.adapters.sts` implements it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tarn.core.errors import UnavailableError

POLICY_CHARS_MAX = 2048
"""What S3's STS accepts as an inline policy, in characters."""
DURATION_S_MIN = 900
"""The shortest time that S3's STS issues keys for, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemporaryKeys:
    """Keys to the store that end by themselves.

    Attributes:
        access_key_id: access key id; not a secret.
        secret_access_key: secret access key.
        session_token: to be sent with each request.
        expires_ms: when they end, by the store's clock, in milliseconds since the epoch.
    """

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_ms: int


class KeysRefusedError(UnavailableError):
    """The token service answers, and issues no keys for this request; for others it may.

    What is asked for is the server's own choice, so it is not a mistake of the client.
    """


class TokenService(Protocol):
    """Issues temporary keys."""

    def assume(self, policy: str, *, duration_s: int) -> TemporaryKeys:
        """Return keys that may do what both the policy and the rights of the service's own user allow.

        Args:
            policy: an S3 policy as JSON, at most `POLICY_CHARS_MAX` characters.
            duration_s: how long they are valid, at least `DURATION_S_MIN`.

        Raises:
            InvalidError: the policy is too long.
            KeysRefusedError: the store refuses policy or duration.
            UnavailableError: the store does not answer, or does not know the service's own user.
        """
