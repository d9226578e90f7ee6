"""Declared ingestors on the whole stack, scaled, changed, deleted and killed: each message is one row."""

from __future__ import annotations

import json
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import yaml
from tarn_host.stack import project
from trino.exceptions import HttpError

from tarn.core.control.declared import HAND, Declared, Stamp, deleted, spec_key
from tests.support.declared import Feed, Terminal, terminal
from tests.support.documents import blocks
from tests.support.stack import Stack, eventually, run

WAIT = ("--wait", "120")
WALK_S_MAX = 300
WITHIN_S = 180
PARTITIONS = 3
PROCESS = {"resources": {"threads": 1}}

pytestmark = pytest.mark.filterwarnings("ignore:(read_text|open_text) is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def typed(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Terminal:
    stack.await_healthy()
    return terminal(stack, tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module", autouse=True)
def _nothing_stays(typed: Terminal) -> Iterator[None]:
    yield
    specs = typed.specs()

    def make(found: Declared | None, stamp: Stamp) -> Declared:
        assert found is not None
        return found if found.gone or found.owner != HAND else deleted(found, stamp=stamp)

    for name in specs.list():
        specs.change(name, make)


@pytest.fixture(scope="module")
def producer(typed: Terminal) -> Iterator[Any]:
    made = typed.producer()
    yield made
    made.close()


def spec(name: str, **body: Any) -> str:
    """The spec of an ingestor of topic and table `declared.NAME`, as a file would have it."""
    return yaml.safe_dump(
        {
            "apiVersion": "tarn/v1",
            "kind": "Ingestor",
            "metadata": {"name": name},
            "spec": {
                "source": {"kafka": {"topic": f"declared.{name}", "create": True, "partitions": PARTITIONS}},
                "table": {"namespace": "declared", "name": name},
                "schema": {
                    "fields": [
                        {"name": "id", "type": "long", "required": True},
                        {"name": "text", "type": "string"},
                    ]
                },
                "batching": {"maxLatencySeconds": 0.2},
                **body,
            },
        }
    )


def apply(typed: Terminal, name: str, **body: Any) -> str:
    return typed.tarn("apply", "-f", "-", *WAIT, stdin=spec(name, **body)).text


def test_from_an_empty_file_to_rows_with_the_words_of_the_readme(stack: Stack, record_property: Any) -> None:
    stack.await_healthy()
    text = (project.ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = [one.text for one in blocks(text) if "scripts/tarn apply" in one.text]
    begun_s = time.monotonic()
    answer = run(["bash", "-euo", "pipefail", "-c", block], timeout_s=WALK_S_MAX, env=stack.env)
    assert answer.code == 0, answer.text
    assert "ingestor visits created, generation 1" in answer.text
    rows = eventually(
        lambda: stack.query("SELECT page, CAST(at AS varchar) FROM shop.visits") or None,
        timeout_s=WITHIN_S,
        what="a row of one's own stream",
        pause_s=0.1,
    )
    took_s = round(time.monotonic() - begun_s, 1)
    assert rows == [["/basket", "2026-11-21 08:00:00.000000 UTC"]]
    record_property("seconds from an empty file to rows", took_s)
    sys.stderr.write(f"from an empty file to rows: {took_s} s\n")


def test_an_ingestor_is_declared_changed_and_deleted_without_a_restart(stack: Stack) -> None:
    """The ingestor of the README again, by `scripts/tarn`: what belongs to a file stays the file's."""

    def shell(line: str) -> Any:
        return run(["bash", "-c", f"set -o pipefail; {line}"], timeout_s=180, env=stack.env)

    shown = shell("scripts/tarn describe visits && scripts/tarn scale canary 2")
    assert "1 of 1 readers run" in shown.text, shown.text
    assert (shown.code, "belongs to canary.yaml of the spec folder" in shown.text) == (1, True), shown.text
    checked = shell("scripts/tarn audit shop.visits && scripts/tarn delete visits --wait 60")
    assert checked.code == 0, checked.text
    gone = shell("scripts/tarn describe visits")
    assert (gone.code, "there is no ingestor visits" in gone.text) == (1, True), gone.text


def test_scaled_and_changed_under_load_each_message_is_one_row(
    stack: Stack, typed: Terminal, producer: Any
) -> None:
    feed = Feed(topic="declared.busy", partitions=PARTITIONS)
    assert "created, generation 1" in apply(typed, "busy")
    typed.tarn("produce", "tarn.canary", stdin='{"id": "beside", "sent_at": "2026-11-21T08:00:00Z"}\n')
    eventually(
        lambda: typed.status("canary")["rows"] > 0, timeout_s=WITHIN_S, what="the canary's row is counted"
    )
    beside = typed.status("canary")
    with feed.flowing(producer):
        for replicas in (3, 1):
            typed.tarn("scale", "busy", str(replicas), *WAIT)
            status = typed.status("busy")
            assert (status["replicas"], status["readyReplicas"]) == (replicas, replicas)
        assert "changed, generation 4" in apply(
            typed, "busy", batching={"maxRecords": 50, "maxLatencySeconds": 0.1}
        )
        assert "unchanged, generation 4" in apply(
            typed, "busy", batching={"maxRecords": 50, "maxLatencySeconds": 0.1}
        )
        assert "changed, generation 5" in apply(typed, "busy", mapping={"rename": {"words": "text"}})
    before = len(feed.sent)
    feed.key = "words"
    feed.send(producer, 30)
    count = feed.require_exact(stack, "declared.busy")
    assert count == before + 30 > 100
    mapped = f"id >= {before} AND text = concat('text ', CAST(id AS varchar))"
    assert stack.query(f"SELECT count(*) FROM declared.busy WHERE {mapped}") == [[30]], "renamed values"
    now = typed.status("canary")
    assert (now["writers"], now["rows"] >= beside["rows"]) == (beside["writers"], True), "it went on beside"


def test_deleted_under_load_it_drains_and_the_same_spec_goes_on(
    stack: Stack, typed: Terminal, producer: Any
) -> None:
    feed = Feed(topic="declared.brief", partitions=PARTITIONS)
    apply(typed, "brief", replicas=2)
    with feed.flowing(producer):
        eventually(lambda: typed.status("brief")["rows"] > 0, timeout_s=WITHIN_S, what="rows")
        typed.tarn("delete", "brief", *WAIT)
        held = "SELECT count(*), count(DISTINCT id) FROM declared.brief"
        ((rows, distinct),) = stack.query(held)
        feed.send(producer, 60)
        assert rows == distinct > 0
    assert stack.query(held) == [[rows, distinct]], "nobody writes any more"
    gone = typed.tarn("get", "brief", code=None)
    assert (gone.code, "there is no ingestor brief" in gone.text) == (1, True), gone.text
    assert "created" in apply(typed, "brief")
    feed.require_exact(stack, "declared.brief")


def test_a_spec_that_is_removed_behind_its_back(stack: Stack, typed: Terminal, producer: Any) -> None:
    feed = Feed(topic="declared.lost", partitions=PARTITIONS)
    apply(typed, "lost")
    feed.send(producer, 60)
    feed.require_exact(stack, "declared.lost")
    typed.remove_object(spec_key("lost"))
    eventually(lambda: "lost" not in ingestors(typed), timeout_s=WITHIN_S, what="its writer ended")
    feed.send(producer, 60)
    assert "created, generation 1" in apply(typed, "lost")
    feed.require_exact(stack, "declared.lost")


def test_a_controller_that_is_killed_goes_on_where_it_was(
    stack: Stack, typed: Terminal, producer: Any
) -> None:
    feed = Feed(topic="declared.killed", partitions=PARTITIONS)
    apply(typed, "killed")
    with stack.fault(), feed.flowing(producer):
        for replicas, pause_s in ((3, 0.1), (1, 1.0)):
            typed.tarn("scale", "killed", str(replicas))
            time.sleep(pause_s)
            stack.signal_application("ingest", "SIGKILL")
            runs = partial(settled, typed, "killed", replicas, time.time())
            eventually(runs, timeout_s=WITHIN_S, what=f"{replicas} readers run")
    feed.require_exact(stack, "declared.killed")
    found = typed.shown("killed")
    assert found["metadata"]["generation"] == 3, "each change of the spec is one version, whoever died"
    assert found["status"]["replicas"] == 1
    stack.await_healthy()


def settled(typed: Terminal, name: str, replicas: int, since_s: float) -> bool:
    """Whether ingest says, after this time of the clock, that so many readers run."""
    found = typed.shown(name)
    status = found["status"]
    return status is not None and bool(
        status["atMs"] > since_s * 1_000
        and status["observedGeneration"] == found["metadata"]["generation"]
        and (status["replicas"], status["readyReplicas"]) == (replicas, replicas)
    )


def is_open(stack: Stack) -> bool:
    """Whether Trino takes a statement without a secret: it asks the catalog every few seconds only."""
    try:
        return bool(stack.query("SELECT 1"))
    except HttpError:
        return False


def ingestors(typed: Terminal) -> dict[str, dict[str, Any]]:
    """What ingest's status page shows, by name."""
    url = f"{typed.env['TARN_INGEST_URI']}/status"
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: dict[str, dict[str, Any]] = json.loads(answer.read())["ingestors"]
    return found


def test_a_writer_that_dies_at_once_is_backed_off_and_visible(
    stack: Stack, typed: Terminal, producer: Any
) -> None:
    feed = Feed(topic="declared.brittle", partitions=PARTITIONS)
    apply(typed, "brittle", workerTemplate=PROCESS)
    feed.send(producer, 60)
    feed.require_exact(stack, "declared.brittle")
    with stack.fault(), typed.killing_writers(seconds_max=WITHIN_S):
        feed.send(producer, 60)
        found = eventually(
            lambda: one if (one := typed.ready("brittle")).get("reason") == "CrashLoop" else None,
            timeout_s=WITHIN_S / 2,
            what=lambda: f"it is in a crash loop; it is {typed.shown('brittle')['status']}",
        )
        assert "Killed: signal 9 ended it" in found["message"]
        assert "s before its next start" in found["message"]
        assert "CrashLoop" in typed.tarn("get", "brittle").text
        described = typed.tarn("describe", "brittle").text
        assert "times in a row" in described
        page = eventually(
            lambda: shown if "ingestor brittle" in (shown := ingestors(typed)) else None,
            timeout_s=WITHIN_S / 2,
            what=lambda: f"the status page names it; it has {sorted(ingestors(typed))}",
        )
        assert page["ingestor brittle"]["conditions"][0]["reason"] == "CrashLoop"
        assert page["canary"]["state"] == "Running", "no other ingestor is disturbed"
    runs = partial(settled, typed, "brittle", 1, time.time())
    eventually(runs, timeout_s=WITHIN_S, what="it runs again")
    feed.require_exact(stack, "declared.brittle")
    stack.await_healthy()


def test_an_ingestor_is_drafted_from_a_topic_and_applied(stack: Stack, typed: Terminal) -> None:
    typed.tarn("topic", "create", "declared.drafted", "--partitions", "2")
    typed.tarn("produce", "declared.drafted", stdin="".join(f'{{"n": {n}, "x": "{n}"}}\n' for n in range(20)))
    drafted = typed.tarn("init", "--from-topic", "declared.drafted", "--table", "declared.drafted", "--apply")
    assert "(10 of the 20 rows that 20 messages give)" in drafted.text
    assert "ingestor declared-drafted created" in drafted.text
    found = eventually(
        lambda: rows if len(rows := stack.query("SELECT n, x FROM declared.drafted")) == 20 else None,
        timeout_s=WITHIN_S,
        what="every message of the topic is a row",
    )
    assert sorted(found) == [[n, str(n)] for n in range(20)]


def test_dead_letters_become_rows_once_by_the_spec_that_is_declared(stack: Stack, typed: Terminal) -> None:
    apply(typed, "mended")
    typed.tarn("produce", "declared.mended", stdin='{"id": 1}\n{"id": "2"}\n{"id": "three"}\n{"id": 4}\n')

    def letters() -> bool:
        listed = typed.json("dead-letters", "list")
        return any((one["stream"], one["letters"]) == ("mended", 2) for one in listed)

    eventually(letters, timeout_s=WITHIN_S, what="two dead letters")
    apply(typed, "mended", mapping={"cast": {"id": "long"}})
    words = ("dead-letters", "replay", "--ingestor", "mended")
    for became in (1, 0):
        done = typed.tarn(*words, code=1)
        assert f"{became} became rows, 1 cannot" in done.text, done.text
    assert sorted(stack.query("SELECT id FROM declared.mended")) == [[1], [2], [4]]
    checked = typed.tarn("audit", "declared.mended")
    assert "declared.mended" in checked.text


def test_an_ingestor_acts_as_a_principal_within_its_grants(
    stack: Stack, typed: Terminal, producer: Any
) -> None:
    feed = Feed(topic="declared.lent", partitions=PARTITIONS)
    letters = {"table": {"namespace": "declared", "name": "letters"}}
    # While there is a principal, Trino takes no statement without a secret.
    stack.query("CREATE SCHEMA IF NOT EXISTS declared")
    made = typed.tarn("principal", "create", "bob").text
    try:
        typed.tarn("principal", "lend", "bob", stdin=made)
        words = ("apply", "-f", "-", *WAIT)
        with stack.fault():
            refused = typed.tarn(*words, stdin=spec("lent", runAs="bob", deadLetters=letters), code=1)
        assert "Forbidden: may not load declared.letters" in refused.text
        assert ingestors(typed)["canary"]["state"] == "Running", "it stops alone"
        typed.tarn("grant", "create,write", "namespace:declared", "bob")
        begun_s = time.time()
        feed.send(producer, 60)
        eventually(lambda: typed.status("lent")["rows"] == 60, timeout_s=WITHIN_S, what="60 rows")
        eventually(partial(settled, typed, "lent", 1, begun_s), timeout_s=WITHIN_S, what="it runs")
        owner = typed.json("grants", "table:declared.lent")["owner"]
        assert owner == "bob", "who creates a table owns it"
        typed.tarn("delete", "lent", *WAIT)
    finally:
        typed.tarn("principal", "lend", "bob", "--take-back")
        typed.tarn("principal", "drop", "bob")
    eventually(partial(is_open, stack), timeout_s=WITHIN_S, what="Trino is open again")
    feed.require_exact(stack, "declared.lent")
