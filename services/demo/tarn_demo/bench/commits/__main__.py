"""`python -m tarn_demo.bench.commits FILE`: measure as the JSON file says; the result is one line of JSON.

The file has `places` (see `Places`), `missing` (contender -> why it cannot be measured), and the sizes:
`depths`, `live`, `commits`, `rounds`, `cell_s_max`, `writers`, `writer_s`, `load_s`. Progress goes to stderr.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import requests

from tarn.adapters.logging import to_stderr
from tarn.core.errors import DataError, UnavailableError
from tarn.core.exit_codes import INVALID
from tarn_demo.bench.commits import measure, pyiceberg_peer, readers
from tarn_demo.bench.commits.delta import DeltaPeer
from tarn_demo.bench.commits.ours import Ours, OursOnLive, parts_of
from tarn_demo.bench.commits.places import NAMESPACE, Contender, Named, Places
from tarn_demo.bench.lines import printed, say

PARTS_TABLE = "parts"
LIVE = "pyiceberg, Tarn's catalog, all history live"


def contenders(places: Places, missing: dict[str, str]) -> list[Contender]:
    """Everybody that can be assembled; the others go into `missing`, with the reason."""
    on_tarn = pyiceberg_peer.on_tarn(places)
    made: list[Contender] = [Ours(places, on_tarn), Named("py", on_tarn)]
    others: dict[str, Callable[[], Contender]] = {
        "pyiceberg, SQLite": lambda: pyiceberg_peer.on_sqlite(places),
        "pyiceberg, reference server": lambda: pyiceberg_peer.on_reference(places),
        "pyiceberg, Nessie": lambda: pyiceberg_peer.on_nessie(places),
        "deltalake": lambda: DeltaPeer(places),
    }
    for name, make in others.items():
        if name in missing:
            continue
        try:
            made.append(make())
        except Exception as e:  # noqa: BLE001 - whatever keeps a peer from being measured is its reason
            missing[name] = readers.reason(e)
    return made


def run(asked: dict[str, Any]) -> dict[str, Any]:
    """Everything, as the file asks.

    Raises:
        TarnError: Tarn's own catalog does not answer, or rows were lost.
    """
    places, missing = Places.of(asked["places"]), dict(asked["missing"])
    everybody = contenders(places, missing)
    for name, why in missing.items():
        say(f"not measured: {name}: {why}")
    result: dict[str, Any] = {"commits": asked["commits"], "missing": missing, "left_out": []}
    result["depths"] = by_depths(everybody, places, asked, result["left_out"])
    if max(asked["depths"]) > 0:
        ours = next(one for one in everybody if one.name == Ours.name)
        sizes = {name: asked[name] for name in ("commits", "rounds")}
        result["aging"] = measure.aging(ours, max(asked["depths"]), **sizes)
        say(f"a new table and that of {result['aging']['depth']:,} commits are timed in turns")
    result["parts"] = parts_of(places, PARTS_TABLE, asked["commits"])
    say(f"parts of {asked['commits']} commits are timed")
    result["contention"] = contention(everybody, asked, result["left_out"])
    result["loads"] = load_times(places, asked)
    return result


def by_depths(
    everybody: Sequence[Contender], places: Places, asked: dict[str, Any], left_out: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Single commits at every depth; at the depths of `live` also by us on a history that is kept whole."""
    found = []
    theirs, layer = (
        pyiceberg_peer.on_tarn(places, name=LIVE, live=True, merged=one) for one in (False, True)
    )
    live: list[Contender] = [Named("live", OursOnLive(places, layer)), Named("live_py", theirs)]
    for depth in asked["depths"]:
        say(f"after {depth:,} commits")
        group = [*everybody, *(live if depth in asked["live"] else ())]
        results, failed = measure.by_depth(
            group,
            depth,
            commits=asked["commits"],
            rounds=asked["rounds"],
            cell_s_max=asked["cell_s_max"],
            say=say,
        )
        found += results
        left_out += [{"contender": name, "depth": depth, "why": why} for name, why in failed.items()]
    return found


def contention(
    everybody: Sequence[Contender], asked: dict[str, Any], left_out: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Many writers of one table, for every number of writers and every contender."""
    found = []
    for writers in asked["writers"]:
        say(f"{writers} writers")
        for contender in everybody:
            try:
                one = measure.contend(contender, f"writers_{writers}", writers, seconds=asked["writer_s"])
            except DataError:
                raise
            except Exception as e:  # noqa: BLE001 - a peer's own errors: the others are still measured
                left_out.append({"contender": contender.name, "writers": writers, "why": readers.reason(e)})
                say(f"    {contender.name} is left out: {left_out[-1]['why']}")
                continue
            found.append(one)
            rate = one["acked"] / one["seconds"]
            lost = f"{one['conflicts']} conflicts, {one['refused']} refused"
            say(f"    {contender.name}: {rate:.1f} a second, {lost}")
    return found


def load_times(places: Places, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Loads by ten clients, of Tarn's catalog and of the reference server."""
    found = []
    token = _token(places)
    first, last = asked["depths"][min(1, len(asked["depths"]) - 1)], asked["depths"][-1]
    mine = ("tarn", places.catalog, {"Authorization": f"Bearer {token}"})
    plan = [(*mine, first)] + ([(*mine, last)] if last != first else [])
    if places.reference:
        plan.append(("reference server", places.reference, {}, first))
    for name, uri, headers, depth in plan:
        path = f"/v1/namespaces/{NAMESPACE}/tables/depth_{depth}"
        paced, flat_out = (
            readers.loads_apart(
                uri, path, headers, seconds=asked["load_s"], paused_s=paused_s, rounds=asked["rounds"]
            )
            for paused_s in (readers.CLIENT_PAUSE_S, 0.0)
        )
        found.append({"contender": name, "depth": depth, "paced": paced, "flat_out": flat_out})
        say(f"loads of {name} after {depth:,} commits: p99 {paced['p99_ms']:.1f} ms")
    return found


def _token(places: Places) -> str:
    client_id, _, client_secret = places.credential.partition(":")
    form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": client_secret}
    answer = requests.post(f"{places.catalog}/v1/oauth/tokens", data=form, timeout=10)
    if answer.status_code != 200:
        raise UnavailableError(f"no token from {places.catalog}: status {answer.status_code}")
    return str(answer.json()["access_token"])


def main(arguments: Sequence[str]) -> int:
    """Measure, print the result, and return the exit code."""
    if len(arguments) != 1:
        say("usage: python -m tarn_demo.bench.commits FILE; scripts/bench commit makes the file")
        return INVALID
    to_stderr()
    return printed(lambda: [run(json.loads(Path(arguments[0]).read_text()))])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
