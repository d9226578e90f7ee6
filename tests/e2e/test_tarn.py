"""scripts/tarn status and sql on the whole stack, and on half of one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tarn.cli.canary import TOPIC
from tarn.core.spec import parse_spec
from tests.support.stack import LONG_RUNNING, Answer, Stack, eventually, run

STATUS_S_MAX = 6.0
"""Seconds: twice the time on an idle machine; the container's start is excluded from both."""
QUICK_WITHIN_S = 120
"""The machine may be busy at any one time, but not always."""
HALF_STATUS_S_MAX = 30.0
START_S_MAX = 30.0
WELL_S = 240
PAUSED = ("trino", "kafka")

# All statements in one container: starting one for each would take most of the time.
STATEMENTS = """
import contextlib, io, json, os, sys
from tarn.cli.main import main

def run(*words):
    out, err, codes = io.StringIO(), io.StringIO(), []
    def end(code):
        codes.append(code)
        raise SystemExit
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), contextlib.suppress(SystemExit):
        main(words, end=end)
    return {"code": codes[0], "out": out.getvalue(), "err": err.getvalue()}

found = {}
for engine in ("trino", "spark", "duckdb"):
    for name, sql in json.loads(sys.argv[1]).items():
        found[f"{engine} {name}"] = run("sql", sql, "--engine", engine, "--json")
print(json.dumps(found), flush=True)
os._exit(0)
"""
SQL = {
    "audit": "SELECT count(*), count(DISTINCT id), min(sent_at), max(_tarn.offset) FROM ops.canary",
    "typo": "SELEC 1",
    "unknown table": "SELECT * FROM ops.nothing",
    "unknown column": "SELECT nothing FROM ops.canary",
}


def status(stack: Stack) -> tuple[int, dict[str, Any], float]:
    """The exit code, the JSON output, and the duration of the command in seconds."""
    begun_s = time.monotonic()
    answer = stack.script("tarn", "status", "--json", timeout_s=180)
    took_s = time.monotonic() - begun_s
    lines = [raw for raw in answer.text.splitlines() if raw.startswith("{")]
    assert lines, f"status says nothing; exit code {answer.code}, after {took_s:.0f} s: {answer.text}"
    return answer.code, json.loads(lines[0]), took_s


def test_status_of_a_whole_stack_tells_everything_and_is_quick(stack: Stack) -> None:
    stack.await_healthy(timeout_s=WELL_S)
    seen: list[dict[str, Any]] = []

    def well() -> bool:
        code, told, _ = status(stack)
        seen.append(told)
        return code == 0

    eventually(well, timeout_s=WELL_S, what=lambda: f"status says that all is well; it says {seen[-1]}")
    told = seen[-1]
    assert (told["ok"], told["faults"]) == (True, {})
    states = {state["service"]: state for state in told["services"]}
    assert set(LONG_RUNNING) <= set(states)
    assert all(state["ok"] for state in states.values())
    assert {states[name]["container"] for name in LONG_RUNNING} == {"healthy"}
    canary = next(entry for entry in told["ingestors"] if entry["name"] == "canary")
    assert (canary["state"], canary["table"], canary["lag"]) == ("Running", "ops.canary", 0)
    table = next(facts for facts in told["tables"] if facts["name"] == "ops.canary")
    assert table["rows"] > 0
    assert table["snapshots"] > 0
    assert sum(table["streams"]["canary"]["next"].values()) >= table["rows"]
    for layer in told["layers"]:
        assert layer["layer"] in ("bronze", "silver", "gold")
        assert (layer["newest"] is not None) == (layer["offsets"] > 0), layer
        # Without a single row in any layer, no table says which topic feeds them.
        assert (layer["behind"] is None) == (layer["topic"] is None), layer

    def quick() -> bool:
        seen.append(status(stack)[1])
        return bool(min(each["seconds"] for each in seen) < STATUS_S_MAX)

    eventually(
        quick,
        timeout_s=QUICK_WITHIN_S,
        what=lambda: f"status in {STATUS_S_MAX:g} s; it took {[each['seconds'] for each in seen]} s",
    )


