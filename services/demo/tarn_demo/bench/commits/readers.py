"""Loads of one table by ten clients, measured by a process of their own.

The process that writes has a large heap, the threads of several libraries, and full collections of a tenth of
a second: readers in it would measure them. This module imports the standard library and
Tarn's errors and figures only.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from tarn.core.errors import UnavailableError
from tarn_demo.bench.figures import at_share

CLIENTS = 10
CLIENT_PAUSE_S = 0.05
"""A paced client begins a load this long after the last one began."""
LEAD_S = 0.1
ROUNDING_S = 1e-6
END_S_MAX = 120.0

Clock = Callable[[], float]


def loads_apart(
    uri: str, path: str, headers: Mapping[str, str], *, seconds: float, paused_s: float, rounds: int
) -> dict[str, Any]:
    """What `loads` measures in a process of its own, in each of several rounds.

    Args:
        uri: address of the catalog.
        path: path of the table.
        headers: headers of each request.
        seconds: how long a round takes.
        paused_s: see `loads`.
        rounds: number of rounds.

    Returns:
        As `summed_up`.

    Raises:
        UnavailableError: an answer is not 200, or the process failed.
    """
    asked = {"uri": uri, "path": path, "headers": dict(headers), "seconds": seconds, "paused_s": paused_s}
    command = [sys.executable, "-B", "-m", "tarn_demo.bench.commits.readers"]
    found = []
    for _ in range(rounds):
        done = subprocess.run(  # noqa: S603 - this module, with the same Python
            command,
            input=json.dumps(asked),
            capture_output=True,
            check=False,
            text=True,
            timeout=seconds + 2 * END_S_MAX,
        )
        if done.returncode != 0:
            raise UnavailableError(
                done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no answer"
            )
        found.append(json.loads(done.stdout))
    return summed_up(found)


def summed_up(rounds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """The medians of all rounds; p99 and the lateness of the clients of each. Pure.

    Args:
        rounds: what `loads` returned.
    """

    def middle(name: str) -> float:
        return statistics.median(one[name] for one in rounds)

    return {
        "loads": int(sum(one["loads"] for one in rounds)),
        **{name: middle(name) for name in ("per_s", "p50_ms", "p99_ms")},
        "p99_rounds_ms": [one["p99_ms"] for one in rounds],
        "late_p99_rounds_ms": [one["late_p99_ms"] for one in rounds],
    }


def loads(
    uri: str,
    path: str,
    headers: Mapping[str, str],
    *,
    seconds: float,
    paused_s: float,
    clock: Clock = time.perf_counter,
) -> dict[str, Any]:
    """Latency of loads of one table by ten clients, each with one connection that is open before.

    Paced clients begin evenly spread over one pause, and go on so: ten that begin at one moment would
    measure the line that they make.

    Args:
        uri: address of the catalog.
        path: path of the table.
        headers: headers of each request.
        seconds: how long.
        paused_s: a client begins a load no sooner than this after it began the last one.
        clock: monotonic time in seconds.

    Returns:
        Number of loads, loads per second, p50 and p99 of the time from sending to the last byte, and p99 of
        how much later than planned the clients began, in milliseconds: what the machine kept from them.

    Raises:
        UnavailableError: an answer is not 200.
    """
    times: list[list[float]] = [[] for _ in range(CLIENTS)]
    late: list[list[float]] = [[] for _ in range(CLIENTS)]
    failed: list[str] = []
    first = clock() + LEAD_S
    until = first + seconds

    def ask(number: int) -> None:
        parts = urlsplit(uri)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
        due = first + paused_s * number / CLIENTS
        try:
            connection.connect()
            while until - due > ROUNDING_S:
                time.sleep(max(0.0, due - clock()))
                began = clock()
                late[number].append((began - due) * 1_000)
                connection.request("GET", path, headers=dict(headers))
                answer = connection.getresponse()
                answer.read()
                if answer.status != 200:
                    failed.append(f"GET {path} answered {answer.status}")
                    return
                ended = clock()
                times[number].append((ended - began) * 1_000)
                due = max(due + paused_s, ended)
        except (OSError, http.client.HTTPException) as e:
            failed.append(reason(e))
        finally:
            connection.close()

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=seconds + END_S_MAX)
    every = sorted(ms for mine in times for ms in mine)
    if failed or not every:
        raise UnavailableError(f"loads of {uri}{path} failed: {failed[0] if failed else 'no answer'}")
    return {
        "loads": len(every),
        "per_s": round(len(every) / seconds, 1),
        "p50_ms": round(at_share(every, 0.5), 3),
        "p99_ms": round(at_share(every, 0.99), 3),
        "late_p99_ms": round(at_share(sorted(ms for mine in late for ms in mine), 0.99), 3),
    }


def reason(error: Exception) -> str:
    """An exception as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main() -> int:
    """Measure as the JSON object on stdin asks; the result is one line of JSON."""
    asked = json.loads(sys.stdin.read())
    try:
        print(json.dumps(loads(asked.pop("uri"), asked.pop("path"), asked.pop("headers"), **asked)))  # noqa: T201
    except UnavailableError as error:
        print(error.message, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
