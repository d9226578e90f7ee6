"""HTTP answers in JSON, errors in one shape. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An HTTP response.

    Attributes:
        status: HTTP status.
        body: the body.
        headers: the headers, by lower-case name.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def nobody_asks() -> None:
    """What is called once an answer is read, by default."""


class Answered(Protocol):
    """Sends the answer to a request."""

    def __call__(self, answer: Answer, read: Callable[[], None] = nobody_asks) -> None:
        """Send it.

        Args:
            answer: the answer.
            read: called once its client has read nearly all of it, or is gone.
        """


def json_answer(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    """A JSON response.

    Args:
        value: what to serialise.
        status: HTTP status.
        headers: further headers, by lower-case name.
    """
    return Answer(
        status=status,
        body=orjson.dumps(value),
        headers={"content-type": "application/json", **(headers or {})},
    )


def refusal(
    status: int, kind: str, message: str, *, headers: Mapping[str, str] | None = None, **more: object
) -> Answer:
    """The response for a request that was not carried out.

    Args:
        status: HTTP status, repeated in the body.
        kind: name of the error.
        message: what, the value, and what to do.
        headers: further headers.
        **more: further fields of the error.
    """
    return json_answer(
        {"error": {"type": kind, "code": status, "message": message, **more}}, status=status, headers=headers
    )
