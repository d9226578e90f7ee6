"""docs/reference.md as data: what services, secrets and rights there are, stated apart from the code."""

from __future__ import annotations

from tests.support.pages import section, tables, text_of

TEXT = text_of("docs/reference.md")
NONE = "\u2013"


def table(heading: str, first: str = "") -> list[dict[str, str]]:
    """The rows of the first table below a heading, or of the one whose first column has this name."""
    return next(rows for rows in tables(section(TEXT, heading)) if first in ("", next(iter(rows[0]))))


def words(cell: str) -> list[str]:
    """The words of a cell that lists some, separated by commas."""
    return [] if cell == NONE else [word.strip() for word in cell.split(",")]


def uids() -> dict[str, int]:
    """Service -> the uid that it runs as."""
    return {row["service"]: int(row["uid"].split()[0]) for row in table("Services, users, ports")}


def secrets() -> dict[str, set[str]]:
    """Consumer -> names of its secret files."""
    return {row["consumer"]: set(words(row["files"])) for row in table("Secrets", "consumer")}


def holders(file: str) -> set[str]:
    """The consumers that hold a secret file."""
    return {consumer for consumer, files in secrets().items() if file in files}


def kafka_users() -> set[str]:
    """The users of Kafka that have rows of their own, without the admin."""
    found = [row["user"] for row in table("Kafka's users and what they may do")]
    return set(found) - {found[0], "everybody"}
