"""The tables and their columns, as data; DDL, MERGE and transforms are derived from it."""

from __future__ import annotations

from dataclasses import dataclass

PROPERTIES = {
    "format-version": "2",
    # Bounds the metadata, which grows with each commit: the catalog expires the oldest snapshots.
    "tarn.snapshots-kept": "50",
    "write.metadata.previous-versions-max": "20",
}
"""Properties of every table that the jobs create."""

KEY = ("time_hour", "carrier", "flight")
"""The key of a flight: the hour of its scheduled departure (UTC), the airline, the flight number."""

KINDS = ("scheduled", "departed", "arrived", "cancelled")
"""Kinds of events of a flight. Each sets its own columns of silver; the first event of each kind wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column of a table.

    Attributes:
        name: the column's name.
        type: its Spark SQL type.
        comment: its meaning with the unit, stored in the table.
    """

    name: str
    type: str
    comment: str = ""

    @property
    def ddl(self) -> str:
        """The column definition of a CREATE TABLE."""
        comment = f" COMMENT '{self.comment}'" if self.comment else ""
        return f"`{self.name}` {self.type}{comment}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table that the jobs write.

    Attributes:
        name: namespace and name.
        columns: its columns, in order.
        partitioning: Iceberg transforms in Spark SQL syntax; empty for unpartitioned.
        comment: what one row represents.
    """

    name: str
    columns: tuple[Column, ...]
    partitioning: str = ""
    comment: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns, in order."""
        return tuple(c.name for c in self.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gold:
    """An aggregate table over silver.

    Attributes:
        table: the table.
        keys: grouping column to its expression over silver.
        labels: descriptive column to its expression over silver; equal for all flights of a group.
    """

    table: Table
    keys: dict[str, str]
    labels: dict[str, str]


BRONZE = "bronze.flight_events"

EVENT_COLUMNS: dict[str, tuple[Column, ...]] = {
    "scheduled": (
        Column(name="date", type="date", comment="day of the scheduled departure, New York time"),
        Column(name="sched_dep_time", type="int", comment="local clock, HHMM"),
        Column(name="sched_arr_time", type="int", comment="local clock at the destination, HHMM"),
        Column(name="tailnum", type="string"),
        Column(name="origin", type="string"),
        Column(name="dest", type="string"),
        Column(name="distance", type="int", comment="miles"),
    ),
    "departed": (
        Column(name="dep_time", type="int", comment="local clock, HHMM; 2400 is midnight"),
        Column(name="dep_delay", type="int", comment="minutes; negative is early"),
    ),
    "arrived": (
        Column(name="arr_time", type="int", comment="local clock at the destination, HHMM"),
        Column(name="arr_delay", type="int", comment="minutes; null if the flight was diverted"),
        Column(name="air_time", type="int", comment="minutes"),
    ),
    "cancelled": (),
}
"""The columns that each kind of event sets, as in bronze."""

ENRICHMENT: tuple[Column, ...] = (
    Column(name="sched_dep_hour", type="int", comment="hour of the scheduled departure, New York time"),
    Column(name="airline", type="string"),
    Column(name="origin_name", type="string"),
    Column(name="dest_name", type="string", comment="null for four airports that the reference lacks"),
    Column(name="plane_year", type="int"),
    Column(name="plane_manufacturer", type="string"),
    Column(name="plane_model", type="string"),
    Column(name="plane_seats", type="int"),
    Column(name="temp", type="double", comment="degrees Fahrenheit, origin, scheduled hour"),
    Column(name="wind_speed", type="double", comment="miles an hour"),
    Column(name="wind_gust", type="double", comment="miles an hour"),
    Column(name="precip", type="double", comment="inches in the hour"),
    Column(name="pressure", type="double", comment="millibars"),
    Column(name="visib", type="double", comment="miles"),
)
"""The columns that are joined from the reference tables with a flight's first scheduled event."""

TRACE = Column(
    name="_tarn",
    type="struct<source:string,partition:int,offset:bigint>",
    comment="the newest event that changed the row",
)

_KEY_COLUMNS = (
    Column(name="time_hour", type="timestamp", comment="hour of the scheduled departure, UTC"),
    Column(name="carrier", type="string"),
    Column(name="flight", type="int"),
)


def heard(kind: str) -> Column:
    """Return the column with the time of an event of this kind; null until the event arrives."""
    return Column(name=f"{kind}_at", type="timestamp", comment=f"when it was {kind}, UTC; null: not heard")


def columns_set_by(kind: str) -> tuple[Column, ...]:
    """Return all columns of silver that an event of this kind sets."""
    looked_up = ENRICHMENT if kind == "scheduled" else ()
    return (heard(kind), *EVENT_COLUMNS[kind], *looked_up)


SILVER = Table(
    name="silver.flights",
    columns=(*_KEY_COLUMNS, *(c for kind in KINDS for c in columns_set_by(kind)), TRACE),
    partitioning="months(time_hour)",
    comment="One row per flight, put together from its events.",
)

ON_TIME_BELOW_MIN = 15
"""A flight is on time if it arrives less than this many minutes late."""

SUMS = (
    Column(name="flights", type="bigint", comment="flights with a known schedule, cancelled ones too"),
    Column(name="cancelled", type="bigint"),
    Column(name="departed", type="bigint", comment="flights with a dep_delay"),
    Column(name="arrived", type="bigint", comment="flights with an arr_delay: arrived as planned"),
    Column(name="on_time", type="bigint", comment=f"flights with arr_delay < {ON_TIME_BELOW_MIN}"),
    Column(name="dep_delay_sum", type="bigint", comment="minutes, of all departed"),
    Column(name="arr_delay_sum", type="bigint", comment="minutes, of all arrived"),
)
"""The columns of gold that a change of silver is added to; the means follow from them."""

_MEANS = (
    Column(name="mean_dep_delay", type="double", comment="minutes: dep_delay_sum / departed"),
    Column(name="mean_arr_delay", type="double", comment="minutes: arr_delay_sum / arrived"),
    Column(name="on_time_rate", type="double", comment="on_time / arrived"),
)

ADDED = SUMS[2:]
"""The sums that gold tables of earlier versions do not have."""

WIND = """CASE
  WHEN wind_speed IS NULL THEN NULL WHEN wind_speed < 5 THEN '00-05' WHEN wind_speed < 10 THEN '05-10'
  WHEN wind_speed < 15 THEN '10-15' WHEN wind_speed < 20 THEN '15-20' WHEN wind_speed < 30 THEN '20-30'
  ELSE '30+' END"""

PRECIPITATION = """CASE
  WHEN precip IS NULL THEN NULL WHEN precip = 0 THEN 'none' WHEN precip < 0.1 THEN 'light'
  WHEN precip < 0.3 THEN 'moderate' ELSE 'heavy' END"""


def _gold(name: str, keys: tuple[_Made, ...], labels: tuple[_Made, ...] = ()) -> Gold:
    columns = (*(column for _, column in (*keys, *labels)), *SUMS[:2], *_MEANS, *ADDED)
    return Gold(
        table=Table(name=f"gold.{name}", columns=columns),
        keys={column.name: expression for expression, column in keys},
        labels={column.name: expression for expression, column in labels},
    )


def _made(name: str, type_: str = "string", *, of: str = "", comment: str = "") -> _Made:
    """Return the expression over silver and the column that it gives; the expression defaults to `name`."""
    return of or name, Column(name=name, type=type_, comment=comment)


_Made = tuple[str, Column]

GOLD: tuple[Gold, ...] = (
    _gold("delays_by_carrier", keys=(_made("carrier"),), labels=(_made("name", of="airline"),)),
    _gold(
        "delays_by_route",
        keys=(_made("origin"), _made("dest")),
        labels=(
            _made("origin_name"),
            _made("dest_name"),
            _made("distance", "int", comment="miles, the longest told"),
        ),
    ),
    _gold(
        "delays_by_hour",
        keys=(_made("hour", "int", of="sched_dep_hour", comment="of sched_dep_time, New York time"),),
    ),
    _gold(
        "delays_by_weather",
        keys=(
            _made("wind", of=WIND, comment="miles an hour, from-below; null: unknown"),
            _made(
                "precipitation",
                of=PRECIPITATION,
                comment="inches in the hour: none, light < 0.1, moderate < 0.3, heavy; null: unknown",
            ),
        ),
    ),
)

REFERENCE: tuple[Table, ...] = (
    Table(
        name="ref.airlines",
        columns=(Column(name="carrier", type="string"), Column(name="name", type="string")),
    ),
    Table(
        name="ref.airports",
        columns=(
            Column(name="faa", type="string"),
            Column(name="name", type="string"),
            Column(name="lat", type="double"),
            Column(name="lon", type="double"),
            Column(name="alt", type="int", comment="feet"),
            Column(name="tz", type="int", comment="hours from UTC"),
            Column(name="dst", type="string"),
            Column(name="tzone", type="string"),
        ),
    ),
    Table(
        name="ref.planes",
        columns=(
            Column(name="tailnum", type="string"),
            Column(name="year", type="int"),
            Column(name="type", type="string"),
            Column(name="manufacturer", type="string"),
            Column(name="model", type="string"),
            Column(name="engines", type="int"),
            Column(name="seats", type="int"),
            Column(name="speed", type="int", comment="miles an hour"),
            Column(name="engine", type="string"),
        ),
    ),
    Table(
        name="ref.weather",
        columns=(
            Column(name="origin", type="string"),
            Column(name="time_hour", type="timestamp", comment="UTC"),
            Column(name="temp", type="double", comment="degrees Fahrenheit"),
            Column(name="dewp", type="double", comment="degrees Fahrenheit"),
            Column(name="humid", type="double", comment="percent"),
            Column(name="wind_dir", type="int", comment="degrees"),
            Column(name="wind_speed", type="double", comment="miles an hour"),
            Column(name="wind_gust", type="double", comment="miles an hour"),
            Column(name="precip", type="double", comment="inches in the hour"),
            Column(name="pressure", type="double", comment="millibars"),
            Column(name="visib", type="double", comment="miles"),
        ),
    ),
)
"""The reference tables, named like the files that they are read from."""

NAMESPACES = ("ref", "silver", "gold")
