"""Columns that keep JSON as text: the value at a path just as it was sent, or what no column reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import orjson
import pyarrow as pa

from tarn.core.json_values import WrongTypeError
from tarn.core.spec import REST, FieldSpec

PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Parser of a message into its keys, each with the text of its value."""
_NULL = b"null"


class JsonTexts:
    """The text columns of a spec.

    Args:
        fields: all columns of the spec.
    """

    def __init__(self, fields: Sequence[FieldSpec]) -> None:
        self._fields = tuple(field for field in fields if field.encoding == "json")
        passed = {key for field in fields for key in field.passes}
        self._read = frozenset(field.path[0] for field in fields if field.source != REST) | passed

    def of(self, values: Sequence[bytes]) -> tuple[dict[str, pa.Array], dict[int, str]]:
        """Texts of messages that are JSON objects.

        Returns:
            Column name to its texts, and {index: reason} of messages that have none.
        """
        found: dict[str, list[str | None]] = {field.name: [] for field in self._fields}
        wrong: dict[int, str] = {}
        for i, value in enumerate(values):
            texts: Mapping[str, str | None] = {}
            try:
                texts = self._texts(value)
            except WrongTypeError as e:
                wrong[i] = str(e)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
                wrong[i] = f"its JSON cannot be kept as text: {e}"
            for name, column in found.items():
                column.append(texts.get(name))
        return {name: pa.array(column, pa.string()) for name, column in found.items()}, wrong

    def _texts(self, value: bytes) -> dict[str, str | None]:
        top = PARTS.decode(value)
        found: dict[str, str | None] = {}
        for field in self._fields:
            if field.source == REST:
                rest = {key: bytes(raw) for key, raw in top.items() if key not in self._read}
                found[field.name] = _object_text(rest) if rest else None
            else:
                raw = text_at(field.path, top)
                found[field.name] = None if raw in (None, _NULL) else str(raw, "utf-8")
        return found


def text_at(path: Sequence[str], top: Mapping[str, msgspec.Raw]) -> bytes | None:
    """The text at a path of a message; None if there is none, or an object on the way is null.

    Raises:
        WrongTypeError: something on the way is no object.
        MsgspecError, RecursionError: the message cannot be read so.
    """
    here = top
    for depth, key in enumerate(path):
        raw = bytes(here[key]).strip() if key in here else None
        if raw in (None, _NULL) or depth == len(path) - 1:
            return raw
        try:
            here = PARTS.decode(raw or b"")
        except msgspec.ValidationError:
            raise WrongTypeError(f"{'.'.join(path[: depth + 1])}: expected an object") from None
    return None


def _object_text(parts: Mapping[str, bytes]) -> str:
    inner = b",".join(orjson.dumps(key) + b":" + raw for key, raw in parts.items())
    return str(b"{" + inner + b"}", "utf-8")
