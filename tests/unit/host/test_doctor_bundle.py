"""The support bundle: what looks like a secret is removed, and unsearchable files are omitted."""

from __future__ import annotations

import json
import subprocess
import tarfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from tarn_host import shell
from tarn_host.console import StopError
from tarn_host.doctor import bundle
from tarn_host.doctor.bundle import clean
from tarn_host.doctor.facts import Container, Facts
from tarn_host.doctor.redact import redacted
from tarn_host.stack.engine import Engine, Machine
from tarn_host.stack.project import Project

CANARY = "c4n4ry-0f-t4rn-5ecret"


@pytest.mark.parametrize(
    "text",
    [
        f"TARN_KAFKA_PASSWORD={CANARY}",
        f"export AWS_SECRET_ACCESS_KEY='{CANARY}'",
        f"AWS_SECRET_ACCESS_KEY={CANARY} command",
        f'{{"client_secret": "{CANARY}", "x": 1}}',
        f'{{"level": "info", "password":"{CANARY}"}}',
        f"    TARN_TOKEN: {CANARY}",
        f"Authorization: Bearer {CANARY}",
        f'"Authorization": "Basic {CANARY}"',
        f"http://user:{CANARY}@host/path",
        f"http://x/?X-Amz-Signature={CANARY}&y=1",
        f"-----BEGIN PRIVATE KEY-----\n{CANARY}\n-----END PRIVATE KEY-----",
        f"login with bearer {CANARY}",
        f"spark.sql.catalog.tarn.s3.secret-access-key = {CANARY}",
        json.dumps({"body": json.dumps({"client_secret": CANARY, "x": 1})}),
        json.dumps([json.dumps({"body": json.dumps({"password": CANARY})})]),
        f"http://user:p@{CANARY}@host/path",
        f'{{"password": "it\'s-{CANARY}", "x": 1}}',
        f"password: 'a\"b-{CANARY}'",
        json.dumps({"password": f'a"b-{CANARY}'}),
        json.dumps({"body": json.dumps({"password": f'a"b-{CANARY}'})}),
        f'{{"password": "{CANARY}',
        f"kafka-configs --password {CANARY} --list",
        f'mc --password "{CANARY} and more"',
        f"mc --password '{CANARY}'",
        f"sh -c 'mc --password \"{CANARY}\"'",
        json.dumps({"Cmd": ["mc", "--password", CANARY, "--list"]}),
        json.dumps({"body": json.dumps(["mc", "--password", CANARY])}),
        f'mc --password a"b-{CANARY}',
        f"password: 'it''s-{CANARY}'",
        f"PASSWORD=it's-{CANARY}",
        json.dumps({"Env": [f'PASSWORD=a"b-{CANARY}', "X=1"]}),
    ],
)
def test_what_looks_like_a_secret_goes(text: str) -> None:
    out, count = redacted(text)
    assert CANARY not in out
    assert "[secret]" in out
    assert count >= 1


