"""Files of rows on their way to the store while their commit is prepared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tarn.core.errors import TarnError, UnavailableError
from tarn.core.table_files import EncodedFile, TableWriter
from tarn.core.table_state import WrittenFile

BEGUN_BYTES_MAX = 4 << 20
"""Files of more bytes are written before their commit begins, which would hold them in memory."""


class NotWrittenError(TarnError):
    """A file did not reach the store; unlike `UnavailableError` it ends a commit, which was not sent."""


def written(writer: TableWriter, files: Sequence[EncodedFile]) -> tuple[WrittenFile, ...]:
    """Write files, or begin to: what follows in a commit is then written at the same time.

    Returns:
        The files; `finish` of one that was begun raises NotWrittenError if it cannot be written.

    Raises:
        UnavailableError: the store does not respond.
    """
    if sum(len(file.data) for file in files) > BEGUN_BYTES_MAX:
        return writer.put(files)
    return tuple(map(_ending, writer.begin(files)))


def _ending(file: WrittenFile) -> WrittenFile:
    def finish() -> None:
        try:
            file.finish()
        except UnavailableError as e:
            raise NotWrittenError(e.message, **e.fields) from e

    return replace(file, finish=finish)
