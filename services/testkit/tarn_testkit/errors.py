"""The error tree of the kit. A message says what is wrong, with the values, and what to do.

KitError
├── SetupError          the lake cannot be had: no engine, no clone, a stack that does not start
├── NeedsStackError     the embedded lake does not have this
├── NotInProfileError   the running stack does not have this service
├── NotAllowedError     a fault for a stack that others may be using
├── InvalidRowsError    rows that cannot be messages
├── IngestorError       an ingestor that does not run as declared
└── WaitError           (an AssertionError too) a condition that did not come true in time

An invalid spec is `tarn.core.errors.InvalidSpecError`, with field, value and what is allowed.
"""

from __future__ import annotations


class KitError(Exception):
    """Base of the kit's own errors."""


class SetupError(KitError):
    """The lake cannot be had."""


class NeedsStackError(KitError):
    """The embedded lake does not have this: it needs a running stack.

    Args:
        what: the subject of the message, such as `lake.trino`.
    """

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} needs a running stack, and this lake is embedded in the test's process. Run "
            "scripts/up and "
            'eval "$(scripts/tarn env)" in a clone of Tarn and then pytest in the same shell, or leave out '
            "--tarn-embedded where an engine (Docker) is there; mark the test with @pytest.mark.tarn_stack "
            "to "
            "have it skipped with --tarn-embedded"
        )


class NotInProfileError(KitError):
    """The running stack does not have this service."""


class NotAllowedError(KitError):
    """A fault for a stack that others may be using."""


class InvalidRowsError(KitError):
    """Rows that cannot be messages."""


class IngestorError(KitError):
    """An ingestor that does not run as declared."""


class WaitError(KitError, AssertionError):
    """A condition that did not come true in time."""