@contextmanager
def paused(stack: Stack, *services: str) -> Iterator[None]:
    """Pause services for the block; retries, as a busy engine sometimes fails to freeze one."""

    def state(service: str) -> str:
        return str(stack.inspect(service)["State"]["Status"])

    def pause() -> bool:
        for service in services:
            if state(service) != "paused":
                stack.compose("pause", service)
        return all(state(service) == "paused" for service in services)

    try:
        eventually(pause, timeout_s=180, what=f"paused: {', '.join(services)}")
        yield
    finally:
        for service in services:
            if state(service) == "paused":
                stack.compose("unpause", service)


def test_status_of_half_a_stack_names_what_is_away_and_tells_the_rest(stack: Stack) -> None:
    with stack.fault():
        with paused(stack, *PAUSED):
            code, told, took_s = status(stack)
        stack.await_healthy(timeout_s=WELL_S)
    assert (code, told["ok"]) == (1, False)
    states = {state["service"]: state for state in told["services"]}
    for service in PAUSED:
        assert not states[service]["ok"]
        assert "not running (paused)" in states[service]["detail"]
        assert f"docker compose logs {service}" in states[service]["detail"]
    for service in ("minio", "catalog", "spark"):
        assert states[service]["ok"], states[service]
    assert "offsets" in told["faults"]
    assert {facts["name"] for facts in told["tables"]} >= {"ops.canary"}
    assert "canary" in {entry["name"] for entry in told["ingestors"]}
    assert told["seconds"] < HALF_STATUS_S_MAX
    assert took_s < HALF_STATUS_S_MAX + START_S_MAX, "with the container's start, and its end"


@pytest.fixture(scope="module")
def said(stack: Stack) -> dict[str, dict[str, Any]]:
    answer = stack.compose(
        *("run", "--rm", "--no-deps", "-T", "--entrypoint", "python", "cli", "-c", STATEMENTS),
        json.dumps(SQL),
    )
    lines = [raw for raw in answer.text.splitlines() if raw.startswith("{")]
    assert lines, answer.text
    found: dict[str, dict[str, Any]] = json.loads(lines[-1])
    return found


def test_three_engines_give_one_answer(said: dict[str, dict[str, Any]]) -> None:
    answers = {engine: said[f"{engine} audit"] for engine in ("trino", "spark", "duckdb")}
    assert {answer["code"] for answer in answers.values()} == {0}, answers
    rows = {json.dumps(json.loads(answer["out"])["rows"]) for answer in answers.values()}
    assert len(rows) == 1, rows
    ((count, distinct, first, offset),) = json.loads(rows.pop())
    assert count == distinct > 0
    assert first.endswith("Z")
    assert offset >= count - 1


@pytest.mark.parametrize("engine", ["trino", "spark", "duckdb"])
@pytest.mark.parametrize(
    ("mistake", "named", "codes"),
    [
        ("typo", "SELEC", {2}),
        ("unknown table", "nothing", {2}),
        ("unknown column", "nothing", {2}),
    ],
)
def test_a_mistake_is_one_line_and_an_exit_code(
    said: dict[str, dict[str, Any]], engine: str, mistake: str, named: str, codes: set[int]
) -> None:
    answer = said[f"{engine} {mistake}"]
    assert answer["code"] in codes, answer
    assert answer["out"] == ""
    assert answer["err"].count("\n") == 1, answer["err"]
    assert answer["err"].startswith("tarn: ")
    assert named in answer["err"]
    assert "Traceback" not in answer["err"]