@pytest.mark.long
@pytest.mark.parametrize(
    "text",
    [
        "a",
        "\\",
        "eyJ",
        "\n",
        "secret",
        "password=",
        "http://u:",
        "a.b-",
        '\\"',
        "@",
        "-----BEGIN PRIVATE KEY-----",
    ],
)
def test_long_lines_are_searched_in_time_that_grows_as_they_do(text: str) -> None:
    """A megabyte without a space took days."""
    for prefix in ("", 'password":"', "http://u:", "--password "):
        started = time.thread_time()
        redacted(prefix + text * (200_000 // len(text)))
        assert time.thread_time() - started < 10


def test_the_end_of_a_text_begins_with_a_whole_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "TEXT_BYTES_MAX", 200)
    line = f"TARN_TOKEN={CANARY}\n"
    for spare in range(len(line)):
        kept = bundle._end(line + "x" * (bundle.TEXT_BYTES_MAX - spare - 1) + "\n")
        assert kept.startswith("(cut)\n")
        assert not any(CANARY[at:] in redacted(kept)[0] for at in range(len(CANARY) - 4))


@pytest.mark.parametrize(
    "text",
    [
        "TARN_SECRETS_DIR=/run/tarn/secrets",
        "secret written consumer spark",
        "http://127.0.0.1:9000/bucket",
        "2026-11-21 INFO token of 12 characters",
        '"Source": "/var/lib/docker/volumes/x_secrets-minio/_data"',
        "secrets-spark: {}",
        "docker run --secret-file /run/tarn/secrets/x --token --list",
        '["--token", "--list", "--secret-file", "/run/tarn/secrets/x"]',
        "{'password': '', 'x': ''}",
    ],
)
def test_what_is_none_stays(text: str) -> None:
    assert redacted(text) == (text, 0)


def test_no_more_than_the_value_goes() -> None:
    text = json.dumps({"password": f'a"b-{CANARY}', "port": 1, "body": json.dumps({"token": "x", "y": 2})})
    kept = '{"password": "[secret]", "port": 1, "body": "{\\"token\\": \\"[secret]\\", \\"y\\": 2}"}'
    assert redacted(text) == (kept, 2)
    made = {"Env": ["A_TOKEN=x", "B=1"], "Cmd": ["--password", 'a"', "--list"], "sh": "TOKEN='x' B='1'"}
    kept = '{"Env": ["A_TOKEN=[secret]", "B=1"], "Cmd": ["--password", "[secret]", "--list"], '
    assert redacted(json.dumps(made)) == (kept + """"sh": "TOKEN='[secret]' B='1'"}""", 3)


def test_jwt_and_access_keys_go_wherever_they_stand() -> None:
    jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"
    out, count = redacted(f"got {jwt} and AKIAIOSFODNN7EXAMPLE")
    assert (out, count) == ("got [secret] and [secret]", 2)


TEXTS = {
    "logs/x.log": f"bare {CANARY} in a line",
    "inspect.json": f'["{CANARY}"]',
    "disk.txt": "10 GiB",
    "env.txt": f"MY_PASSWORD={CANARY}",
}


def test_values_are_looked_for_first_and_counted() -> None:
    def by_value(texts: Mapping[str, str]) -> tuple[dict[str, str], int]:
        return {name: text.replace(CANARY, "[secret]") for name, text in texts.items()}, 3

    cleaned = clean(TEXTS, by_value)
    assert (cleaned.by_value, cleaned.replaced, cleaned.left_out) == (True, 3, ())
    assert CANARY not in json.dumps(dict(cleaned.texts))


def failing(texts: Mapping[str, str]) -> tuple[dict[str, str], int]:
    raise StopError("secrets could not be looked for: x")


@pytest.mark.parametrize("by_value", ["no engine answers", failing])
def test_what_may_hold_a_secret_is_left_out_where_values_could_not_be_looked_for(by_value: object) -> None:
    cleaned = clean(TEXTS, by_value)  # type: ignore[arg-type]
    assert cleaned.by_value is False
    assert cleaned.left_out == ("inspect.json", "logs/x.log")
    assert sorted(cleaned.texts) == ["disk.txt", "env.txt"]
    assert cleaned.why
    assert CANARY not in json.dumps(dict(cleaned.texts))


FACTS = Facts(
    root="/x",
    project="tarn-1",
    now_unix=0.0,
    engine=Engine(server=None, error="no", compose=None, data_root="/d", memory_bytes=None),
    machine=Machine(linux=True, root=False, debian=False, has_dockerd=False, systemd=False, docker_host=""),
)
HERE = Project(name="tarn-1", base="b", own_base=True, settings={})


RUNNING = replace(
    FACTS,
    engine=Engine(server="27.0", error="", compose="2.30", data_root="/d", memory_bytes=None),
    containers=(Container(service="catalog", name="tarn-1-catalog-1", state="running"),),
    config_error="invalid interpolation format",
)


def listing(monkeypatch: pytest.MonkeyPatch, rows: str, code: int = 0) -> list[list[str]]:
    """Fake of the engine, which lists these volumes and removes the canary; returns the runs of its image."""
    runs: list[list[str]] = []

    def capture(command: list[str], **_: object) -> shell.Result:
        assert command[:3] == ["docker", "volume", "ls"]
        return shell.Result(code, rows, "")

    def run(command: list[str], *, input: bytes, **_: object) -> subprocess.CompletedProcess[bytes]:
        runs.append(command)
        texts = {n: t.replace(CANARY, "[secret]") for n, t in json.loads(input).items()}
        said = json.dumps({"texts": texts, "replaced": 2}).encode()
        return subprocess.CompletedProcess(command, 0, said, b"")

    monkeypatch.setattr(shell, "capture", capture)
    monkeypatch.setattr(bundle.subprocess, "run", run)
    return runs


def test_values_are_looked_for_although_the_configuration_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = "tarn-1_secrets-cli\ttarn-1\ntarn-1_minio-data\ttarn-1\ntarn-12_secrets-cli\ttarn-12\n"
    runs = listing(monkeypatch, rows)
    cleaned = clean(TEXTS, bundle.values_of(HERE, RUNNING))
    assert (cleaned.by_value, cleaned.left_out) == (True, ())
    assert CANARY not in json.dumps(dict(cleaned.texts))
    assert [word for word in runs[0] if "secrets-" in word] == ["tarn-1_secrets-cli:/secrets/cli:ro"]


@pytest.mark.parametrize(
    ("code", "why"), [(0, "no volume of secrets was found"), (1, "the engine does not list its volumes")]
)
def test_without_volumes_of_secrets_a_stack_is_not_called_searched(
    monkeypatch: pytest.MonkeyPatch, code: int, why: str
) -> None:
    listing(monkeypatch, "", code)
    for facts in (RUNNING, replace(RUNNING, config_error=""), replace(RUNNING, containers=())):
        cleaned = clean(TEXTS, bundle.values_of(HERE, facts))
        assert (cleaned.by_value, cleaned.why) == (False, why)
        assert CANARY not in json.dumps(dict(cleaned.texts))


def test_a_stack_that_was_never_started_has_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = listing(monkeypatch, "tarn-12_secrets-cli\ttarn-12\n")
    cleaned = clean(
        {"disk.txt": "x"}, bundle.values_of(HERE, replace(RUNNING, config_error="", containers=()))
    )
    assert (cleaned.by_value, cleaned.left_out, runs) == (True, (), [])


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "gather", lambda here, facts: dict(TEXTS))


