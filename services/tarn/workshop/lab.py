"""A notebook's connection to the lake, and its conversation with its reader."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from tarn.core.errors import InvalidError, TarnError, UnavailableError
from tarn.workshop import progress as shown
from tarn.workshop.advice import advice, advise_readers
from tarn.workshop.notebooks import NOTEBOOKS, Notebook, notebook
from tarn.workshop.running import watch_cells
from tarn.workshop.settings import WorkshopSettings, read_settings, require_student
from tarn.workshop.verdict import Verdict, wrong
from tarn.workshop.web import Answer, Web

if TYPE_CHECKING:
    import pandas as pd
    from pyarrow.fs import FileSystem
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from tarn.client import RowWriter
    from tarn.workshop.ingestors import Ingestors
    from tarn.workshop.topics import Place, Row, Topics

T = TypeVar("T")

INGEST_READY_S = 60.0
READY = "Running"
PRINCIPAL = "jupyter"


def open_lab(number: str, *, student: str | None = None) -> Lab:
    """Open a notebook of the workshop, and print where it stands; nothing is connected before it is used.

    Args:
        number: the notebook's number, as in "03".
        student: whose notebook it is; None for `TARN_STUDENT`, or "student".

    Raises:
        NotFoundError: there is no notebook of this number.
        InvalidError, InvalidSettingError: the name cannot be part of a namespace, or a variable is invalid.
    """
    settings = read_settings()
    lab = Lab(notebook(number), settings, settings.student if student is None else student)
    advise_readers()
    watch_cells()
    lab.say(lab.introduction)
    return lab


class Lab:
    """The workshop's side of one notebook.

    Args:
        about: the notebook.
        settings: where the lake is.
        student: whose notebook it is.
        say: prints a line.

    Attributes:
        student: whose notebook it is.
        size: factor of loops and row counts: 1.0, less with `TARN_WORKSHOP_SIZE=small`.
    """

    def __init__(
        self,
        about: Notebook,
        settings: WorkshopSettings,
        student: str,
        say: Callable[[str], None] = print,
    ) -> None:
        self.about = about
        self.student = require_student(student)
        self.size = settings.size
        self.say = say
        self._settings = settings
        self._facts: list[str] = []
        self._solved: set[str] = set()
        self._named: set[str] = set()

    # -- names

    @property
    def introduction(self) -> str:
        """Who is where, for how long, and to what end."""
        about = self.about
        return (
            f"{about.number} · {about.title} · about {about.minutes} minutes\n"
            f"Afterwards you {about.aim}.\n"
            f"You are {self.student}; your tables are in {self.namespace}, your topics begin with "
            f"{self.topic('')}"
        )

    @property
    def namespace(self) -> str:
        """The student's namespace in the catalog; created with the first use of `catalog`."""
        return f"ws_{self.student}"

    def name(self, table: str) -> str:
        """The qualified name of one of the student's tables."""
        self._named.add(table)
        return f"{self.namespace}.{table}"

    def topic(self, name: str) -> str:
        """The full name of one of the student's topics."""
        if name:
            self._named.add(name)
        return f"workshop.{self.student}.{name}"

    def ingestor(self, name: str) -> str:
        """The full name of one of the student's ingestors."""
        self._named.add(name)
        return f"ws-{self.student}-{name}"

    # -- the lake

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog by pyiceberg, as the notebooks' principal, with keys that it vends for each table.

        Raises:
            UnavailableError: the catalog does not answer.
        """
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import ServerError, ServiceUnavailableError

        settings = self._settings
        try:
            catalog = load_catalog(
                "tarn",
                type="rest",
                uri=settings.catalog_uri,
                warehouse=settings.warehouse,
                credential=settings.secret("catalog_credential"),
            )
            catalog.create_namespace_if_not_exists(self.namespace)
        # What requests raises, and what a catalog answers that is still starting.
        except (OSError, ServerError, ServiceUnavailableError) as e:
            raise UnavailableError(
                f"the catalog does not answer at {settings.catalog_uri} ({type(e).__name__}); on the host, "
                "scripts/tarn status says whether it runs, and scripts/doctor what to do",
                service="catalog",
            ) from e
        return catalog

    @cached_property
    def spark(self) -> SparkSession:
        """A session of Spark Connect, which lives as long as the notebook."""
        from pyspark.sql import SparkSession

        from tarn.adapters.spark_remote import with_token

        self._require_namespace()
        remote = with_token(self._settings.spark_remote, self._settings.secrets_dir)
        return SparkSession.builder.remote(remote).getOrCreate()

    def trino(self, sql: str) -> pd.DataFrame:
        """Run one statement on Trino as the notebooks' principal, and return its rows.

        Raises:
            trino.exceptions.TrinoUserError: Trino does not accept the statement.
        """
        import pandas as pd

        cursor = self._trino.cursor()
        rows = cursor.execute(sql).fetchall()
        return pd.DataFrame(rows, columns=[column[0] for column in cursor.description or ()])

    @cached_property
    def _trino(self) -> Any:
        from urllib.parse import urlsplit

        import trino.dbapi

        self._require_namespace()
        where = urlsplit(self._settings.trino_uri)
        _, _, own_secret = self._settings.secret("catalog_credential").partition(":")
        return trino.dbapi.connect(  # type: ignore[no-untyped-call]
            host=where.hostname,
            port=where.port,
            user=PRINCIPAL,
            extra_credential=[("secret", own_secret)],
            catalog="tarn",
            timezone="UTC",
        )

    def _require_namespace(self) -> None:
        """Have the student's namespace be there, for SQL that creates tables in it."""
        _ = self.catalog

    @cached_property
    def store(self) -> FileSystem:
        """The object store with the notebooks' own key, which reads files of tables; paths: bucket, key."""
        from urllib.parse import urlsplit

        from pyarrow import fs

        access = self._settings.store_access()
        where = urlsplit(access["endpoint"])
        return fs.S3FileSystem(
            endpoint_override=where.netloc,
            scheme=where.scheme,
            region=access["region"],
            access_key=access["access_key_id"],
            secret_key=access["secret_access_key"],
        )

    @cached_property
    def topics(self) -> Topics:
        """The student's topics."""
        from tarn.workshop.topics import Topics

        return Topics(self._settings.kafka_bootstrap, self._settings.kafka_login())

    @cached_property
    def ingestors(self) -> Ingestors:
        """The student's ingestors."""
        from tarn.adapters.store import S3Store
        from tarn.workshop.ingestors import Ingestors

        return Ingestors(S3Store(**self._settings.store_access()), Web("ingest", self._settings.ingest_uri))

    @property
    def gateway(self) -> str:
        """The gateway's address."""
        return self._settings.gateway_uri

    @cached_property
    def _principal(self) -> Any:
        from tarn.adapters.catalog_client import RestCatalog

        settings = self._settings
        own = settings.secret("catalog_credential")
        return RestCatalog(settings.catalog_uri, warehouse=settings.warehouse, credential=lambda: own)

    def token(self) -> str:
        """A token of the notebooks' principal, for the gateway and the catalog's REST API."""
        found: str = self._principal.token()
        return found

    def rest(
        self, method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request to the catalog's REST API, with the notebooks' token.

        Args:
            method: GET, POST and the like.
            path: below the catalog's address, as in "v1/namespaces".
            body: what is sent as JSON; None for nothing.
            headers: more headers.

        Raises:
            UnavailableError: the catalog does not answer.
        """
        self._require_namespace()
        return Web("catalog", self._settings.catalog_uri).ask(
            method, path, body, headers={**(headers or {}), "Authorization": f"Bearer {self.token()}"}
        )

    def writer(self, table: str, **options: Any) -> RowWriter:
        """Return a writer of rows through the gateway; `options` are those of `tarn.client.writer`."""
        from tarn.client import writer

        settings = self._settings
        own = {
            "gateway": settings.gateway_uri,
            "catalog": settings.catalog_uri,
            "credential": settings.secret("catalog_credential"),
        }
        return writer(table, **{**own, **options})

    def produce(
        self,
        topic: str,
        rows: Iterable[Row],
        *,
        partitions: int = 2,
        key: Callable[[Row], str] | None = None,
    ) -> list[Place]:
        """Send rows as JSON to a topic, created if need be; return (partition, offset) of each.

        Args:
            topic: its full name, see `topic`.
            rows: mappings.
            partitions: of a topic that is created.
            key: makes the key of a row's message: rows of one key are in one partition, in order.

        Raises:
            ForbiddenError: the topic is not one of the workshop.
            UnavailableError: Kafka does not answer.
        """
        self.topics.create(topic, partitions=partitions)
        return self.topics.produce(topic, rows, key=key)

    def ingest(self, spec: str | Mapping[str, Any], *, seconds: float = INGEST_READY_S) -> str:
        """Declare an ingestor as `scripts/tarn apply` does, and wait until it runs; return its name.

        Args:
            spec: its spec, as YAML or as a mapping.
            seconds: the longest wait.

        Raises:
            InvalidSpecError: the spec is invalid, or not one that a notebook may declare.
            TimeoutError: it does not run in time; says what ingest says about it.
        """
        self._require_namespace()
        name = self.ingestors.apply(spec)

        def runs() -> bool:
            found = self.ingestors.status(name)
            if found["state"] != READY:
                why = ": ".join(str(found[key]) for key in ("reason", "message") if found.get(key))
                raise UnavailableError(f"it is {found['state']}, {why or 'and says no reason'}")
            return True

        self.until(runs, f"ingestor {name} to run", seconds=seconds)
        return name

    def status(self, path: str) -> Any:
        """What ingest says of itself and the lake: a path below /v1, as in "ingestors/NAME" or "tables/NAME".

        Raises:
            NotFoundError: there is nothing there.
            UnavailableError: ingest does not answer.
        """
        return Web("ingest", self._settings.ingest_uri).get(f"v1/{path.lstrip('/')}")

    def rows(self, table: str) -> int:
        """The number of live rows of a table; 0 if it does not exist, or has no snapshot."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            found = self.catalog.load_table(table)
        except NoSuchTableError:
            return 0
        snapshot = found.current_snapshot()
        if snapshot is None or snapshot.summary is None:
            return 0
        summary = snapshot.summary.additional_properties
        if int(summary.get("total-delete-files", 0)) == 0 and "total-records" in summary:
            return int(summary["total-records"])
        return int(self.trino(f"SELECT count(*) FROM {table}").iloc[0, 0])  # noqa: S608 - the reader's own table

    # -- with the reader

    def until(self, condition: Callable[[], T], what: str, *, seconds: float = 60.0) -> T:
        """Call a condition until its result is true, and return that; see `tarn.workshop.progress.until`.

        Raises:
            TimeoutError: the time is over; says what is missing.
        """
        return shown.until(condition, what, seconds=seconds)

    def progress(self, items: Iterable[T], what: str) -> Iterator[T]:
        """Yield the items, with a bar that says how many of them are done."""
        return shown.progress(items, what)

    def fact(self, statement: str, holds: object, detail: str = "") -> None:
        """Print a statement that holds on this lake.

        Args:
            statement: the statement.
            holds: whether it is true.
            detail: the observed values.

        Raises:
            AssertionError: it is not true.
        """
        seen = f" ({detail})" if detail else ""
        if not holds:
            raise AssertionError(f"not so: {statement}{seen}")
        self._facts.append(statement)
        self.say(f"✓ {statement}" + (f"  {seen.strip()}" if seen else ""))

    def check(self, exercise: str, answer: object) -> None:
        """Say whether the answer to an exercise is right, or what is wrong about it. Raises nothing.

        Args:
            exercise: its number, as in "1".
            answer: the answer.
        """
        self._solved.discard(exercise)
        if answer is ...:
            self.say(f"○ exercise {exercise}: not answered yet")
            return
        verdict = self._judged(exercise, answer)
        if verdict.right:
            self._solved.add(exercise)
            self.say(f"★ exercise {exercise}: right. {verdict.message}")
        else:
            hint = f"\n  Hint: {verdict.hint}" if verdict.hint else ""
            self.say(f"✗ exercise {exercise}: {verdict.message}{hint}")

    def _judged(self, exercise: str, answer: object) -> Verdict:
        found: Callable[[Lab, Any], Verdict] | None = self._exercises().get(exercise)
        if found is None:
            known = ", ".join(self._exercises()) or "none"
            return wrong(f"there is no exercise {exercise!r} in this notebook; its exercises are {known}")
        try:
            return found(self, answer)
        except TarnError as e:
            return wrong(f"the answer could not be checked: {e.message}")
        except Exception as e:  # noqa: BLE001 - an answer may be anything, and must not stop the notebook
            said = str(e).splitlines()[0] if str(e) else "no message"
            return wrong(
                f"the answer could not be checked: {type(e).__name__}: {said}",
                advice(e)
                or f"it is of type {type(answer).__name__}; compare with what the exercise asks for.",
            )

    def _exercises(self) -> Mapping[str, Callable[[Lab, Any], Verdict]]:
        """Number to checker, by the module of this notebook."""
        name = f"tarn.workshop.checks.nb{self.about.number}"
        try:
            module: ModuleType | None = importlib.import_module(name)
        except ModuleNotFoundError as e:
            if e.name != name:
                raise
            module = None
        prefix = "exercise_"
        return {
            one.removeprefix(prefix): getattr(module, one)
            for one in sorted(vars(module) if module else ())
            if one.startswith(prefix)
        }

    def reset(self) -> None:
        """Drop what this notebook made for this student: ingestors, tables, topics. Repeatable.

        Names that were asked for here go too, but for those of other notebooks: to ask about what one of them
        has made makes it none of this one's.

        Raises:
            UnavailableError: a service does not answer.
        """
        from tarn.workshop.cleaning import clean

        others = {name for one in NOTEBOOKS.values() if one is not self.about for name in one.names}
        names = sorted({*self.about.names, *(self._named - others)})
        cleaned = clean(self, names)
        self.say(f"dropped: {', '.join(cleaned.dropped)}" if cleaned.dropped else "there was nothing to drop")
        if cleaned.left:
            self.say(
                f"left: the topics {' and '.join(cleaned.left)}, which a notebook may not delete; "
                "on the host: scripts/tarn topic delete NAME --yes"
            )

    def done(self) -> None:
        """Print how many facts were checked, and how many exercises are solved."""
        total = len(self._exercises())
        solved = f"; {len(self._solved)} of {total} exercises solved" if total else ""
        self.say(f"{len(self._facts)} facts checked on this lake, all of them hold{solved}")

    # -- data

    def flights(self, *, days: int = 2, start: str = "2013-01-01") -> list[dict[str, Any]]:
        """The events of real flights of some days, in the order in which they happened, as rows.

        Args:
            days: how many days, of the year 2013.
            start: the first one.

        Raises:
            InvalidError: there is no such day.
        """
        from tarn.workshop.flights import events

        if days < 1:
            raise InvalidError(f"days={days}: ask for one day at least")
        return events(days=days, start=start)

    def reference(self, name: str) -> pd.DataFrame:
        """What flights refer to: "airlines", "airports", "planes" or "weather" of 2013."""
        from tarn.workshop.flights import reference

        return reference(name)
