"""A bill of materials from an inventory, and notes that must be complete, true and not overdue."""

from __future__ import annotations

import datetime as datetime_module
import json
import runpy
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from tarn_host.console import StopError
from tarn_host.sbom import command, inside

NOW = datetime(2026, 11, 21, tzinfo=UTC)
FOUND: dict[str, Any] = {
    "debian": [
        {
            "name": "libc6",
            "version": "2.41-12",
            "architecture": "amd64",
            "source": "glibc",
            "source_version": "1",
        }
    ],
    "python": [{"name": "Flask_X", "version": "1.0+local", "path": "/opt/venv"}],
    "jars": [
        {
            "path": "/lib/core-1.2.jar",
            "sha256": "ab" * 32,
            "maven": [
                {"groupId": "org.a", "artifactId": "core", "version": "1.2"},
                {"groupId": "org.b", "artifactId": "inside", "version": "3"},
            ],
        },
        {"path": "/lib/kafka_2.13-4.2.2.jar", "sha256": "cd" * 32, "maven": []},
    ],
    "go": [{"path": "/bin/x", "modules": [{"name": "github.com/a/b", "version": "v1.0.0"}]}],
}
NOTE = {
    "id": "CVE-1",
    "images": ["x"],
    "purl": "pkg:generic/kafka_2.13",
    "state": "resolved",
    "detail": "fixed",
}


def test_every_kind_of_package_has_its_name() -> None:
    bill = command.document("x", "tarn/x:dev", FOUND, [NOTE], NOW)
    assert [c["purl"] for c in bill["components"]] == [
        "pkg:deb/debian/libc6@2.41-12?arch=amd64",
        f"pkg:generic/kafka_2.13@4.2.2?checksum=sha256:{'cd' * 32}",
        "pkg:golang/github.com/a/b@v1.0.0",
        "pkg:maven/org.a/core@1.2",
        "pkg:maven/org.b/inside@3",
        "pkg:pypi/flask-x@1.0%2Blocal",
    ]
    hashes = {c["name"]: c["hashes"][0]["content"] for c in bill["components"] if "hashes" in c}
    assert hashes == {"core": "ab" * 32, "kafka_2.13": "cd" * 32}
    (hole,) = bill["vulnerabilities"]
    assert hole["affects"] == [{"ref": f"pkg:generic/kafka_2.13@4.2.2?checksum=sha256:{'cd' * 32}"}]


def test_the_same_content_has_the_same_serial_number() -> None:
    one = command.document("x", "tarn/x:dev", FOUND, [], NOW)
    two = command.document("x", "tarn/x:dev", {**FOUND, "go": []}, [], NOW)
    assert one["serialNumber"] == command.document("x", "tarn/x:dev", FOUND, [], NOW)["serialNumber"]
    assert one["serialNumber"] != two["serialNumber"]


def test_a_note_on_what_is_not_there_is_refused() -> None:
    with pytest.raises(StopError, match="CVE-1 names pkg:pypi/none, which the image does not hold"):
        command.document("x", "tarn/x:dev", FOUND, [{**NOTE, "purl": "pkg:pypi/none"}], NOW)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"state": "fine"}, "has the state fine"),
        ({"detail": None}, "lacks detail"),
        ({"state": "exploitable"}, "is open and its `until` is missing"),
        ({"state": "in_triage", "until": "soon"}, "is open and its `until` is soon"),
    ],
)
def test_a_note_says_everything(changed: dict[str, Any], told: str) -> None:
    note = {key: value for key, value in {**NOTE, **changed}.items() if value is not None}
    with pytest.raises(StopError, match=told):
        command.read_notes(json.dumps([note]))


def test_a_note_that_has_run_out_is_reported_and_still_read() -> None:
    open_note = {**NOTE, "state": "in_triage", "until": "2026-11-20"}
    notes = command.read_notes(json.dumps([open_note, NOTE]))
    assert len(notes) == 2
    assert command.overdue(notes, date(2026, 11, 20)) == []
    (found,) = command.overdue(notes, date(2026, 11, 21))
    assert "CVE-1" in found.what
    assert "until 2026-11-20" in found.what


@pytest.mark.long
def test_the_tests_of_the_images_can_be_collected_after_every_note_has_run_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Later(date):
        @classmethod
        def today(cls) -> Later:
            return cls(2099, 1, 1)

    monkeypatch.setattr(datetime_module, "date", Later)
    collected = runpy.run_path(str(command.ROOT / "tests/integration/sbom/test_sbom.py"))
    assert command.overdue(collected["NOTES"], Later.today()), "no note has run out by then"
    assert any(name.startswith("test_") for name in collected)


def test_our_own_notes_are_complete() -> None:
    notes = command.read_notes(command.NOTES.read_text(encoding="utf-8"))
    assert {"CVE-2026-40344", "CVE-2026-34204"} <= {note["id"] for note in notes}


def test_none_of_our_own_notes_has_run_out() -> None:
    """Fails from a note's review date on, so that it gets reviewed; all other tests still run."""
    notes = command.read_notes(command.NOTES.read_text(encoding="utf-8"))
    assert command.overdue(notes, date.today()) == []


def go_binary(version: bytes = b"go1.26.8") -> bytes:
    """What is read of a Go program: the header of its build information, and its list of modules."""
    modules = b"dep\tgithub.com/a/b\tv1.0.0\th1:x=\n"
    header = inside.GO_MAGIC + bytes([8, 2])
    header += bytes(inside.GO_VERSION_AT - len(header)) + bytes([len(version)]) + version
    return b"ELF" + header + b"path\tx\nmod\tx\t(devel)\t\n" + modules + b"build\t-compiler=gc\n"


def test_a_go_program_names_its_modules_and_its_go(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(go_binary())
    found = inside.go_program(tmp_path / "x")["modules"]
    assert {(m["name"], m["version"]) for m in found} == {
        ("stdlib", "1.26.8"),
        ("x", "(devel)"),
        ("github.com/a/b", "v1.0.0"),
    }
    (tmp_path / "x").write_bytes(go_binary(version=b"go1.27.0 X:nocoverageredesign"))
    assert inside.go_program(tmp_path / "x")["modules"][0]["version"] == "1.27.0"


@pytest.mark.parametrize("version", [b"", b"devel +abc"])
def test_a_go_program_without_a_version_is_refused(tmp_path: Path, version: bytes) -> None:
    (tmp_path / "x").write_bytes(go_binary(version=version))
    with pytest.raises(SystemExit, match="version of Go"):
        inside.go_program(tmp_path / "x")
