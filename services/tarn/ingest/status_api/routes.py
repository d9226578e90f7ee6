"""The paths of the status API, each with the view that answers it and the class of its answer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import parse_qsl, unquote

from pydantic import BaseModel

from tarn.core.errors import InvalidError, NotFoundError
from tarn.ingest.status_api import fsck_view, models, table_views, views
from tarn.ingest.status_api.shapes import LIMIT as LIMIT_USUAL
from tarn.ingest.status_api.shapes import LIMIT_MAX, Query
from tarn.ingest.status_api.views import Engine
from tarn.ingest.table_look import position_of

NAME_CHARS_MAX = 500
"""Characters of a name in a path or a parameter."""
NUMBER_MAX = 2**53 - 1
"""Largest number of a commit that every JSON parser reads as it is."""
_NUMBER = re.compile(r"[0-9]{1,16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of a query.

    Attributes:
        name: its name.
        description: what it does.
        schema: its JSON schema.
        parse: its value from a text; raises ValueError with what is allowed.
        required: whether it must be there.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    parse: Callable[[str], int | str]
    required: bool = False


def _number(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
            raise ValueError(f"a whole number from {least} to {most}")
        return int(text)

    return parse


def _name(text: str) -> str:
    if not 1 <= len(text) <= NAME_CHARS_MAX:
        raise ValueError(f"a name of 1 to {NAME_CHARS_MAX} characters")
    return text


LIMIT = Parameter(
    name="limit",
    description="most entries of the answer",
    schema={"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_MAX},
    parse=_number(1, LIMIT_MAX),
)
COMMITS_LIMIT = Parameter(
    name="limit",
    description="most commits of the answer",
    schema={"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_USUAL},
    parse=_number(1, LIMIT_MAX),
)
AFTER = Parameter(
    name="after",
    description="the page begins after this name: `next` of the page before",
    schema={"type": "string", "minLength": 1, "maxLength": NAME_CHARS_MAX},
    parse=_name,
)
SINCE = Parameter(
    name="since",
    description="commits after this number, the first ones first: `next` of the answer before. Without it "
    "the last commits are answered",
    schema={"type": "integer", "minimum": 0, "maximum": NUMBER_MAX},
    parse=_number(0, NUMBER_MAX),
)


def _cursor(pattern: str, parse: Callable[[str], object]) -> Parameter:
    def checked(text: str) -> str:
        parse(text)
        return text

    return Parameter(
        name="after",
        description="the page begins after this place: `next` of the page before",
        schema={"type": "string", "pattern": pattern},
        parse=checked,
    )


INGESTOR = Parameter(
    name="ingestor",
    description="name of the ingestor that is struck",
    schema={"type": "string", "minLength": 1, "maxLength": NAME_CHARS_MAX},
    parse=_name,
    required=True,
)
FEW = Parameter(
    name="limit",
    description="most entries of the answer",
    schema={"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_USUAL},
    parse=_number(1, LIMIT_MAX),
)
AFTER_SNAPSHOT = _cursor(r"^-?[0-9]{1,20}\.-?[0-9]{1,20}\.-?[0-9]{1,20}$", table_views.snapshot_order)
AFTER_FILE = _cursor(r"^-?[0-9]{1,20}\.[0-9]{1,9}\.[0-9]{1,9}$", position_of)


@dataclass(frozen=True, kw_only=True)
class Route:
    """One path.

    Attributes:
        path: the path, with the name of its parameter in braces, if it has one.
        operation: its id.
        summary: what it answers.
        answer: class of the answer; None for the description of the API.
        view: makes the answer; None likewise.
        named: what the path's parameter is; empty without one.
        parameters: parameters of its query.
        waits: whether the view waits for the catalog and the store, and runs in a thread.
        method: HTTP method that it takes; another one than GET changes something, and needs the token.
    """

    path: str
    operation: str
    summary: str
    answer: type[BaseModel] | None = None
    view: Callable[[Engine, str, Query], BaseModel] | None = None
    named: str = ""
    parameters: tuple[Parameter, ...] = ()
    waits: bool = False
    method: str = "GET"

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """The paths of requests, percent-encoded."""
        return re.compile(re.sub(r"\\\{\w+\\\}", rf"([^/]{{1,{3 * NAME_CHARS_MAX}}})", re.escape(self.path)))


def _index(engine: Engine, _name: str, _query: Query) -> models.Index:
    return views.index(engine, [(route.path, route.summary) for route in ROUTES])


ROUTES: tuple[Route, ...] = (
    Route(
        path="/v1",
        operation="index",
        summary="what there is, and what keeps ingest from working",
        answer=models.Index,
        view=_index,
    ),
    Route(
        path="/v1/ingestors",
        operation="listIngestors",
        summary="ingestors: state, lag, counters, last commit",
        answer=models.Ingestors,
        view=lambda engine, _, query: views.ingestors(engine, query),
        parameters=(LIMIT, AFTER),
    ),
    Route(
        path="/v1/ingestors/{name}",
        operation="getIngestor",
        summary="one ingestor, with its partitions, readers and freshness",
        answer=models.Ingestor,
        view=lambda engine, name, _: views.ingestor(engine, name),
        named="ingestor",
    ),
    Route(
        path="/v1/tables",
        operation="listTables",
        summary="tables: rows, files, bytes, snapshots, freshness, who writes them",
        answer=models.Tables,
        view=lambda engine, _, query: views.tables(engine, query),
        parameters=(LIMIT, AFTER),
    ),
    Route(
        path="/v1/tables/{table}",
        operation="getTable",
        summary="one table, by namespace and name with dots between: also its format, storage and last audit",
        answer=models.Table,
        view=lambda engine, name, _: views.table(engine, name),
        named="table",
    ),
    Route(
        path="/v1/tables/{table}/snapshots",
        operation="listSnapshots",
        summary="the snapshots of a table that are kept, newest first",
        answer=models.Snapshots,
        view=table_views.snapshots,
        named="table",
        parameters=(FEW, AFTER_SNAPSHOT),
        waits=True,
    ),
    Route(
        path="/v1/tables/{table}/files",
        operation="listFiles",
        summary="the files of a table's current snapshot",
        answer=models.Files,
        view=table_views.files,
        named="table",
        parameters=(FEW, AFTER_FILE),
        waits=True,
    ),
    Route(
        path="/v1/tables/{table}/metadata",
        operation="getMetadata",
        summary="the objects that make a table, its columns, partitioning, branches and tags",
        answer=models.Metadata,
        view=lambda engine, name, _: table_views.metadata(engine, name),
        named="table",
        waits=True,
    ),
    Route(
        path="/v1/commits",
        operation="listCommits",
        summary="the last commits of the ingestors of this process, or those after a number",
        answer=models.Commits,
        view=lambda engine, _, query: views.commits(engine, query),
        parameters=(COMMITS_LIMIT, SINCE),
    ),
    Route(
        path="/v1/storage",
        operation="getStorage",
        summary="what the tables take in the store: data, metadata, history, and what waits for deletion",
        answer=models.Storage,
        view=lambda engine, _, query: views.storage(engine, query),
        parameters=(LIMIT, AFTER),
    ),
    Route(
        path="/v1/audits",
        operation="listAudits",
        summary="the last audit of each table that ingestors fill",
        answer=models.Audits,
        view=lambda engine, _, query: views.audits(engine, query),
        parameters=(LIMIT, AFTER),
    ),
    Route(
        path="/v1/fsck",
        operation="getFsck",
        summary="what fsck found last in the whole lake, how old that is, and a run without a result since",
        answer=models.Fsck,
        view=lambda engine, _name, _query: fsck_view.fsck(engine),
    ),
    Route(
        path="/v1/services",
        operation="listServices",
        summary="what ingest needs, as it was looked at last",
        answer=models.Services,
        view=lambda engine, _name, _query: views.services(engine),
    ),
    Route(
        path="/v1/page",
        operation="getPage",
        summary="what the page at / has to know",
        answer=models.Page,
        view=lambda engine, _name, _query: views.page(engine),
    ),
    Route(
        path="/v1/faults",
        operation="listFaults",
        summary="the last faults that were made by hand, with what became of them",
        answer=models.Faults,
        view=lambda engine, _name, _query: views.strikes(engine),
    ),
    Route(
        path="/v1/faults/{kind}",
        operation="makeFault",
        summary="make a fault: drop-reply or kill-writer; only where TARN_FAULTS is on",
        answer=models.Strike,
        view=views.strike,
        named="fault",
        parameters=(INGESTOR,),
        method="POST",
    ),
    Route(
        path="/v1/openapi.json",
        operation="describe",
        summary="an OpenAPI description with the schema of each answer",
    ),
)


def route_of(path: str) -> tuple[Route, str]:
    """The route of a request's path, and the name in it.

    Args:
        path: the path, still percent-encoded.

    Raises:
        NotFoundError: there is none.
    """
    for route in ROUTES:
        found = route.pattern.fullmatch(path)
        if found is None:
            continue
        try:
            return route, unquote(found[1], errors="strict") if route.named else ""
        except UnicodeDecodeError:
            break
    raise NotFoundError(
        f"there is nothing at {path[:200]!r}; GET /v1 lists what there is",
        field="path",
        value=path[:200],
        fix="GET /v1 lists what there is",
    )


def query_of(text: str, parameters: Iterable[Parameter]) -> Query:
    """What a query asks for.

    Args:
        text: what follows the question mark.
        parameters: parameters that are known.

    Raises:
        InvalidError: a parameter is unknown, is there twice, or has a value that is not allowed.
    """
    known = {one.name: one for one in parameters}
    found: dict[str, Any] = {}
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=20, errors="strict")
    except ValueError:
        raise _wrong("query", text, "is not one of NAME=VALUE, percent-encoded", "leave it out") from None
    for name, value in pairs:
        if name not in known:
            names = ", ".join(sorted(known)) or "none is taken here"
            raise _wrong(name, value, "is not a parameter", f"leave it out; parameters: {names}")
        if name in found:
            raise _wrong(name, value, "is there twice", "send it once")
        try:
            found[name] = known[name].parse(value)
        except ValueError as e:
            raise _wrong(name, value, "is not allowed", f"send {e}") from None
    for name, one in known.items():
        if one.required and name not in found:
            raise _wrong(name, "", "is missing", f"send {one.description}")
    return Query(**found)


def _wrong(field: str, value: str, why: str, fix: str) -> InvalidError:
    field, value = field[:100], value[:100]
    return InvalidError(f"{field}={value!r} {why}; {fix}", field=field, value=value, fix=fix)