def test_the_archive_holds_the_cleaned_texts_and_says_what_was_left_out(
    gathered: None, tmp_path: Path
) -> None:
    path = tmp_path / "b.tar.gz"
    bundle.write(HERE, FACTS, '{"ok": true}', path)
    assert path.stat().st_mode & 0o077 == 0
    with tarfile.open(path) as archive:
        bodies = {m.name: archive.extractfile(m).read().decode() for m in archive}  # type: ignore[union-attr]
    assert sorted(bodies) == [
        f"tarn-support/{n}" for n in ("disk.txt", "doctor.json", "env.txt", "manifest.json")
    ]
    manifest = json.loads(bodies["tarn-support/manifest.json"])
    assert manifest["left_out"] == ["inspect.json", "logs/x.log"]
    assert manifest["why_left_out"] == "no engine answers"
    assert CANARY not in "".join(bodies.values())


def test_nothing_is_overwritten_and_only_archives_are_written(gathered: None, tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_text("mine")
    with pytest.raises(StopError, match="is there already"):
        bundle.write(HERE, FACTS, "{}", path)
    assert path.read_text() == "mine"
    with pytest.raises(StopError, match=r"a bundle is a \.tar\.gz"):
        bundle.write(HERE, FACTS, "{}", tmp_path / "b.zip")
    with pytest.raises(StopError, match="cannot be written"):
        bundle.write(HERE, FACTS, "{}", tmp_path / "none" / "b.tar.gz")
