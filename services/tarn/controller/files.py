"""The files of the spec folder are applied at start: a file changes only what it owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from tarn.core.control.admission import require_columns_of_log
from tarn.core.control.declared import Declared, Stamp, applied, deleted, owner_of_file
from tarn.core.control.registry import SpecEntry, SpecRegistry
from tarn.core.errors import AlreadyExistsError, CorruptStateError, InvalidSpecError, TarnError
from tarn.core.spec import Clash, IngestorSpec

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecFile:
    """A valid file of the folder.

    Attributes:
        spec: the spec.
        document: the same, as its author wrote it.
    """

    spec: IngestorSpec
    document: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class SpecFiles:
    """The files of the folder, and which of them are to be applied still.

    Attributes:
        files: file name to valid file.
        invalid: names of the other files; what they own stays as it is.
        refused: file name to why it is not applied.
        kept: ingestors whose files are gone, and which are not deleted as the folder has no file at all.
    """

    files: Mapping[str, SpecFile]
    invalid: frozenset[str] = frozenset()
    refused: dict[str, TarnError] = field(default_factory=dict)
    kept: frozenset[str] = frozenset()
    _applied: set[str] = field(default_factory=set)
    _swept: bool = False

    @property
    def done(self) -> bool:
        """Whether every file is applied or refused, and what is without a file is deleted."""
        return self._swept and not self._pending

    @property
    def _pending(self) -> Sequence[str]:
        return sorted(self.files.keys() - self._applied - self.refused.keys())

    def apply(self, registry: SpecRegistry, entries: Mapping[str, SpecEntry]) -> bool:
        """Apply what can be applied now; repeated until `done`.

        Args:
            registry: where the specs are.
            entries: its content.

        Returns:
            Whether the registry was changed.

        Raises:
            UnavailableError, OutcomeUnknownError, ForbiddenError: the store does not take it; nothing is
                lost.
        """
        changed = False
        self._refuse_doubles(entries)
        for file in self._pending:
            changed = self._apply(registry, file) or changed
        if not self._swept:
            if self.files or self.invalid:
                for name, entry in sorted(entries.items()):
                    changed = self._sweep(registry, name, entry.declared) or changed
            else:
                # Rather a folder that is not mounted, or another one, than a wish to delete everything.
                owned = (entry.declared for entry in entries.values())
                self.kept = frozenset(one.name for one in owned if one is not None and belongs_to_a_file(one))
            self._swept = True
        return changed

    def _apply(self, registry: SpecRegistry, file: str) -> bool:
        """Apply a file; whether that changed anything. One whose ingestor is being deleted stays pending."""
        found, owner = self.files[file], owner_of_file(file)
        before: list[Declared | None] = []

        def make(there: Declared | None, stamp: Stamp) -> Declared:
            before.append(there)
            if there is not None and there.deleting and not there.gone:
                return there
            moved = there is not None and there.file is not None and not self._names(there.file, there.name)
            return applied(there, found.document, file=file, owner=owner, stamp=stamp, take_over=moved)

        try:
            require_columns_of_log(found.spec, file=file)
            made = registry.change(found.spec.name, make)
        except (AlreadyExistsError, CorruptStateError, InvalidSpecError) as e:
            self.refused[file] = e
            return False
        if made.deleting:
            return False
        self._applied.add(file)
        if made != before[0]:
            log.info("spec applied", file=file, ingestor=made.name, generation=made.generation)
        return made != before[0]

    def _sweep(self, registry: SpecRegistry, name: str, there: Declared | None) -> bool:
        """Delete an ingestor whose file is gone, or is another ingestor's now."""
        if there is None or not belongs_to_a_file(there):
            return False
        if there.file in self.invalid or self._names(there.file, name):
            return False

        def make(now: Declared | None, stamp: Stamp) -> Declared:
            assert now is not None, "objects are never deleted"
            return deleted(now, stamp=stamp) if now.owner == there.owner and not now.gone else now

        made = registry.change(name, make)
        if made.deleting:
            log.warning("the file of an ingestor is gone: it is deleted", file=there.file, ingestor=name)
        return made.deleting

    def _names(self, file: str | None, name: str) -> bool:
        """Whether a file of the folder is the spec of this ingestor."""
        return file is not None and (
            file in self.invalid or (file in self.files and self.files[file].spec.name == name)
        )

    def _refuse_doubles(self, entries: Mapping[str, SpecEntry]) -> None:
        """Of files with one name, use the one whose spec is there already, or the first of equal ones."""
        by_name: dict[str, list[str]] = {}
        for file in sorted(self.files):
            by_name.setdefault(self.files[file].spec.name, []).append(file)
        for name, files in by_name.items():
            if len(files) < 2 or any(file in self._applied for file in files):
                continue
            entry = entries.get(name)
            owner = entry.declared.file if entry is not None and entry.declared is not None else None
            equal = all(self.files[file].spec == self.files[files[0]].spec for file in files)
            winner = owner if owner in files else files[0] if equal else None
            clash = Clash(files=tuple(files), about=f"metadata.name {name!r} is used twice")
            why = "neither has begun, so neither begins; change or remove one"
            if winner is not None:
                why = f"{winner} goes on; change or remove this one"
            for file in files:
                if file != winner and file not in self.refused:
                    self.refused[file] = clash.refusal(file, why=why)


def no_specs(names: Sequence[str]) -> str:
    """What to do about ingestors that belong to files of a folder without any."""
    return (
        f"the spec folder has no spec at all, and these ingestors belong to files of it: {', '.join(names)}. "
        "Nothing is deleted, and they run on; put the files back and restart ingest, or end each one with "
        "scripts/tarn delete NAME"
    )


def belongs_to_a_file(there: Declared) -> bool:
    """Whether it is there, and a file of the folder changes and deletes it."""
    return there.file is not None and not there.gone and not there.deleting
