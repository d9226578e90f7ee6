"""Settings from environment variables."""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings

from tarn.core.errors import InvalidSettingError

T = TypeVar("T", bound=BaseSettings)


def read(kind: type[T]) -> T:
    """Read the settings of this class from the environment.

    Raises:
        InvalidSettingError: a variable is invalid; names the first one.
    """
    try:
        return kind()
    except ValidationError as error:
        first = error.errors()[0]
        name = f"TARN_{str(first['loc'][0]).upper()}"
        raise InvalidSettingError(
            f"{name} is {first['input']!r}: {first['msg']}; see Settings in docs/reference.md", setting=name
        ) from error
