"""Transforms from events to flights to aggregates: DataFrame -> DataFrame, without reads or writes.

Two rules make every step idempotent. Of the events of one kind for one flight the first in the stream wins,
so duplicates change nothing, in this batch or in a later one. A flight is part of gold once its schedule is
known, and its groups never change after that. Gold is made of sums of integers, so rows are added and
taken away without rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from tarn_jobs.schema import (
    EVENT_COLUMNS,
    KEY,
    KINDS,
    ON_TIME_BELOW_MIN,
    SILVER,
    SUMS,
    Gold,
    heard,
)


def is_readable() -> Column:
    """Return whether an event has a flight and a known kind (no null in key, id or time)."""
    whole = fn.col("event").isin(*KINDS) & fn.col("event_id").isNotNull() & fn.col("event_time").isNotNull()
    for column in KEY:
        whole = whole & fn.col(column).isNotNull()
    return fn.coalesce(whole, fn.lit(False))


def flights_of(events: DataFrame) -> DataFrame:
    """Return one row per flight with the columns of its first event of each kind, not yet enriched.

    `events` says of how many events a row is made. One row more, with nulls in the key, stands for all events
    that are not readable, if there are any: so one read of the events is enough to count them.
    """
    trace = fn.struct(
        fn.col("_tarn.source").alias("source"),
        fn.col("_tarn.partition").alias("partition"),
        fn.col("_tarn.offset").alias("offset"),
    )
    order = fn.struct(fn.col("_tarn.offset"), fn.col("_tarn.partition"))
    flight = [fn.when(is_readable(), fn.col(k)).alias(k) for k in KEY]
    firsts = [
        fn.min_by(_fields_of(kind), fn.when(fn.col("event") == kind, order)).alias(kind) for kind in KINDS
    ]
    grouped = events.groupBy(*flight).agg(
        *firsts, fn.max_by(trace, order).alias("_tarn"), fn.count(fn.lit(1)).alias("events")
    )
    flat = [
        fn.col(f"{kind}.{c}").alias(c)
        for kind in KINDS
        for c in (heard(kind).name, *(e.name for e in EVENT_COLUMNS[kind]))
    ]
    return grouped.select(*KEY, *flat, "_tarn", "events")


def counts(flights: DataFrame) -> DataFrame:
    """Return one row of statistics: `events`, `readable`, `low_us`, `high_us`.

    These are the numbers of all and of readable events, and the first and last time_hour of readable ones,
    microseconds since the epoch.

    Args:
        flights: rows of `flights_of`, enriched or not.
    """
    readable = fn.col("time_hour").isNotNull()
    return flights.agg(
        fn.coalesce(fn.sum("events"), fn.lit(0)).alias("events"),
        fn.coalesce(fn.sum(fn.when(readable, fn.col("events"))), fn.lit(0)).alias("readable"),
        fn.min(fn.unix_micros("time_hour")).alias("low_us"),
        fn.max(fn.unix_micros("time_hour")).alias("high_us"),
    )


def enriched(flights: DataFrame, reference: Mapping[str, DataFrame]) -> DataFrame:
    """Return the rows of `flights_of` with silver's columns and `events`.

    A column is null where the reference has no match.

    Args:
        flights: rows of `flights_of`.
        reference: airlines, airports, planes and weather, by name.
    """
    scheduled = fn.col("scheduled_at").isNotNull()
    airlines = _one_each(reference["airlines"].select("carrier", fn.col("name").alias("airline")), "carrier")
    airports = _one_each(reference["airports"].select("faa", "name"), "faa")
    origins = airports.select(fn.col("faa").alias("origin"), fn.col("name").alias("origin_name"))
    dests = airports.select(fn.col("faa").alias("dest"), fn.col("name").alias("dest_name"))
    planes = reference["planes"].select(
        "tailnum",
        *(fn.col(c).alias(f"plane_{c}") for c in ("year", "manufacturer", "model", "seats")),
    )
    planes = _one_each(planes, "tailnum")
    weather = reference["weather"].select(
        "origin", "time_hour", "temp", "wind_speed", "wind_gust", "precip", "pressure", "visib"
    )
    weather = _one_each(weather, "origin", "time_hour")
    joined = (
        flights.withColumn("sched_dep_hour", fn.expr("sched_dep_time div 100").cast("int"))
        .join(fn.broadcast(airlines), on="carrier", how="left")
        .join(fn.broadcast(origins), on="origin", how="left")
        .join(fn.broadcast(dests), on="dest", how="left")
        .join(fn.broadcast(planes), on="tailnum", how="left")
        .join(fn.broadcast(weather), on=["origin", "time_hour"], how="left")
        .withColumn("airline", fn.when(scheduled, fn.col("airline")))
    )
    return joined.select(*(fn.col(c.name).cast(c.type).alias(c.name) for c in SILVER.columns), "events")


def _one_each(table: DataFrame, *key: str) -> DataFrame:
    """Return one row for each key, always the same one: two in a reference table must not double flights."""
    others = [c for c in table.columns if c not in key]
    # The greatest: a null is less than every value. In one task, as the tables are small.
    most = table.coalesce(1).groupBy(*key).agg(fn.max(fn.struct(*others)).alias("most"))
    return most.select(*key, *(fn.col(f"most.{c}").alias(c) for c in others))


def in_groups(silver: DataFrame, golds: Sequence[Gold]) -> DataFrame:
    """Return the flights with a known schedule, with the columns of their groups (`key_*`, `label_*`).

    Args:
        silver: rows of silver with `sign`: 1 counts a row, -1 takes it away.
        golds: the tables whose groups are asked for; keys of one name have one meaning.
    """
    made: dict[str, str] = {}
    for gold in golds:
        made |= {f"key_{name}": e for name, e in gold.keys.items()}
        made |= {f"label_{name}": e for name, e in gold.labels.items()}
    return silver.where(fn.col("scheduled_at").isNotNull()).select(
        *(fn.expr(e).alias(name) for name, e in made.items()),
        "cancelled_at",
        "dep_delay",
        "arr_delay",
        "sign",
    )


def summed(grouped: DataFrame, gold: Gold) -> DataFrame:
    """Return one row per group: its keys, its labels, and what the rows change in its sums (`SUMS`).

    Args:
        grouped: rows of `in_groups`. A row that is taken away and counted again, as it is or changed, adds
            up to what has changed.
        gold: the gold table that defines the groups.
    """
    counts = {
        "flights": fn.lit(True),
        "cancelled": fn.col("cancelled_at").isNotNull(),
        "departed": fn.col("dep_delay").isNotNull(),
        "arrived": fn.col("arr_delay").isNotNull(),
        "on_time": fn.col("arr_delay") < ON_TIME_BELOW_MIN,
    }
    sign = fn.col("sign")
    sums = {name: fn.when(counted, sign) for name, counted in counts.items()}
    sums |= {f"{name}_sum": fn.col(name) * sign for name in ("dep_delay", "arr_delay")}
    return grouped.groupBy(*(fn.col(f"key_{k}").alias(k) for k in gold.keys)).agg(
        *(fn.max(fn.when(sign > 0, fn.col(f"label_{name}"))).alias(name) for name in gold.labels),
        *(fn.coalesce(fn.sum(sums[c.name]), fn.lit(0)).alias(c.name) for c in SUMS),
    )


def delays(sums: DataFrame, gold: Gold) -> DataFrame:
    """Return the rows of a gold table: the sums added up by group, and the means that follow from them.

    Args:
        sums: rows of `summed`, or of the gold table itself, or both. A group that nothing is left of has no
            row.
        gold: the gold table.
    """
    added = sums.groupBy(*gold.keys).agg(
        *(fn.max(name).alias(name) for name in gold.labels),
        *(fn.sum(c.name).alias(c.name) for c in SUMS),
    )
    means = {
        "mean_dep_delay": _ratio("dep_delay_sum", "departed"),
        "mean_arr_delay": _ratio("arr_delay_sum", "arrived"),
        "on_time_rate": _ratio("on_time", "arrived"),
    }
    return added.where(fn.col("flights") > 0).select(
        *(means.get(c.name, fn.col(c.name)).cast(c.type).alias(c.name) for c in gold.table.columns)
    )


def with_changes(before: DataFrame, changes: DataFrame, gold: Gold) -> DataFrame:
    """Return the rows of a gold table after the changes to its sums.

    Args:
        before: the gold table as it was.
        changes: rows of `summed` over what has changed since.
        gold: the gold table.
    """
    names = [*gold.keys, *gold.labels, *(c.name for c in SUMS)]
    return delays(before.select(*names).unionByName(changes), gold)


def _ratio(numerator: str, denominator: str) -> Column:
    """Return the ratio; null over nothing."""
    return fn.when(fn.col(denominator) > 0, fn.col(numerator).cast("double") / fn.col(denominator))


def _fields_of(kind: str) -> Column:
    fields = [fn.col("event_time").alias(heard(kind).name)]
    fields += [fn.col(c.name).cast(c.type).alias(c.name) for c in EVENT_COLUMNS[kind]]
    return fn.struct(*fields)
