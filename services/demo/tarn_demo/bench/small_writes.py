"""`python -m tarn_demo.bench.small_writes FILE`: producers of small writes, as the JSON file says.

The file has `places` (see `Places`), `gateway` (its address), `missing` (peer -> why it cannot be measured),
and the sizes: `producers`, `seconds`, `bytes_min`, `bytes_max`, `writers` of the peers and `writer_s`. With
`create`, a table is made and its name is the result; with `log_table`, the name of such a table whose log is
brought in, so many producers write to it with `durability=log`. The result is one line of JSON; progress goes
to stderr. With `sustained`, the first number of producers writes without peers, and each tenth of the time is
a line of its own.
A producer sends one row, waits for the answer, and sends the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from tarn.adapters.catalog_client import RestCatalog
from tarn.adapters.logging import to_stderr
from tarn.core.errors import AlreadyExistsError, DataError, UnavailableError
from tarn.core.exit_codes import INVALID
from tarn.core.table_catalog import TableName
from tarn_demo.bench.commits import measure, pyiceberg_peer
from tarn_demo.bench.commits.delta import DeltaPeer
from tarn_demo.bench.commits.places import NAMESPACE, ROWS, Contender, Places, rows_of
from tarn_demo.bench.commits.readers import reason
from tarn_demo.bench.figures import at_share, undisturbed
from tarn_demo.bench.lines import printed, say
from tarn_demo.bench.producer import Producer, Tally

LAND_S_MAX = 300.0
"""How long the rows of a log may take into their table, in seconds."""
LAND_LOOK_S = 0.5
TENTHS = 10
NOISE_CHARS = 1 << 20
PEER_ROWS = 50
"""Rows of one write of a peer: some 2 kB."""
SCHEMA = {
    "type": "struct",
    "schema-id": 0,
    "fields": [
        {"id": 1, "name": "id", "required": True, "type": "long"},
        {"id": 2, "name": "producer", "required": True, "type": "long"},
        {"id": 3, "name": "note", "required": False, "type": "string"},
    ],
}


def noise(seed: int, bytes_min: int, bytes_max: int) -> Callable[[int, int], bytes]:
    """Makes the body of a row from producer and sequence: text that does not compress, of a random length."""
    chance = random.Random(seed)  # noqa: S311 - sizes of a benchmark
    text = secrets.token_hex(NOISE_CHARS // 2).encode()

    def row(producer: int, sequence: int) -> bytes:
        length = chance.randint(bytes_min, bytes_max)
        start = chance.randrange(NOISE_CHARS - length)
        note = text[start : start + length]
        return b'{"id": %d, "producer": %d, "note": "%s"}' % (sequence, producer, note)

    return row


def new_table(catalog: RestCatalog, prefix: str) -> TableName:
    """A table of the benchmark's rows.

    Raises:
        TarnError: the catalog does not answer.
    """
    name = TableName((NAMESPACE,), f"{prefix}_{secrets.token_hex(3)}")
    catalog.create(name, {"schema": SCHEMA})
    return name


def producers_of(
    catalog: RestCatalog, asked: dict[str, Any], name: TableName, producers: int, durability: str
) -> list[Producer]:
    """So many producers of one table, which have not begun."""
    parts = urlsplit(asked["gateway"])
    address = (parts.hostname or "127.0.0.1", parts.port or 8090)
    make = noise(producers, asked["bytes_min"], asked["bytes_max"])
    token = catalog.token()

    def row_of(number: int) -> Callable[[int], bytes]:
        return lambda sequence: make(number, sequence)

    return [
        Producer(address, str(name), token, number, row_of(number), durability=durability)
        for number in range(producers)
    ]


def wrote(everybody: Sequence[Producer], seconds: float) -> dict[str, Any]:
    """What producers did that write for so long."""

    async def run() -> float:
        began_s = time.monotonic()
        await asyncio.gather(*(one.run(began_s + seconds) for one in everybody))
        return time.monotonic() - began_s

    with undisturbed():
        took_s = asyncio.run(run())
    return summed([one.tally for one in everybody], took_s)


def sustained(catalog: RestCatalog, places: Places, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Producers that write into one table for long: each tenth of the time when it is over, then all of it.

    Raises:
        DataError: rows were lost or doubled.
        TarnError: the catalog does not answer.
    """
    name, producers = new_table(catalog, "sustained"), asked["producers"][0]
    everybody, found = producers_of(catalog, asked, name, producers, "lake"), list[dict[str, Any]]()
    writing = threading.Thread(target=lambda: found.append(wrote(everybody, asked["seconds"])), daemon=True)
    began_s = time.monotonic()
    writing.start()
    before, commits, at_s = [0] * producers, 0, began_s
    for tenth in range(1, TENTHS + 1):
        writing.join(max(0.0, began_s + asked["seconds"] * tenth / TENTHS - time.monotonic()))
        counts, now_s = [len(one.tally.times_ms) for one in everybody], time.monotonic()
        parts = zip(everybody, before, counts, strict=True)
        times = sorted(ms for one, start, end in parts for ms in one.tally.times_ms[start:end])
        state = catalog.load(name)
        yield {
            "tenth": tenth,
            "seconds": round(now_s - at_s, 3),
            "acked": len(times),
            "p50_ms": round(at_share(times, 0.5), 2) if times else None,
            "p99_ms": round(at_share(times, 0.99), 2) if times else None,
            "commits": state.last_sequence - commits,
            "files": state.total("data-files"),
            "live_bytes": state.total("files-size"),
            "snapshots": len(state.metadata["snapshots"]),
            "metadata_bytes": file_bytes(state.metadata),
        }
        before, commits, at_s = counts, state.last_sequence, now_s
    writing.join(asked["seconds"])
    if not found:
        raise UnavailableError(f"the producers of {name} did not end")
    require_all(name, pyiceberg_peer.on_tarn(places).rows(name.name), found[0])
    yield {
        "producers": producers,
        "bytes_min": asked["bytes_min"],
        "bytes_max": asked["bytes_max"],
        **found[0],
    }


