"""Audit of one table: its metadata and their chain, its snapshots, and every file that they reference."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise

from tarn.core.audit.model import Finding, Kind, SizeOf, Table, statistics_of

TOLD_MAX = 5
"""Maximum number of objects of one kind listed by name per table; the rest is counted."""

_VERSION = re.compile(r"/(\d+)-[^/]*\.metadata\.json$")
CLOCKS_DIFFER_MS = 1_000
FROM_BACKUP = "restore a backup, or roll the table back to a snapshot that is whole"


def version_of(location: str) -> int | None:
    """Version number in the name of a metadata file; None if it has none."""
    found = _VERSION.search(location)
    return int(found.group(1)) if found else None


def judge_table(table: Table, size_of: SizeOf) -> Iterator[Finding]:
    """Yield all findings about one table, except those about its offsets."""
    yield from judge_log(table)
    yield from judge_ahead(table)
    yield from judge_refs(table)
    yield from judge_objects(table, size_of)
    yield from judge_doubles(table)


def judge_log(table: Table) -> Iterator[Finding]:
    """Check that each earlier metadata file exists, belongs to the table and names its predecessor.

    Versions must increase.
    """
    where, current = table.name, table.pointer.metadata or ""
    if table.pointer.uuid != table.uuid:
        yield Finding(
            kind=Kind.METADATA_OTHER,
            where=where,
            what=f"the pointer is of table {table.pointer.uuid}, the metadata it names of {table.uuid}",
            fix=f"restore {table.pointer.key} from a backup",
        )
    missing = [logged.location for logged in table.logged if logged.size_bytes is None]
    if missing:
        yield Finding(
            kind=Kind.LOG_MISSING,
            where=where,
            what=f"{len(missing)} of {len(table.logged)} earlier metadata files are gone: {_some(missing)}",
            fix="readable as it is; the table cannot be registered at those versions any more",
        )
    before = None
    for logged in table.logged:
        if logged.size_bytes is not None and logged.uuid != table.uuid:
            yield Finding(
                kind=Kind.LOG_BROKEN,
                where=where,
                what=f"its log names {logged.location}, which is of table {logged.uuid or '(unreadable)'}",
                fix=FROM_BACKUP,
            )
        elif before is not None and logged.uuid is not None and logged.parent != before:
            yield Finding(
                kind=Kind.LOG_BROKEN,
                where=where,
                what=f"{logged.location} says that {logged.parent} came before it, the log {before}",
                fix="keep everything as it is and report it: two histories were joined",
            )
        before = logged.location
    names = [*(logged.location for logged in table.logged), current]
    versions = [version for name in names if (version := version_of(name)) is not None]
    if any(later <= earlier for earlier, later in pairwise(versions)):
        yield Finding(
            kind=Kind.LOG_BROKEN,
            where=where,
            what=f"the versions of its metadata do not grow: {', '.join(map(str, versions[-TOLD_MAX:]))}",
            fix="keep everything as it is and report it: two histories were joined",
        )


def judge_ahead(table: Table) -> Iterator[Finding]:
    """Check whether the pointer is behind its own table.

    One file ahead may be the remains of a killed commit. Two of them, one built on the other, prove that the
    first was committed and the pointer was set back; if the pointer was written after both, it was
    deliberate.
    """
    current = table.pointer.metadata
    behind = {ahead.location for ahead in table.ahead if ahead.parent == current}
    proofs = [ahead for ahead in table.ahead if ahead.parent in behind]
    written_ms = table.pointer.written_ms or 0
    late = [ahead for ahead in table.ahead if ahead.updated_ms + CLOCKS_DIFFER_MS >= written_ms]
    if proofs and late:
        newest = max(table.ahead, key=lambda ahead: (version_of(ahead.location) or 0, ahead.updated_ms))
        yield Finding(
            kind=Kind.METADATA_OLD,
            where=table.name,
            what=f"the pointer names {current}, and commits were built on it up to {newest.location}: "
            "the pointer was put back, and what was committed since does not show",
            fix=f"stop who writes to the table; drop it without purge and register {newest.location}",
        )
    elif behind and late:
        yield Finding(
            kind=Kind.METADATA_AHEAD,
            where=table.name,
            what=f"{sorted(behind)[0]} was built on the current metadata and is in no history",
            fix="nothing, if a commit was killed or is under way; otherwise the pointer was put back by one",
        )


def judge_refs(table: Table) -> Iterator[Finding]:
    """Check that every branch and tag, and the current snapshot id, refers to a snapshot in the metadata."""
    known = {snapshot["snapshot-id"] for snapshot in table.snapshots}
    for name, ref in table.refs.items():
        if ref.get("snapshot-id") not in known:
            yield Finding(
                kind=Kind.REF,
                where=table.name,
                what=f"{ref.get('type', 'ref')} {name} points at snapshot {ref.get('snapshot-id')}, "
                f"which is none of the {len(known)} that are kept",
                fix="remove or move it: ALTER TABLE … DROP TAG, or set it to a snapshot that is kept",
            )
    current = table.metadata.get("current-snapshot-id")
    if current not in (None, -1) and current not in known:
        yield Finding(
            kind=Kind.REF,
            where=table.name,
            what=f"the current snapshot {current} is none of the {len(known)} that are kept",
            fix=FROM_BACKUP,
        )
    elif "main" in table.refs and current != table.refs["main"].get("snapshot-id"):
        yield Finding(
            kind=Kind.REF,
            where=table.name,
            what=f"the current snapshot is {current}, main is at {table.refs['main'].get('snapshot-id')}",
            fix=FROM_BACKUP,
        )


def judge_objects(table: Table, size_of: SizeOf) -> Iterator[Finding]:
    """Check that every manifest list, manifest, data, delete and statistics file exists with its stated size.

    Objects that exist but cannot be read are reported too.
    """
    needed = list(table.lists)
    stated: dict[str, tuple[Kind, int]] = {}
    for entries in table.lists.values():
        for manifest in entries or ():
            stated.setdefault(manifest.path, (Kind.MANIFEST, manifest.bytes))
    for files in table.manifests.values():
        for entry in files or ():
            stated.setdefault(entry.path, (Kind.DELETES if entry.deletes else Kind.FILE, entry.bytes))
    for path, size in statistics_of(table.metadata):
        stated.setdefault(path, (Kind.STATISTICS, size))
    gone: dict[Kind, list[str]] = {}
    other: list[str] = []
    for location in needed:
        if size_of(location) is None:
            gone.setdefault(Kind.LIST, []).append(location)
    for location, (kind, size) in stated.items():
        found = size_of(location)
        if found is None:
            gone.setdefault(kind, []).append(location)
        elif found != size:
            other.append(f"{location} ({found} bytes, stated {size})")
    for kind, missing in gone.items():
        yield Finding(
            kind=kind,
            where=table.name,
            what=f"{len(missing)} missing: {_some(missing)}{_since(table, missing, kind)}",
            fix=FROM_BACKUP if kind is not Kind.STATISTICS else "compute the statistics again: ANALYZE",
        )
    if other:
        yield Finding(
            kind=Kind.SIZE,
            where=table.name,
            what=f"{len(other)} of another size than stated: {_some(other)}",
            fix=FROM_BACKUP,
        )
    for location, why in table.unreadable.items():
        yield Finding(kind=Kind.UNREADABLE, where=table.name, what=f"{location}: {why}", fix=FROM_BACKUP)


def judge_doubles(table: Table) -> Iterator[Finding]:
    """Check that no data file is live twice in one snapshot.

    A file appears in several manifests of a table, as manifests are merged; two of them must not be in one
    snapshot. Only pairs of manifests that share a file are checked, not every file of every snapshot.
    """
    holders: dict[str, str | tuple[str, ...]] = {}
    twice: dict[str, str] = {}
    for manifest, files in table.manifests.items():
        for entry in files or ():
            if entry.deletes:
                continue
            held = holders.get(entry.path)
            if held is None:
                holders[entry.path] = manifest
            elif held == manifest or (isinstance(held, tuple) and manifest in held):
                twice.setdefault(entry.path, f"twice in {manifest}")
            else:
                holders[entry.path] = (*held, manifest) if isinstance(held, tuple) else (held, manifest)
    members = _members(table)
    clash: dict[tuple[str, ...], bool] = {}
    for path, held in holders.items():
        if isinstance(held, str):
            continue
        if held not in clash:
            seen = [members.get(manifest, 0) for manifest in held]
            clash[held] = any(a & b for n, a in enumerate(seen) for b in seen[n + 1 :])
        if clash[held]:
            twice.setdefault(path, f"in {len(held)} manifests of one snapshot")
    if twice:
        shown = [f"{path} ({how})" for path, how in twice.items()]
        yield Finding(
            kind=Kind.DOUBLE,
            where=table.name,
            what=f"{len(shown)} files are live twice, and their rows are read twice: {_some(shown)}",
            fix="roll back to the snapshot before, and report it",
        )


def _members(table: Table) -> Mapping[str, int]:
    """Manifest to the snapshots that include it, one bit each."""
    found: dict[str, int] = {}
    for number, snapshot in enumerate(table.snapshots):
        for manifest in table.lists.get(snapshot.get("manifest-list", "")) or ():
            found[manifest.path] = found.get(manifest.path, 0) | 1 << number
    return found


def _since(table: Table, missing: list[str], kind: Kind) -> str:
    """Which snapshots are affected; whether the current one is decides what a person does."""
    if kind not in (Kind.FILE, Kind.DELETES, Kind.MANIFEST, Kind.LIST):
        return ""
    gone, touched = set(missing), []
    for snapshot in table.snapshots:
        location = snapshot.get("manifest-list", "")
        manifests = table.lists.get(location) or ()
        if (
            location in gone
            or any(manifest.path in gone for manifest in manifests)
            or (kind in (Kind.FILE, Kind.DELETES) and any(f.path in gone for f in table.files_of(snapshot)))
        ):
            touched.append(snapshot["snapshot-id"])
    current = "the current one too" if table.head_id in touched else "not the current one"
    return f"; {len(touched)} of {len(table.snapshots)} snapshots need them, {current}"


def _some(values: list[str]) -> str:
    return "; ".join(values[:TOLD_MAX]) + (
        f"; and {len(values) - TOLD_MAX} more" if len(values) > TOLD_MAX else ""
    )
