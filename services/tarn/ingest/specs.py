"""Spec files of a folder: the good ones, and what is wrong with the others. A bad file stops only itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tarn.core.errors import InvalidSettingError, InvalidSpecError
from tarn.core.spec import IngestorSpec, check_together, parse_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a folder holds, by file name."""

    specs: dict[str, IngestorSpec]
    errors: dict[str, InvalidSpecError]


def load_specs(folder: Path) -> Loaded:
    """All `*.yaml` and `*.yml` files of the folder.

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
    for name, error in check_together(specs).items():
        errors[name] = error
        del specs[name]
    return Loaded(specs=specs, errors=errors)
