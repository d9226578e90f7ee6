"""scripts/sbom: the software in each image as CycloneDX, with a note on each known vulnerability.

The format is CycloneDX 1.6 (ECMA-424); component names are package URLs (purl).
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tarn_host import shell
from tarn_host.arguments import Parser
from tarn_host.console import Problem, StopError, line, problem, stopped
from tarn_host.stack import engine, images, project
from tarn_host.stack.project import ROOT

INSIDE = Path(__file__).with_name("inside.py")
NOTES = ROOT / "docs/vulnerabilities.json"
FOLDER = ROOT / "artifacts/sbom"
TIMEOUT_S = 180
STATES = {"resolved", "exploitable", "in_triage", "not_affected"}
OPEN = {"exploitable", "in_triage"}
ISO_DAY = re.compile(r"^\d{4}-\d\d-\d\d$")
HELP = """Write one CycloneDX file per image: its Debian packages, Python packages, jars and Go modules, and
what is known of holes in them (docs/vulnerabilities.json). Looks into the images that scripts/up built and
needs no network."""
FILE_NAME = re.compile(r"^(.+?)-(\d[\w.+-]*)$")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run scripts/sbom and return its exit code."""
    parser = Parser(prog="scripts/sbom", description=HELP)
    parser.add_argument(
        "images", nargs="*", metavar="image", help="minio, kafka, ...; all where none is named"
    )
    parser.add_argument("--into", type=Path, default=FOLDER, metavar="FOLDER", help="default: artifacts/sbom")
    options = parser.parse_args(arguments)
    try:
        write_all(options.images, options.into)
    except StopError as error:
        return stopped(error)
    return 0


def write_all(wanted: Sequence[str], folder: Path) -> None:
    """Write the bill of materials of each image to a file.

    Raises:
        StopError: there is no engine, an image is unknown, or an image is not built.
    """
    if engine.look().server is None:
        raise StopError("no container engine answers", "start it, or run scripts/up, which does")
    here = project.load()
    known = {
        t.image.partition(":")[0].partition("/")[2]: t.image
        for t in images.targets(images.compose_config(here))
    }
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise StopError(f"no such image: {', '.join(unknown)}", f"choose from: {' '.join(sorted(known))}", 2)
    notes = read_notes(NOTES.read_text(encoding="utf-8"))
    for item in overdue(notes, date.today()):
        problem(item)
    folder.mkdir(parents=True, exist_ok=True)
    for name in wanted or sorted(known):
        bill = document(name, known[name], inventory(known[name]), notes, datetime.now(timezone.utc))
        path = folder / f"{name}.cdx.json"
        path.write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        line(f"  {path}: {len(bill['components'])} components, {len(bill['vulnerabilities'])} notes on holes")


def inventory(image: str) -> dict[str, Any]:
    """The inventory that a program inside the image collects.

    Raises:
        StopError: the image does not exist, or the program failed.
    """
    command = ["docker", "run", "--rm", "--interactive", "--pull", "never", "--network", "none"]
    command += ["--cap-drop", "ALL", "--entrypoint", "python3", image, "-I", "-"]
    try:
        done = subprocess.run(
            command,
            input=INSIDE.read_bytes(),
            capture_output=True,
            timeout=TIMEOUT_S,
            env=shell.environment(),
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise StopError(f"looking into {image} took longer than {TIMEOUT_S} s", "run it again") from None
    if done.returncode != 0:
        last_line = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise StopError(
            f"could not look into {image}: {' '.join(last_line)}", "scripts/up builds the images first"
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def read_notes(text: str) -> list[dict[str, Any]]:
    """The notes on known vulnerabilities; an open one requires a review date. Pure.

    Raises:
        StopError: a note is incomplete.
    """
    notes: list[dict[str, Any]] = json.loads(text)
    for note in notes:
        name = note.get("id", "a note without id")
        missing = {"id", "images", "purl", "state", "detail"} - set(note)
        if missing or note["state"] not in STATES:
            said = f"lacks {', '.join(sorted(missing))}" if missing else f"has the state {note['state']}"
            raise StopError(
                f"{name} in docs/vulnerabilities.json {said}", f"states: {', '.join(sorted(STATES))}"
            )
        if note["state"] in OPEN and not ISO_DAY.match(str(note.get("until", ""))):
            raise StopError(
                f"{name} is open and its `until` is {note.get('until', 'missing')}",
                "give it `until`, the day to look again, such as 2027-03-31",
            )
    return notes


def overdue(notes: Sequence[Mapping[str, Any]], today: date) -> list[Problem]:
    """The open notes whose review date has passed: reported, but the files are still written. Pure."""
    return [
        Problem(
            f"{note['id']} in docs/vulnerabilities.json was left open until {note['until']}",
            "look whether it is closed upstream; renew the day or remove the note",
        )
        for note in notes
        if note["state"] in OPEN and date.fromisoformat(note["until"]) < today
    ]


def document(
    name: str, image: str, found: Mapping[str, Any], notes: Sequence[Mapping[str, Any]], now: datetime
) -> dict[str, Any]:
    """The bill of materials of one image. Pure.

    Args:
        name: name of the image.
        image: its tag in the engine.
        found: the inventory.
        notes: notes on known vulnerabilities.
        now: timestamp of the document.

    Raises:
        StopError: a note names a component that the image does not contain.
    """
    components = _unique(
        [*_debian(found), *_python(found["python"]), *_jars(found["jars"]), *_go(found["go"])]
    )
    identity = hashlib.sha256(json.dumps(components, sort_keys=True).encode()).hexdigest()
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "serialNumber": f"urn:uuid:{uuid.UUID(identity[:32])}",
        "metadata": {
            "timestamp": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "container",
                "name": f"tarn/{name}",
                "bom-ref": f"tarn/{name}",
                "version": image,
            },
        },
        "components": components,
        "vulnerabilities": [_vulnerability(note, components) for note in notes if name in note["images"]],
    }


