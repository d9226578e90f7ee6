"""Requests made by Schemathesis from an OpenAPI description, and what is wrong with their answers.

Every run has the same few requests per operation; `scripts/test nightly` has 20 times as many.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.failures import Failure, FailureGroup

from tests.support.plays import TIMES

Forgiven = Callable[[Exception, int], bool]


def wrong_with(
    case: Any,
    base_url: str,
    statuses: Counter[int],
    forgiven: Forgiven,
    *,
    headers: Mapping[str, str] | None = None,
    answer_s_max: float = 60.0,
) -> list[str]:
    """Send a request; what the description does not have in its answer.

    Args:
        case: the request.
        base_url: address of the server.
        statuses: where the answer's status is counted.
        forgiven: whether a failure at a status is right nonetheless, as JSON Schema cannot say it.
        headers: headers of every request.
        answer_s_max: how long the answer may take, in seconds.
    """
    more = {} if headers is None else {"headers": dict(headers)}
    answer = case.call(base_url=base_url, timeout=answer_s_max, **more)
    statuses[answer.status_code] += 1
    try:
        case.validate_response(answer, **more)
    except (Failure, FailureGroup) as group:
        return [
            f"{type(one).__name__}: {one} {case.as_curl_command()} {answer.text[:500]}"
            for one in getattr(group, "exceptions", [group])
            if not forgiven(one, answer.status_code)
        ]
    return []


def play(operation: Any, mode: GenerationMode, send: Callable[[Any], list[str]], *, examples: int) -> None:
    """Send the requests to one operation, and require that nothing is wrong with an answer.

    Args:
        operation: operation of the description.
        mode: whether requests fit the description or are wrong.
        send: sends one, and returns what is wrong with its answer.
        examples: number of requests of a usual run.

    Raises:
        AssertionError: something is, or nothing fits the description.
        Unsatisfiable: no request can be wrong.
    """
    problems: list[str] = []

    @seed(1)
    @settings(
        max_examples=examples * TIMES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        problems.extend(send(case))

    try:
        run()
    except Unsatisfiable:
        assert mode is GenerationMode.NEGATIVE, "nothing fits the description"
        assert not operation.body, "a body can always be wrong"
    assert not problems, "\n".join(problems[:3])
