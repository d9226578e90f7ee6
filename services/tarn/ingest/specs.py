"""Spec files of a folder: the valid ones, and the errors of the others. An invalid file stops only itself.

Files that claim the same name, stream or table are not resolved by file order: the one whose table already
has its stream wins, which only the tables can show (`tarn.ingest.service`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tarn.core.errors import InvalidSettingError, InvalidSpecError
from tarn.core.spec import Clash, IngestorSpec, clashes, parse_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Content of a spec folder, by file name.

    Attributes:
        specs: valid specs, including those of a clash.
        errors: errors of the other files.
        clashes: groups of valid specs that exclude each other.
    """

    specs: dict[str, IngestorSpec]
    errors: dict[str, InvalidSpecError]
    clashes: tuple[Clash, ...] = ()

    @property
    def contested(self) -> frozenset[str]:
        """File names of all clashes."""
        return frozenset(file for clash in self.clashes for file in clash.files)


def load_specs(folder: Path) -> Loaded:
    """Load all `*.yaml` and `*.yml` files of the folder.

    Raises:
        InvalidSettingError: the folder cannot be read.
    """
    try:
        files = sorted(p for p in folder.iterdir() if p.suffix in (".yaml", ".yml") and p.is_file())
    except OSError as e:
        raise InvalidSettingError(
            f"spec folder {folder} cannot be read: {e.strerror}; set TARN_SPECS_DIR", folder=str(folder)
        ) from e
    specs: dict[str, IngestorSpec] = {}
    errors: dict[str, InvalidSpecError] = {}
    for path in files:
        try:
            specs[path.name] = parse_spec(path.read_text(encoding="utf-8"), file=path.name)
        except InvalidSpecError as e:
            errors[path.name] = e
        except (OSError, UnicodeDecodeError) as e:
            errors[path.name] = InvalidSpecError(f"{path.name}: cannot be read: {e}", file=path.name)
    return Loaded(specs=specs, errors=errors, clashes=tuple(clashes(specs)))