def file_bytes(metadata: dict[str, Any]) -> int:
    """Size of a metadata file, which the catalog writes without white space. Pure."""
    return len(json.dumps(metadata, separators=(",", ":"), ensure_ascii=False).encode())


def require_all(name: TableName, rows: int, found: dict[str, Any]) -> None:
    """Require that a table has each acknowledged row once.

    Raises:
        DataError: rows were lost or doubled.
    """
    if measure.wrong_rows(rows, acked=found["acked"], unknown=found["failed"], each=1):
        raise DataError(
            f"{name}: {rows:,} rows after {found['acked']:,} acknowledged writes of one row and "
            f"{found['failed']} failed ones: something was lost or doubled"
        )


def gateway_cell(
    catalog: RestCatalog, places: Places, asked: dict[str, Any], producers: int
) -> dict[str, Any]:
    """So many producers into a table of their own.

    Raises:
        DataError: rows were lost or doubled.
        TarnError: the catalog does not answer.
    """
    name = new_table(catalog, f"small_{producers}")
    found = wrote(producers_of(catalog, asked, name, producers, "lake"), asked["seconds"])
    state = catalog.load(name)
    require_all(name, pyiceberg_peer.on_tarn(places).rows(name.name), found)
    sizes = places.sizes(state.root)
    data = sum(size for path, size in sizes.items() if path.endswith(".parquet"))
    return {
        "producers": producers,
        **found,
        "commits": state.last_sequence,
        "data_files": state.total("data-files"),
        "objects": len(sizes),
        "stored_bytes": sum(sizes.values()),
        "stored_data_bytes": data,
    }


def log_cell(catalog: RestCatalog, places: Places, asked: dict[str, Any], producers: int) -> dict[str, Any]:
    """So many producers into the log of a table, until its rows are in the table.

    Raises:
        DataError: rows were lost or doubled, or did not come in time.
        TarnError: the catalog does not answer.
    """
    name = TableName((NAMESPACE,), str(asked["log_table"]).removeprefix(f"{NAMESPACE}."))
    found = wrote(producers_of(catalog, asked, name, producers, "log"), asked["seconds"])
    began_s = time.monotonic()
    wanted, counted = found["acked"] + found["failed"], 0
    while counted < wanted and time.monotonic() < began_s + LAND_S_MAX:
        time.sleep(LAND_LOOK_S)
        state = catalog.load(name)
        counted = state.total("records") or 0
        if counted >= found["acked"] and found["failed"]:
            break  # a write that failed may be in the log, and need not
    landed_s = time.monotonic() - began_s
    require_all(name, pyiceberg_peer.on_tarn(places).rows(name.name), found)
    return {"producers": producers, **found, "landed_s": round(landed_s, 1)}


def summed(tallies: Sequence[Tally], seconds: float) -> dict[str, Any]:
    """The sums over all producers, the times, and how evenly they were served. Pure.

    Args:
        tallies: what each producer did.
        seconds: from the start to the last end.
    """
    times = sorted(ms for tally in tallies for ms in tally.times_ms)
    counts = [len(tally.times_ms) for tally in tallies]

    def at(share: float) -> float | None:
        return round(at_share(times, share), 2) if times else None

    return {
        "seconds": round(seconds, 3),
        "acked": len(times),
        "bytes": sum(tally.bytes for tally in tallies),
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "slowest": min(counts),
        "fastest": max(counts),
        "refused": sum(tally.refused for tally in tallies),
        "delayed": sum(tally.delayed for tally in tallies),
        "failed": sum(len(tally.errors) for tally in tallies),
        "errors": sorted({error for tally in tallies for error in tally.errors}),
    }


