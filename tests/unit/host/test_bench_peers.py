"""`scripts/bench peers`: order of the turns, specs, and the page."""

from __future__ import annotations

import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from tarn_host import shell
from tarn_host.bench import command, ingest, peers, sink
from tarn_host.console import StopError
from tarn_host.stack import images, project

from tarn.core.spec import parse_spec


def result(rows_per_cpu_s: float, **more: float) -> dict[str, float]:
    return {"rows_per_s": 2 * rows_per_cpu_s, "mb_per_s": 1.0, "rows_per_cpu_s": rows_per_cpu_s, **more}


def run(ingest: float, spark: float) -> dict[str, Any]:
    one = {
        "messages": 1_000,
        "bytes": 200_000,
        "rows": 980,
        "ingest": result(ingest, memory_peak_mib=200),
        "ingest-kafka-python": result(50),
        "spark": result(spark),
        "connect": result(30, memory_peak_mib=900),
        "loop": result(10),
    }
    return {"200": one}


def test_every_contender_is_first_in_its_turn() -> None:
    orders = [peers.rotated(peers.CONTENDERS, turn) for turn in range(len(peers.CONTENDERS))]
    assert [order[0] for order in orders] == list(peers.CONTENDERS)
    assert all(sorted(order) == sorted(peers.CONTENDERS) for order in orders)


def test_the_specs_are_valid_and_of_different_tables() -> None:
    found = [parse_spec(peers.spec(name, "bench-200-0", "200_0"), file="x.yaml") for name in peers.OURS]
    assert [str(each.spec.table.name) for each in found] == ["ingest_200_0", "ingest_kafka_python_200_0"]
    assert {each.topic for each in found} == {"bench-200-0"}
    assert len({each.name for each in found}) == 2


def test_the_page_shows_medians_and_ratios_of_one_round() -> None:
    page = peers.section([run(100, 50), run(200, 40), run(400, 400)])
    rows = [line.split(" | ") for line in page.splitlines() if line.startswith("| ")]
    spark = next(row for row in rows if row[0].startswith("| Spark"))
    assert spark[1] == "100 (80 to 800)"
    assert spark[4] == "0.50 (0.20 to 1.00)", "ratios of the same round, not of medians"
    assert spark[5] == "not measured |"


def test_a_contender_that_was_not_measured_is_shown_as_such() -> None:
    first, second = run(100, 50), run(200, 40)
    del second["200"]["connect"]
    page = peers.section([first, second])
    assert re.search(r"Spark Structured Streaming, one batch \| \d+ \(80 to 100\) \|", page)
    assert "rounds |" not in page.replace("1 of 2 rounds |", "")
    assert "| Iceberg's sink of Kafka Connect, 1 of 2 rounds | " in page
    del first["200"]["connect"]
    assert "| Iceberg's sink of Kafka Connect | not measured | | | | |\n" in peers.section([first, second])


def test_a_turn_of_the_sink_is_that_of_its_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    wanted = {"messages": 100, "bytes": 20_000, "rows": 98, "sum": 4_851}
    used = iter((1.5, 2.0))

    def verb(_own: Any, name: str, **options: Any) -> dict[str, Any]:
        asked.append((name, options))
        if name in ("spark", "loop", "sink"):
            return {"seconds": 2.0, "cpu_s": 1.0}
        return dict(wanted) if name == "produce" else {"rows": 98, "sum": 4_851}

    class Stack:
        env: ClassVar[dict[str, str]] = {"COMPOSE_PROJECT_NAME": "mine"}

    monkeypatch.setattr(peers, "OURS", {})
    monkeypatch.setattr(peers, "CONTENDERS", ("connect",))
    monkeypatch.setattr(sink, "worker", lambda _own: nullcontext("mine-connect"))
    monkeypatch.setattr(peers, "verb", verb)
    monkeypatch.setattr(peers, "_cpu_s", lambda name: next(used) if name == "mine-connect" else 100.0)
    monkeypatch.setattr(peers, "_peak_mib", lambda name: 900.0 if name == "mine-connect" else 1.0)
    found = peers.one_topic(Stack(), tmp_path, size=200, count=100, turn=3, warm_rows=7)  # type: ignore[arg-type]
    sinks = [options for name, options in asked if name == "sink"]
    assert sinks == [
        {"topic": "warm-up", "table": "bench.warm_up_200_3_0", "rows": 7},
        {"topic": "bench-200-3", "table": "bench.connect_200_3", "rows": 98},
    ]
    names = [name for name, _ in asked]
    assert names.index("sink") < names.index("produce"), "it is warm before the topic is filled"
    assert found["connect"]["cpu_s"] == 0.5
    assert found["connect"]["rows_per_cpu_s"] == 196
    assert found["connect"]["memory_peak_mib"] == 900
    wanted["rows"] = 97
    monkeypatch.setattr(peers, "_cpu_s", lambda _name: 1.0)
    found = peers.one_topic(Stack(), tmp_path, size=200, count=100, turn=4, warm_rows=7)  # type: ignore[arg-type]
    assert "connect" not in found, "its time does not count"


