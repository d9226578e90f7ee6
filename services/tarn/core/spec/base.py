"""What all parts of a spec share: strict models, and values as messages show them."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class SpecModel(BaseModel):
    """A part of a spec: unknown fields and values of another type are refused, and nothing changes later."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True, strict=True)


def shown(value: object) -> str:
    """The value for a message, cut if it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
