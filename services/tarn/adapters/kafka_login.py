"""How our clients log in at Kafka, and why a broker does not let them in.

The client library tries a refused log-in again until its timeout and then says only that it could not; so a
connection of its own asks first: it takes a few milliseconds, and a refusal is told at once, in words.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tarn.core.errors import UnauthenticatedError
from tarn.probe.kafka import HASHES, Broker, RefusedError

ASK_TIMEOUT_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Who we are towards Kafka.

    Attributes:
        protocol: `SASL_PLAINTEXT`, `SASL_SSL`, or `PLAINTEXT` for a broker that asks nobody.
        mechanism: `SCRAM-SHA-512`, `SCRAM-SHA-256` or `PLAIN`.
        user, password: none with `PLAINTEXT`.
    """

    protocol: str = "SASL_PLAINTEXT"
    mechanism: str = "SCRAM-SHA-512"
    user: str = ""
    password: str = field(default="", repr=False)

    def options(self) -> dict[str, Any]:
        """The same for kafka-python's clients."""
        if not self.protocol.startswith("SASL_"):
            return {"security_protocol": self.protocol}
        return {
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


ANONYMOUS = Login(protocol="PLAINTEXT")


def require_login(bootstrap: str, options: Mapping[str, Any], *, timeout_s: float = ASK_TIMEOUT_S) -> None:
    """Returns if a broker lets us in, or if none can be asked: then the client finds out.

    Args:
        bootstrap: host:port of a broker, several joined by commas.
        options: of kafka-python's clients, as `Login.options` gives them.
        timeout_s: for each part of the answer of each broker.

    Raises:
        UnauthenticatedError: a broker answered, and refuses.
    """
    # The client warns of every log-in without TLS; docs/security.md says where ours stays.
    logging.getLogger("kafka.net.sasl").setLevel(logging.ERROR)
    mechanism = str(options.get("sasl_mechanism"))
    if options.get("security_protocol") != "SASL_PLAINTEXT" or mechanism not in HASHES:
        return
    user = str(options["sasl_plain_username"])
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        try:
            with Broker(host, int(port), timeout_s=timeout_s, client="tarn-login") as broker:
                broker.log_in(user, str(options["sasl_plain_password"]), mechanism=mechanism)
        except RefusedError as e:
            raise UnauthenticatedError(
                f"Kafka at {address} does not let user {user} in ({e}); when it starts the broker takes the "
                "passwords that init made: run scripts/up, then docker compose restart kafka; on the host, "
                'run eval "$(scripts/tarn env)" again',
                address=address,
                user=user,
            ) from e
        except (OSError, RuntimeError, ValueError, KeyError):
            continue
        return
