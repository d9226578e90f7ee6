"""Kafka client credentials and their settings, and a login check that reports why a broker rejects them.

The client library retries a rejected login until its timeout and then reports only that it failed. A separate
connection checks the login first: it takes a few milliseconds and reports a rejection at once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field

from tarn.adapters.service_settings import TarnSettings
from tarn.core.credentials import KAFKA_PASSWORD_FILE, KAFKA_USER_FILE
from tarn.core.errors import UnauthenticatedError
from tarn.probe.kafka import HASHES, Broker, RefusedError

ASK_TIMEOUT_S = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Kafka client credentials.

    Attributes:
        protocol: `SASL_PLAINTEXT`, `SASL_SSL`, or `PLAINTEXT` for a broker without authentication.
        mechanism: `SCRAM-SHA-512`, `SCRAM-SHA-256` or `PLAIN`.
        user: user name; empty with `PLAINTEXT`.
        password: password; empty with `PLAINTEXT`.
    """

    protocol: str = "SASL_PLAINTEXT"
    mechanism: str = "SCRAM-SHA-512"
    user: str = ""
    password: str = field(default="", repr=False)

    def options(self) -> dict[str, Any]:
        """The credentials as configuration of kafka-python's clients."""
        if not self.protocol.startswith("SASL_"):
            return {"security_protocol": self.protocol}
        return {
            "security_protocol": self.protocol,
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }


ANONYMOUS = Login(protocol="PLAINTEXT")
_BROKER = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):\d{1,5}"


class KafkaSettings(TarnSettings):
    """Settings of a service that uses Kafka."""

    kafka_bootstrap: Annotated[
        str,
        Field(pattern=rf"^{_BROKER}(,{_BROKER})*$", description="host:port, several separated by commas"),
    ] = "kafka:9092"
    kafka_security_protocol: Literal["SASL_PLAINTEXT", "SASL_SSL", "PLAINTEXT"] = "SASL_PLAINTEXT"
    kafka_sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"] = "SCRAM-SHA-512"

    def kafka_login(self) -> Login:
        """Kafka credentials of this service, read now; PLAINTEXT needs none and reads no files.

        Raises:
            InvalidSettingError: a secret file cannot be read or is empty.
        """
        if self.kafka_security_protocol == "PLAINTEXT":
            return ANONYMOUS
        return Login(
            protocol=self.kafka_security_protocol,
            mechanism=self.kafka_sasl_mechanism,
            user=self.secret(KAFKA_USER_FILE),
            password=self.secret(KAFKA_PASSWORD_FILE),
        )


def rejected(address: str, user: str, reason: str) -> UnauthenticatedError:
    """The error of a login that a broker rejects."""
    return UnauthenticatedError(
        f"Kafka at {address} does not let user {user} in ({reason}); when it starts the broker takes the "
        "passwords that init made: run scripts/up, then docker compose restart kafka; on the host, "
        'run eval "$(scripts/tarn env)" again',
        address=address,
        user=user,
    )


def require_login(bootstrap: str, options: Mapping[str, Any], *, timeout_s: float = ASK_TIMEOUT_S) -> None:
    """Require a successful login; pass if no broker can be reached, as the client then reports that itself.

    Args:
        bootstrap: host:port of a broker, several separated by commas.
        options: configuration of kafka-python's clients, as returned by `Login.options`.
        timeout_s: limit of each read from each broker, in seconds.

    Raises:
        UnauthenticatedError: a broker rejects the login.
    """
    # The client warns of every login without TLS; docs/security.md describes where this traffic stays.
    logging.getLogger("kafka.net.sasl").setLevel(logging.ERROR)
    mechanism = str(options.get("sasl_mechanism"))
    if options.get("security_protocol") != "SASL_PLAINTEXT" or mechanism not in HASHES:
        return
    user = str(options["sasl_plain_username"])
    for address in bootstrap.split(","):
        host, _, port = address.rpartition(":")
        try:
            with Broker(host.strip("[]"), int(port), timeout_s=timeout_s, client="tarn-login") as broker:
                broker.log_in(user, str(options["sasl_plain_password"]), mechanism=mechanism)
        except RefusedError as e:
            raise rejected(address, user, str(e)) from e
        except (OSError, RuntimeError, ValueError, KeyError):
            continue
        return