def test_a_worker_that_reads_nothing_is_replaced_and_after_three_the_sink_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started: list[str] = []
    kept: list[str] = []

    def worker(_own: Any) -> Any:
        started.append(f"worker-{len(started)}")
        return nullcontext(started[-1])

    def verb(_own: Any, _name: str, **_options: Any) -> dict[str, Any]:
        if len(started) < works:
            raise StopError("0 rows of 7", "look")
        return {}

    monkeypatch.setattr(sink, "worker", worker)
    monkeypatch.setattr(sink, "keep_words", kept.append)
    monkeypatch.setattr(peers, "verb", verb)
    works = 2
    with peers._warm_sink(None, "bench.warm", 7) as container:  # type: ignore[arg-type]
        assert container == "worker-1"
    assert kept == ["worker-0"]
    started.clear()
    works = 100
    with peers._warm_sink(None, "bench.warm", 7) as nothing:  # type: ignore[arg-type]
        assert nothing is None
    assert len(started) == peers.WORKERS_MAX


def test_rows_too_few_of_ingest_end_the_benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Stack:
        env: ClassVar[dict[str, str]] = {"COMPOSE_PROJECT_NAME": "mine"}

    counts = {"produce": {"messages": 100, "bytes": 20_000, "rows": 98, "sum": 4_851}}
    monkeypatch.setattr(peers, "OURS", {"ingest": "librdkafka"})
    monkeypatch.setattr(peers, "CONTENDERS", ("ingest",))
    monkeypatch.setattr(
        peers, "_frozen_ingest", lambda *_words: nullcontext(peers.Frozen("mine-ingest", 1.0))
    )
    monkeypatch.setattr(peers, "_warm_sink", lambda *_words: nullcontext(None))
    monkeypatch.setattr(peers, "_thawed", lambda *_words: {"seconds": 1.0, "cpu_s": 1.0})
    monkeypatch.setattr(
        peers, "verb", lambda _own, name, **_options: counts.get(name, {"rows": 97, "sum": 4_851})
    )
    with pytest.raises(StopError, match=r"ingest made .*97.* of "):
        peers.one_topic(Stack(), tmp_path, size=200, count=100, turn=0, warm_rows=7)  # type: ignore[arg-type]


def test_topics_are_of_the_size_asked_for() -> None:
    assert peers.Options(rounds=1, mib=17).topics() == {200: 89_128, 1_700: 10_485}


def test_a_contender_reads_its_own_spec_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[tuple[str, ...]] = []

    class Stack:
        env: ClassVar[dict[str, str]] = {"COMPOSE_PROJECT_NAME": "mine"}

        def compose(self, *words: str) -> str:
            said.append(words)
            return ""

    monkeypatch.setattr(peers, "docker", lambda *_words: '"event": "ingestor runs"')
    with peers.ingest_of(Stack(), tmp_path / "new", "a", "text", MORE="1") as container:  # type: ignore[arg-type]
        assert container == "mine-a"
    mounted = said[0][said[0].index("--volume") + 1].split(":")[1]
    assert f"TARN_SPECS_DIR={mounted}" in said[0]
    assert {"TARN_TRAIL=off", "MORE=1"} <= set(said[0])
    own = yaml.safe_load(project.COMPOSE_FILE.read_text())["services"]["ingest"]["volumes"]
    assert all(mounted not in str(volume) for volume in own), "Compose's mount would hide it"
    assert (tmp_path / "new/spec.yaml").read_text() == "text"