def _vulnerability(note: Mapping[str, Any], components: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    hit = [c["bom-ref"] for c in components if c["purl"].partition("@")[0] == note["purl"]]
    if not hit:
        raise StopError(
            f"{note['id']} names {note['purl']}, which the image does not hold",
            "correct docs/vulnerabilities.json",
        )
    analysis = {"state": note["state"], "detail": note["detail"]}
    for key in ("justification", "response"):
        if key in note:
            analysis[key] = note[key]
    found = {
        "id": note["id"],
        "bom-ref": note["id"],
        "analysis": analysis,
        "affects": [{"ref": r} for r in hit],
    }
    if "until" in note:
        found["properties"] = [{"name": "tarn:until", "value": note["until"]}]
    return found


def _debian(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        _component(
            p["name"],
            p["version"],
            f"pkg:deb/debian/{_quoted(p['name'])}@{_quoted(p['version'])}?arch={p['architecture']}",
            {"tarn:source": f"{p['source']} {p['source_version']}"},
        )
        for p in found["debian"]
    ]


def _python(packages: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    return [
        _component(
            p["name"],
            p["version"],
            f"pkg:pypi/{p['name'].lower().replace('_', '-')}@{_quoted(p['version'])}",
            {"tarn:path": p["path"]},
        )
        for p in packages
    ]


def _jars(jars: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Components of the jars, by Maven name or else file name, with the contents of fat jars."""
    rows = []
    for jar in jars:
        stem = Path(jar["path"]).name[: -len(".jar")]
        own = [m for m in jar["maven"] if stem == f"{m['artifactId']}-{m['version']}"]
        rows += [_maven(m, jar) for m in own[:1]]
        if not own:
            parts = FILE_NAME.match(stem)
            name, version = parts.groups() if parts else (stem, "")
            at = f"@{_quoted(version)}" if version else ""
            purl = f"pkg:generic/{_quoted(name)}{at}?checksum=sha256:{jar['sha256']}"
            rows.append({**_component(name, version, purl, {"tarn:path": jar["path"]}), **_hash(jar)})
        rows += [_maven(m, {"path": jar["path"]}) for m in jar["maven"] if m not in own]
    return rows


def _maven(name: Mapping[str, str], jar: Mapping[str, Any]) -> dict[str, Any]:
    purl = f"pkg:maven/{_quoted(name['groupId'])}/{_quoted(name['artifactId'])}@{_quoted(name['version'])}"
    found = _component(name["artifactId"], name["version"], purl, {"tarn:path": jar["path"]})
    return {**found, "group": name["groupId"], **_hash(jar)}


def _hash(jar: Mapping[str, Any]) -> dict[str, Any]:
    return {"hashes": [{"alg": "SHA-256", "content": jar["sha256"]}]} if "sha256" in jar else {}


def _go(programs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [
        _component(
            m["name"],
            m["version"],
            f"pkg:golang/{quote(m['name'], safe='/')}@{_quoted(m['version'])}",
            {"tarn:path": program["path"]},
        )
        for program in programs
        for m in program["modules"]
        if m["version"] != "(devel)"
    ]


def _component(name: str, version: str, purl: str, facts: Mapping[str, str]) -> dict[str, Any]:
    return {
        "type": "library",
        "name": name,
        "version": version,
        "purl": purl,
        "bom-ref": purl,
        "properties": [{"name": key, "value": value} for key, value in facts.items()],
    }


def _unique(components: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each component once, sorted by name."""
    by_ref = {c["bom-ref"]: c for c in reversed(components)}
    return [by_ref[ref] for ref in sorted(by_ref)]


def _quoted(text: str) -> str:
    return quote(text, safe="")


if __name__ == "__main__":
    sys.exit(main())