def test_a_table_goes_back_with_its_offsets_and_is_filled_again_once(stack: Stack) -> None:
    canary = "ops.canary"
    for _ in range(2):
        assert stack.script("tarn", "canary", timeout_s=180).code == 0
    stack.await_healthy(timeout_s=WELL_S)
    # A merge of small files is a snapshot too, and takes no row away: go back to one with fewer rows.
    newest = (
        "SELECT snapshot_id, CAST(summary['total-records'] AS bigint) "
        'FROM ops."canary$snapshots" ORDER BY committed_at DESC'
    )
    count = f"SELECT count(*), count(DISTINCT id) FROM {canary}"
    before = stack.query(count)
    (current, rows), *earlier = stack.query(newest)
    former = next(number for number, fewer in earlier if fewer < rows)
    answer = stack.script("tarn", "rollback", canary, "--to", str(former), timeout_s=120)
    assert answer.code == 2, "what happens to the offsets must be said"
    assert "--offsets rewind" in answer.text
    answer = stack.script(
        *("tarn", "rollback", canary, "--to", str(former), "--offsets", "rewind", "--json"), timeout_s=120
    )
    assert answer.code == 0, answer.text
    told = json.loads(next(raw for raw in answer.text.splitlines() if raw.startswith("{")))
    assert told["target"] == former
    # It was the current one, or a merge of its files that came since, which has all of its rows.
    assert told["before"] not in [number for number, _ in earlier], (told, current)
    assert told["before"] == current or [told["before"], rows] in stack.query(newest), (told, current)
    assert told["rows"]["after"] < told["rows"]["before"] == before[0][0]
    eventually(
        lambda: stack.query(count) == before,
        timeout_s=WELL_S,
        what=lambda: f"{before} after ingest has read again what was rolled back; now {stack.query(count)}",
    )
    assert stack.script("tarn", "fsck", timeout_s=120).code == 0
    answer = stack.script("tarn", "audit", canary, timeout_s=120)
    assert answer.code == 0, answer.text
    ((partition, offset),) = stack.query(
        f"SELECT _tarn.partition, _tarn.offset FROM {canary} ORDER BY sent_at DESC LIMIT 1"
    )
    answer = stack.script("tarn", "trace", f"{TOPIC}/{partition}/{offset}", "--json", timeout_s=120)
    assert answer.code == 0, answer.text
    assert canary in answer.text
    assert stack.script("tarn", "trace", f"{TOPIC}/{partition}/999999999", timeout_s=120).code == 1


def in_a_shell(stack: Stack, line: str) -> Answer:
    """The result of a line that a user types at the root of the clone."""
    return run(["bash", "-c", f"set -o pipefail; {line}"], timeout_s=180, env=stack.env)


def test_messages_go_into_a_topic_and_out_again_from_the_shell(stack: Stack) -> None:
    typed = partial(in_a_shell, stack)
    assert typed("scripts/tarn topic create shell.lines --partitions 2").code == 0
    sent = typed(r"printf 'a\t1\nb\t2\na\t3\n' | scripts/tarn produce shell.lines --keys")
    assert (sent.code, "3 messages sent" in sent.text) == (0, True), sent.text
    read = typed("scripts/tarn consume shell.lines --json")
    found = [json.loads(raw) for raw in read.text.splitlines() if raw.startswith("{")]
    assert sorted((one["key"], one["value"]) for one in found) == [("a", "1"), ("a", "3"), ("b", "2")]
    kept = typed("scripts/tarn topic delete shell.lines")
    assert (kept.code, "add --yes" in kept.text) == (2, True), kept.text
    assert typed("scripts/tarn topic delete shell.lines --yes").code == 0
    gone = typed("scripts/tarn consume shell.lines")
    assert gone.code not in (0, 70), gone.text
    assert "does not exist" in gone.text


def test_a_dead_letter_is_listed_shown_and_not_replayed_while_it_does_not_decode(stack: Stack) -> None:
    typed = partial(in_a_shell, stack)
    sent = typed("echo '{\"id\": 7}' | scripts/tarn produce tarn.canary")
    assert sent.code == 0, sent.text

    def listed() -> bool:
        found = json.loads(typed("scripts/tarn dead-letters list --json 2>/dev/null").text)
        return any(group["stream"] == "canary" for group in found)

    eventually(listed, timeout_s=180, what="the dead letter is in its table")
    shown = typed("scripts/tarn dead-letters show canary --last 1")
    assert (shown.code, "id: expected text, found the number 7" in shown.text) == (0, True), shown.text
    again = typed("scripts/tarn dead-letters replay services/specs/canary.yaml")
    assert again.code == 1, again.text
    assert "0 became rows" in again.text
    assert "id: expected text, found the number 7" in again.text
    checked = typed("scripts/tarn audit ops.canary")
    assert checked.code == 0, checked.text


def test_a_spec_is_drafted_from_the_messages_of_a_topic(stack: Stack) -> None:
    drafted = in_a_shell(stack, "scripts/tarn init --from-topic tarn.canary 2>/dev/null")
    assert drafted.code == 0, drafted.text
    spec = parse_spec(drafted.text, file="the draft")
    assert (spec.name, spec.topic, str(spec.spec.table)) == (
        "tarn-canary",
        "tarn.canary",
        "bronze.tarn_canary",
    )
    assert spec.spec.columns is not None
    assert {f.name: f.type for f in spec.spec.columns.fields} == {
        "id": "string",
        "sent_at": "timestamptz",
        "note": "string",
    }