def test_the_time_of_a_frozen_contender_is_looked_at_before_it_is_paused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[str] = []
    monkeypatch.setattr(peers, "ingest_of", lambda *_words, **_env: nullcontext("mine-ingest"))
    monkeypatch.setattr(peers, "docker", lambda *words: said.append(words[0]) or "usage_usec 1500000")
    with peers._frozen_ingest(None, tmp_path, "ingest", "bench-200-0") as frozen:  # type: ignore[arg-type]
        assert frozen == peers.Frozen(container="mine-ingest", cpu_s=1.5)
    assert said == ["exec", "pause"], "nothing can be run in a paused container"


def test_the_report_has_the_section_with_the_command() -> None:
    raw = {"bench": "peers", "command": "scripts/bench peers", "commit": "abc", "date": "2026-01-02"}
    text = command.report([{**raw, "machine": "2 cores", "engine": "20", "runs": [run(100, 50)]}])
    assert "`scripts/bench peers` on 2026-01-02, commit abc" in text
    assert text.endswith("| not measured |\n")


@pytest.mark.parametrize(
    ("verb", "module", "shown"),
    [("peers", peers, "| Spark Structured Streaming"), ("ingest", ingest, "one ingest process")],
)
def test_a_quick_run_is_small_printed_and_kept_nowhere(
    verb: str, module: Any, shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []

    def measured(options: Any) -> list[dict[str, Any]]:
        asked.append(options)
        raw = [one for one in command._raw_files() if one["bench"] == verb]
        return raw[0]["runs"] if raw else [run(100, 50)]

    monkeypatch.setattr(module, "measure", measured)
    before = {file.name: file.read_bytes() for file in command.RAW.glob("*.json")}
    page = command.REPORT.read_bytes()
    assert command.main([verb, "--quick"]) == 0
    assert asked[0].rounds == 1
    assert asked[0] == asked[0].small()
    assert shown in capsys.readouterr().out
    assert {file.name: file.read_bytes() for file in command.RAW.glob("*.json")} == before
    assert command.REPORT.read_bytes() == page


@pytest.mark.parametrize(
    "words", [["peers", "--mib", "0"], ["peers", "--rounds", "0"], ["ingest", "--events", "999"]]
)
def test_sizes_that_make_no_sense_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(words) == 2
    assert "no such benchmark" in capsys.readouterr().err


@pytest.mark.parametrize("starts", [False, True])
def test_a_container_that_failed_is_removed_and_what_it_said_is_kept(
    starts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def capture(command: list[str], **_more: Any) -> shell.Result:
        ran.append(command)
        return shell.Result(0, "ingestor runs; no broker", "")

    def compose(_own: ingest.Own, *_words: str, **_more: Any) -> str:
        if not starts:
            raise StopError("it does not start", "look")
        return ""

    monkeypatch.setattr(shell, "capture", capture)
    monkeypatch.setattr(ingest, "LOG", tmp_path / "log")
    monkeypatch.setattr(ingest.Own, "compose", compose)
    own = ingest.Own(env={"COMPOSE_PROJECT_NAME": "t"})
    with pytest.raises(StopError), peers.ingest_of(own, tmp_path / "a", "a", "text"):
        raise StopError("a row was lost", "look")
    assert ran[-1] == ["docker", "rm", "--force", "t-a"]
    assert "t-a:\ningestor runs; no broker" in (tmp_path / "log").read_text()


def test_every_image_of_the_stack_loses_the_benchmarks_tag(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(images, "image_ids", lambda names: dict.fromkeys(names, "sha256:1"))
    monkeypatch.setattr(shell, "capture", lambda command, **_more: ran.append(command[-1]))
    ingest._untag("t", "t-bench")
    services = yaml.safe_load(project.COMPOSE_FILE.read_text())["services"].values()
    own = {each["image"].split(":")[0] for each in services if each.get("image", "").startswith("tarn/")}
    assert sorted(ran) == sorted(f"{image}:t-bench" for image in own)