def peer_cell(contender: Contender, writers: int, *, seconds: float) -> dict[str, Any]:
    """So many threads that append small writes with a peer, each repeating a refused one until it is in.

    Raises:
        DataError: rows were lost or doubled on Tarn's catalog.
        UnavailableError: a writer did not end in time.
    """
    table = f"small_{writers}_{secrets.token_hex(3)}"
    contender.create(table)
    measure.append_until_acked(contender.open(table, 0, max(2, writers)), rows_of(writers))
    opened = [contender.open(table, number, max(2, writers)) for number in range(writers)]
    tallies = [Tally() for _ in opened]
    until_s = time.monotonic() + seconds

    def work(number: int) -> None:
        rows: pa.Table = rows_of(number).slice(0, PEER_ROWS)
        tally = tallies[number]
        try:
            while (began_s := time.monotonic()) < until_s:
                while not (done := opened[number].append(rows)).acked:
                    tally.refused += 1
                    tally.unknown += done.unknown
                    if time.monotonic() > until_s:
                        return
                tally.times_ms.append((time.monotonic() - began_s) * 1_000)
        except Exception as e:  # noqa: BLE001 - kept: it is part of the result
            tally.errors.append(reason(e))

    began_s = time.monotonic()
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=seconds + measure.END_S_MAX)
    if any(thread.is_alive() for thread in threads):
        raise UnavailableError(f"a writer of {contender.name} did not end in time")
    found = summed(tallies, time.monotonic() - began_s)
    rows = contender.rows(table) - ROWS
    unknown = sum(tally.unknown for tally in tallies) + found["failed"]
    wrong = measure.wrong_rows(rows, acked=found["acked"], unknown=unknown, each=PEER_ROWS)
    if wrong and contender.on_tarn:
        raise DataError(
            f"{contender.name}: {rows:,} rows after {found['acked']:,} acknowledged writes of {PEER_ROWS} "
            f"and {unknown} of unknown outcome: something was lost or doubled"
        )
    return {"contender": contender.name, "writers": writers, **found, "wrong_rows": wrong}


def peers(places: Places, asked: dict[str, Any], missing: dict[str, str]) -> list[dict[str, Any]]:
    """The same by others; whoever fails goes into `missing`, with the reason."""
    makers: dict[str, Callable[[], Contender]] = {
        "pyiceberg, Tarn's catalog": lambda: pyiceberg_peer.on_tarn(places),
        "deltalake": lambda: DeltaPeer(places),
    }
    found = []
    for name, make in makers.items():
        for writers in asked["writers"] if name not in missing else ():
            try:
                one = peer_cell(make(), writers, seconds=asked["writer_s"])
            except DataError:
                raise
            except Exception as e:  # noqa: BLE001 - whatever keeps a peer from being measured is its reason
                missing[name] = reason(e)
                say(f"    {name} is left out: {missing[name]}")
                break
            found.append({**one, "contender": name})
            say(f"    {name}, {writers} writers: {one['acked'] / one['seconds']:.1f} a second")
    return found


def run(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Everything, as the file asks: one result, but for `sustained`.

    Raises:
        TarnError: Tarn does not answer, or rows were lost.
    """
    places, missing = Places.of(asked["places"]), dict(asked["missing"])
    catalog = RestCatalog(
        places.catalog, warehouse=places.warehouse, credential=lambda: str(asked["places"]["credential"])
    )
    with contextlib.suppress(AlreadyExistsError):
        catalog.create_namespace((NAMESPACE,))
    if "create" in asked:
        yield {"table": str(new_table(catalog, str(asked["create"])))}
        return
    if asked.get("sustained"):
        yield from sustained(catalog, places, asked)
        return
    cell = log_cell if "log_table" in asked else gateway_cell
    cells = []
    for producers in asked["producers"]:
        one = cell(catalog, places, asked, producers)
        cells.append(one)
        rate = one["acked"] / one["seconds"]
        say(f"    {producers} producers: {rate:,.0f} a second, p99 {one['p99_ms']} ms {one['errors']}")
    if "log_table" in asked:
        yield {"log": cells}
        return
    sizes = {key: asked[key] for key in ("seconds", "bytes_min", "bytes_max", "writer_s")}
    yield {**sizes, "lake": cells, "peers": peers(places, asked, missing), "missing": missing}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; returns the exit code."""
    if len(arguments) != 1:
        say("usage: python -m tarn_demo.bench.small_writes FILE")
        return INVALID
    to_stderr()
    return printed(lambda: run(json.loads(Path(arguments[0]).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
