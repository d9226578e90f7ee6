"""Files of rows on their way to the store while their commit is prepared."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

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


def give_up(files: Sequence[WrittenFile]) -> None:
    """Let go of files that no commit will have: what is not written yet is neither written nor held."""
    for file in files:
        file.leave(False)


def _nothing_else() -> None:
    """What else a commit requires, by default."""


@dataclass(slots=True)
class _Sent:
    files: Sequence[WrittenFile] = ()
    require: Callable[[], None] = _nothing_else
    error: Exception | None = None


class Sending:
    """The files of the commit that a seat makes: one that cannot be written ends its waits for all else.

    A store that takes no writes keeps the commit from its manifest too, for which it would wait for ever.
    """

    def __init__(self) -> None:
        self._now = _Sent()

    @contextmanager
    def of(self, files: Sequence[WrittenFile], require: Callable[[], None] = _nothing_else) -> Iterator[None]:
        """Within the block these are the files; what `require` raises ends the waits of the commit too."""
        self._now = _Sent(files, require)
        try:
            yield
        finally:
            self._now = _Sent()

    def look(self, _reason: str) -> None:
        """Before a wait of the commit: wait for its files, as `Bookkeeper.seat` calls `on_wait`."""
        now = self._now
        try:
            for file in now.files if now.error is None else ():
                file.finish()
        except Exception as e:  # noqa: BLE001 - raised by `require_going`, where it ends this commit alone
            now.error = e

    def require_going(self) -> None:
        """Require that no file was found not to be written, and what else the commit requires.

        See `require_going` of `Bookkeeper.seat`.

        Raises:
            Exception: what kept a file from the store, or what `require` raises.
        """
        now = self._now
        if now.error is not None:
            raise now.error
        now.require()
