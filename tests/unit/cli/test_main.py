"""The commands themselves: output, stream and exit code; external systems are replaced in wiring."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tarn.cli import main as cli
from tarn.cli import wiring
from tarn.cli.main import main
from tarn.cli.ports import Answer
from tarn.cli.settings import Settings
from tarn.core.errors import InvalidError, NoSuchTableError, UnavailableError

SPEC = Path(__file__).parents[3] / "services" / "specs" / "canary.yaml"


class EndedError(BaseException):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def end(code: int):
    raise EndedError(code)


def run(*arguments: str) -> int:
    with pytest.raises(EndedError) as caught:
        main(arguments, end=end)
    return caught.value.code


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch, tmp_path):
    import os

    for name in [name for name in os.environ if name.startswith("TARN_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TARN_SECRETS_DIR", str(tmp_path))
    for name, text in (
        ("s3_access_key_id", "TARNCLIAAAAAAAAAAAAA"),
        ("s3_secret_access_key", "very-secret"),
        ("catalog_credential", "cli-x:also-secret"),
        ("jupyter_token", "j-also-secret"),
        ("spark_token", "s-also-secret"),
        ("kafka_user", "cli"),
        ("kafka_password", "k-also-secret"),
    ):
        (tmp_path / name).write_text(text)


class FakeEngine:
    name = "trino"

    def __init__(self, answer) -> None:
        self.answer = answer
        self.asked: list[tuple[str, int]] = []

    def query(self, sql: str, *, rows_max: int):
        self.asked.append((sql, rows_max))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.fixture
def engine(monkeypatch) -> Callable[[object], FakeEngine]:
    def install(answer) -> FakeEngine:
        fake = FakeEngine(answer)
        monkeypatch.setattr(wiring, "engine", lambda settings, name: fake)
        return fake

    return install


ANSWER = Answer(columns=("n", "t"), rows=((1, "a"), (2, None)))


@pytest.mark.parametrize(
    ("command", "until"),
    [("apply", "it runs as declared"), ("scale", "it runs as declared"), ("delete", "it has ended")],
)
def test_each_command_that_waits_says_for_what(capsys, command, until):
    assert run(command, "--help") == 0
    assert f"Wait so many seconds at most until {until}." in " ".join(capsys.readouterr().out.split())


def test_help_and_version(capsys):
    assert run("--help") == 0
    out = capsys.readouterr().out
    for command in ("canary", "status", "sql", "env", "check-spec", "version"):
        assert command in out
    assert run("version") == 0
    assert capsys.readouterr().out == "tarn 0.1.0\n"


def test_an_unknown_command_or_option_exits_2(capsys):
    assert run("fly") == 2
    assert "fly" in capsys.readouterr().err
    assert run("status", "--yaml") == 2


def test_sql_prints_a_table_json_or_csv(engine, capsys):
    fake = engine(ANSWER)
    assert run("sql", "SELECT 1") == 0
    assert "NULL" in capsys.readouterr().out
    assert run("sql", "SELECT 1", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "columns": ["n", "t"],
        "rows": [[1, "a"], [2, None]],
        "truncated": False,
    }
    assert run("sql", "SELECT 1", "--csv", "--rows-max", "7") == 0
    assert capsys.readouterr().out == "n,t\n1,a\n2,\n"
    assert fake.asked == [("SELECT 1", 1000), ("SELECT 1", 1000), ("SELECT 1", 7)]


def test_sql_says_when_there_are_more_rows_and_keeps_stdout_clean(engine, capsys):
    engine(Answer(columns=("n",), rows=((1,),), truncated=True))
    assert run("sql", "SELECT 1", "--csv", "--rows-max", "1") == 0
    captured = capsys.readouterr()
    assert captured.out == "n\n1\n"
    assert "Only the first 1 rows" in captured.err


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("sql", "SELECT 1", "--json", "--csv"), "choose one"),
        (("sql", "   "), "no statement"),
        (("sql", "SELECT 1", "--engine", "trio"), "'trio'; choose one of trino, spark, duckdb"),
        (("env", "--shell", "tcsh"), "'tcsh'; choose sh"),
        (("check-spec", "/nowhere/at/all.yaml"), "No such file"),
    ],
)
def test_wrong_input_exits_2_with_the_choices(arguments, part, capsys):
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert part in captured.err
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_an_engine_that_is_away_exits_3_without_a_stack_trace_and_with_one_on_demand(engine, capsys):
    engine(UnavailableError("Trino at http://trino:8080 does not answer: see docker compose logs trino"))
    assert run("sql", "SELECT 1") == 3
    error = capsys.readouterr().err
    assert error == "tarn: Trino at http://trino:8080 does not answer: see docker compose logs trino\n"
    assert run("--debug", "sql", "SELECT 1") == 3
    assert "Traceback" in capsys.readouterr().err


def test_a_stack_trace_writes_no_control_characters_of_others_to_the_terminal(engine, capsys):
    engine(UnavailableError("no answer: \x1b[2J"))
    assert run("--debug", "sql", "SELECT 1") == 3
    error = capsys.readouterr().err
    assert "UnavailableError: no answer: \\x1b[2J\n" in error
    assert "\x1b" not in error


def test_a_statement_the_engine_refuses_exits_2(engine, capsys):
    engine(InvalidError("Trino does not accept the statement: line 1:1"))
    assert run("sql", "SELEKT") == 2
    assert "line 1:1" in capsys.readouterr().err


def test_a_defect_exits_70_and_says_so(engine, capsys):
    engine(ZeroDivisionError("oops"))
    assert run("sql", "SELECT 1") == 70
    error = capsys.readouterr().err
    assert "unexpected ZeroDivisionError: oops. This is a defect of Tarn" in error
    assert "Traceback" not in error


def test_env_prints_exports_and_json_of_the_same_values(monkeypatch, capsys):
    monkeypatch.setenv("TARN_PORT_TRINO", "18080")
    assert run("env") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "export TARN_TRINO_URI=http://127.0.0.1:18080" in lines
    assert "export TARN_CATALOG_CREDENTIAL=cli-x:also-secret" in lines
    assert run("env", "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert len(values) == len(lines) == 23


def test_a_setting_that_cannot_be_used_is_named(monkeypatch, capsys):
    monkeypatch.setenv("TARN_PORT_TRINO", "99999")
    assert run("env") == 2
    assert "TARN_PORT_TRINO is '99999'" in capsys.readouterr().err
    monkeypatch.setenv("TARN_PORT_TRINO", "8080")
    monkeypatch.setenv("TARN_CATALOG_URI", "catalog:8181")
    assert run("status") == 2
    assert "TARN_CATALOG_URI is 'catalog:8181'" in capsys.readouterr().err


def test_missing_secrets_name_the_file_and_the_command(monkeypatch, tmp_path, capsys):
    (tmp_path / "catalog_credential").unlink()
    assert run("env") == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "catalog_credential") in error
    assert "scripts/up" in error


def test_check_spec_tells_the_good_from_the_bad(tmp_path, capsys):
    assert run("check-spec", str(SPEC)) == 0
    assert "ok. canary: tarn.canary -> ops.canary" in capsys.readouterr().out
    bad = tmp_path / "bad.yaml"
    bad.write_text(SPEC.read_text(encoding="utf-8").replace("batching", "bathing"), encoding="utf-8")
    assert run("check-spec", str(bad)) == 2
    assert "batching" in capsys.readouterr().err
    bad.write_text("{{{", encoding="utf-8")
    assert run("check-spec", str(bad)) == 2
    assert "bad.yaml" in capsys.readouterr().err


# kafka-python reads its schemas with a function that Python 3.11 and 3.12 (not 3.13) report as deprecated.
@pytest.mark.filterwarnings("ignore:(read|open)_text is deprecated:DeprecationWarning")
def test_status_of_a_stack_that_is_not_there_exits_1_and_names_every_service(monkeypatch, capsys):
    for name in ("S3_ENDPOINT", "CATALOG_URI", "TRINO_URI", "INGEST_URI", "GATEWAY_URI"):
        monkeypatch.setenv(f"TARN_{name}", "http://127.0.0.1:1")
    monkeypatch.setenv("TARN_KAFKA_BOOTSTRAP", "127.0.0.1:1")
    monkeypatch.setenv("TARN_SPARK_REMOTE", "sc://127.0.0.1:1")
    monkeypatch.setattr(wiring, "LOOK_S", 0.5)
    assert run("status", "--json") == 1
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    assert data["ok"] is False
    states = {state["service"]: state for state in data["services"]}
    assert set(states) == {"minio", "catalog", "kafka", "ingest", "gateway", "trino", "spark"}
    for name, state in states.items():
        assert not state["ok"]
        assert f"docker compose logs {name}" in state["detail"]
    assert set(data["faults"]) == {"tables", "sizes", "offsets", "ingest"}


class NotReady(BaseHTTPRequestHandler):
    """A gateway that serves, and can do nothing."""

    def do_GET(self) -> None:
        self.send_response(503 if self.path == "/health?ready" else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


def test_a_gateway_that_serves_without_store_or_catalog_is_down(monkeypatch):
    with ThreadingHTTPServer(("127.0.0.1", 0), NotReady) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            monkeypatch.setenv("TARN_GATEWAY_URI", f"http://127.0.0.1:{server.server_port}")
            (gateway,) = [one for one in wiring.looks(Settings.read()) if one.service == "gateway"]
            with pytest.raises(UnavailableError, match="answers 503; see docker compose logs gateway"):
                gateway.look()
        finally:
            server.shutdown()
            thread.join()


def test_a_canary_that_does_not_arrive_exits_1_with_every_stage_in_json(monkeypatch, capsys):
    from tests.unit.cli.test_canary import ROW, MemoryLog, MemoryReader, flight

    log = MemoryLog()
    readers = (MemoryReader("trino", [()]),)
    monkeypatch.setattr(
        wiring, "flight", lambda s, limits, tell, ready_names: flight(log=log, readers=readers)
    )
    monkeypatch.setattr(wiring, "canary_row", lambda note: ROW)
    assert run("canary", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    assert (data["ok"], data["row"]["id"]) == (False, ROW.id)
    assert [(s["name"], s["ok"]) for s in data["stages"]] == [
        ("kafka", True),
        ("ingest", True),
        ("trino", False),
        ("audit", True),
    ]


def test_a_canary_that_arrives_exits_0_and_prints_a_row_per_part(monkeypatch, capsys):
    from tests.unit.cli.test_canary import ROW, flight

    monkeypatch.setattr(wiring, "flight", lambda s, limits, tell, ready_names: flight(tell=tell))
    monkeypatch.setattr(wiring, "canary_row", lambda note: ROW)
    assert run("canary") == 0
    captured = capsys.readouterr()
    for part in ("kafka", "ingest", "pyiceberg", "trino", "spark", "audit"):
        assert part in captured.out
    assert "The canary went through everything" in captured.out
    assert "reading back with pyiceberg, trino, spark" in captured.err


@pytest.mark.long
def test_leaving_ends_the_process_even_with_a_hanging_thread():
    import subprocess
    import sys

    code = (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "from tarn.cli.main import main\n"
        "main(['version'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=50, check=False)
    assert (done.returncode, done.stdout) == (0, b"tarn 0.1.0\n")


@pytest.mark.long
def test_nothing_heavy_is_imported_for_a_light_command():
    import subprocess
    import sys

    code = (
        "import sys, tarn.cli.main\n"
        "print([m for m in ('pyspark', 'pyiceberg', 'trino', 'kafka', 'duckdb') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=50, check=True)
    assert done.stdout == b"[]\n"
    assert cli.app is not None


def test_ctrl_c_exits_130(monkeypatch, capsys):
    class Interrupted:
        def query(self, sql: str, *, rows_max: int):
            raise KeyboardInterrupt

    monkeypatch.setattr(wiring, "engine", lambda settings, name: Interrupted())
    assert run("sql", "SELECT 1") == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_table_that_is_not_there_is_a_mistake_in_the_statement(engine, capsys):
    engine(NoSuchTableError("there is no table ops.nothing"))
    assert run("sql", "SELECT * FROM ops.nothing") == 2
    assert "ops.nothing" in capsys.readouterr().err


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_statement_that_is_not_utf8_is_refused(engine, monkeypatch, capsys, errors):
    engine(Answer(columns=("a",), rows=((1,),)))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"SELECT 'caf\xe9'"), "utf-8", errors))
    assert run("sql", "-") == 2
    assert "could not read the statement from stdin: not UTF-8; write it in UTF-8" in capsys.readouterr().err


def test_an_argument_that_is_not_utf8_is_refused(engine, capsys):
    engine(Answer(columns=("a",), rows=((1,),)))
    assert run("sql", b"SELECT 'caf\xe9'".decode("utf-8", "surrogateescape")) == 2
    assert r"""the argument "SELECT 'caf\udce9'" is not UTF-8; write it in UTF-8""" in capsys.readouterr().err


def test_a_spec_from_the_host_keeps_its_name_in_messages(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(SPEC.read_text()))
    assert run("check-spec", "--shown-as", "my/orders.yaml", "-") == 0
    assert capsys.readouterr().out.startswith("my/orders.yaml: ok.")


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (("replay", "--speed", "0"), 2, "the speed is 0"),
        (("replay", "--rate", "-1"), 2, "the rate is -1"),
        (("replay", "--speed", "1", "--rate", "1"), 2, "choose one"),
        (("replay", "--head-start", "-2"), 2, "head-start"),
        (("load", "--late", "7"), 2, "late"),
        (("replay", "--speed", "600"), 0, ""),
        (("load",), 0, ""),
    ],
)
def test_the_options_of_a_play_can_be_checked_before_anything_is_stopped(words, code, named, capsys):
    assert run("demo", *words, "--check") == code
    assert named in capsys.readouterr().err
