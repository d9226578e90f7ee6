"""What a reader does about an error that is not the notebook's: out of order, twice, on half a lake.

The errors are those of pyiceberg, Trino, Spark and Python, which say what is wrong and not what to do. They
are known by the names of their classes and by their codes: to import their modules would take seconds.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

BEFORE = "a cell above was not run, or failed: run the cells from the top, in their order."
TWICE = "this cell has run before: run the cell with lab.reset(), and go on from the top."
PERHAPS_TWICE = (
    "if this cell or one above it has run before: run the cell with lab.reset(), and go on from the top. If "
    "none has, the lake is not as it should be: on the host, scripts/doctor says what is wrong."
)
AWAY = (
    "a service of the lake does not answer, or is still starting: on the host, scripts/tarn status says "
    "which, and scripts/doctor what to do. Then run this cell again."
)
CLOSED = (
    "a notebook reads everything, and writes only in namespaces that begin with ws_ and to topics that begin "
    "with workshop.: lab.name(…) and lab.topic(…) are names of your own."
)
FOREIGN = (
    "the table has something that this library does not know, such as a type of column; ask Trino or Spark "
    "about it (docs/engines.md), or take a table of your own: lab.name(…) is its name."
)

ENDED = (
    "Spark has ended this notebook's session: nobody used it for an hour, or Spark was started again. "
    "Kernel, Restart Kernel; then go on from the top, with the cell lab.reset()."
)

_BY_CLASS = {
    "NameError": BEFORE,
    "NoSuchTableError": BEFORE,
    "NoSuchNamespaceError": BEFORE,
    "NoSuchTopicError": BEFORE,
    "TableAlreadyExistsError": TWICE,
    "StoreRefusedError": PERHAPS_TWICE,
    "ServiceUnavailableError": AWAY,
    "ServerError": AWAY,
    "TrinoConnectionError": AWAY,
    "Http502Error": AWAY,
    "Http503Error": AWAY,
    "Http504Error": AWAY,
    "ConnectionError": AWAY,
    "UnavailableError": AWAY,
    "ForbiddenError": CLOSED,
}
_BY_WORDS = (
    # A fact, a wait of the lab, and pyiceberg about a column that a cell adds.
    (AssertionError, "not so: ", PERHAPS_TWICE),
    (TimeoutError, " and it did not come: ", PERHAPS_TWICE),
    (ValueError, "already exists", TWICE),
    # pyiceberg meets a type that it does not know where it validates the metadata of a table.
    (Exception, "Unsupported field type", FOREIGN),
)
_BY_CLASS_ALONE = {
    # That of a call without an answer. What Spark has answered is one of its many subclasses, and says itself
    # what is wrong.
    "SparkConnectGrpcException": AWAY,
}
_BY_CODE = {
    "TABLE_NOT_FOUND": BEFORE,
    "SCHEMA_NOT_FOUND": BEFORE,
    "TABLE_OR_VIEW_NOT_FOUND": BEFORE,
    "SCHEMA_NOT_FOUND_EXCEPTION": BEFORE,
    "TABLE_ALREADY_EXISTS": TWICE,
    "TABLE_OR_VIEW_ALREADY_EXISTS": TWICE,
    "INVALID_HANDLE": ENDED,
    "SERVER_STARTING_UP": AWAY,
    "CATALOG_NOT_AVAILABLE": AWAY,
    # Trino's words for what the catalog has refused are "Failed to create transaction".
    "ICEBERG_CATALOG_ERROR": CLOSED,
}


def advice(error: BaseException) -> str:
    """What to do about an error; empty for one that says so itself, or that nobody knows anything about."""
    if "scripts/tarn status" in str(error):
        return ""
    code = _code(error)
    if code == "ICEBERG_COMMIT_ERROR" and "Forbidden" in str(error):
        return CLOSED
    if code in _BY_CODE:
        return _BY_CODE[code]
    if type(error).__name__ in _BY_CLASS_ALONE:
        return _BY_CLASS_ALONE[type(error).__name__]
    for kind in type(error).__mro__:
        found = _BY_CLASS.get(kind.__name__)
        if found is not None:
            return found
    said = str(error)
    return next((text for kind, words, text in _BY_WORDS if isinstance(error, kind) and words in said), "")


def advise_readers() -> None:
    """Have the notebook print what to do below the traceback of an error; nothing outside of a notebook."""
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is not None:
        shell.set_custom_exc((Exception,), _shown)  # type: ignore[no-untyped-call]


def _shown(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trace: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    text = advice(error)
    if text:
        print(f"→ What to do: {text}")  # noqa: T201 - below the traceback, for the reader


def _code(error: BaseException) -> str:
    """The code of an error of Trino or Spark; empty for others."""
    name = getattr(error, "error_name", None)
    if isinstance(name, str):
        return name
    condition = getattr(error, "getCondition", None)
    try:
        return str(condition() or "").partition(".")[0] if callable(condition) else ""
    except Exception:  # noqa: BLE001 - an error whose code cannot be had is one without
        return ""
