"""Checkers of notebook 05: functions and statements are run on rows that the student does not see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from tarn.workshop import scratch
from tarn.workshop.checks.frames import close, columns_of
from tarn.workshop.verdict import Verdict, right, wrong

if TYPE_CHECKING:
    from tarn.workshop.lab import Lab

EVENTS = 200
HEARD = "heard"
BRONZE = (
    "heard LONG, event_id STRING, event STRING, time_hour STRING, carrier STRING, flight INT, origin STRING, "
    "dest STRING, dep_delay INT, arr_delay INT"
)
"""The columns of bronze."""
STOCK = "stock"


def exercise_1(lab: Lab, answer: Any) -> Verdict:
    """Check a function from silver to delays by origin."""
    made = _from_function(answer, lab.spark.table(lab.name("flights")))
    if isinstance(made, Verdict):
        return made
    found, problem = columns_of(made, ("origin", "flights", "cancelled", "mean_dep_delay"))
    if found is None:
        return problem
    silver = scratch.whole(lab, "flights")
    known = silver[silver["origin"].notna()].groupby("origin")
    truth = known.agg(flights=("flight", "size"), cancelled=("cancelled", "sum"), mean=("dep_delay", "mean"))
    if len(found) != len(truth) or set(found["origin"]) != set(truth.index):
        return wrong(
            f"you have {len(found)} rows; there is one for each of {', '.join(truth.index)}",
            "groupBy one column only, and leave out flights without an origin: their schedule was not heard.",
        )
    mine = found.set_index("origin")
    for origin, row in truth.iterrows():
        if not close(mine.loc[origin, "flights"], row["flights"]):
            return wrong(
                f"{origin} has {row['flights']:,.0f} flights, you count {mine.loc[origin, 'flights']:,}",
                "count('*') counts rows; count of a column leaves out those in which it is null.",
            )
        if not close(mine.loc[origin, "cancelled"], row["cancelled"]):
            return wrong(
                f"{origin} has {row['cancelled']:.0f} cancelled flights, you count "
                f"{mine.loc[origin, 'cancelled']}",
                "count_if('cancelled') counts those in which it is true; count counts all that are not null.",
            )
        if not close(mine.loc[origin, "mean_dep_delay"], row["mean"]):
            return wrong(
                f"the mean delay of {origin} is another one", "avg('dep_delay'), and null stays null."
            )
    return right(f"{len(truth)} airports, {truth['flights'].sum():,} flights")


def exercise_2(lab: Lab, answer: Any) -> Verdict:
    """Check a function that keeps the first of several events with one id."""
    rows = _doubled(EVENTS)
    made = _from_function(answer, lab.spark.createDataFrame(_plain(rows), BRONZE).repartition(4, "time_hour"))
    if isinstance(made, Verdict):
        return made
    found, problem = columns_of(made, tuple(rows.columns))
    if found is None:
        return problem
    extra = [name for name in found.columns if name not in rows.columns]
    if extra:
        return wrong(f"the column {extra[0]} is not one of bronze", f'.drop("{extra[0]}") takes it away.')
    first = rows.sort_values(HEARD).drop_duplicates("event_id")
    if found["event_id"].duplicated().any():
        return wrong(
            f"{found['event_id'].duplicated().sum()} events are there more than once",
            "distinct() compares whole rows, and what is heard again differs in when it was heard.",
        )
    if len(found) < len(first):
        return wrong(f"{len(first) - len(found)} events are lost", "an event that was heard once stays, too.")
    both = first.merge(found, on="event_id", suffixes=("", "_mine"))
    later = both[both[HEARD] != both[f"{HEARD}_mine"]]
    if len(later):
        one = later.iloc[0]
        return wrong(
            f"event {one['event_id']} was first heard as number {one[HEARD]}, you kept number "
            f"{one[f'{HEARD}_mine']}",
            "dropDuplicates keeps any of them; row_number over a window ordered by heard keeps the first.",
        )
    for name in (name for name in rows.columns if name not in ("event_id", HEARD)):
        other = both[~both[name].eq(both[f"{name}_mine"]).fillna(False) & both[name].notna()]
        more = both[both[name].isna() & both[f"{name}_mine"].notna()]
        if len(other) or len(more):
            one = (other if len(other) else more).iloc[0]
            return wrong(
                f"event {one['event_id']} was first heard with {name} {one[name]!s}, yours has "
                f"{one[f'{name}_mine']!s}: its columns are of different messages",
                "keep the whole row that was heard first, also where a column of it is null.",
            )
    return right(f"{len(rows)} rows, {len(first)} events, each as it was heard first")


def exercise_3(lab: Lab, answer: Any) -> Verdict:
    """Check a MERGE: what it brings in, what it leaves alone, and that it may be repeated."""
    if not isinstance(answer, str):
        return wrong(f"answer is of type {type(answer).__name__}, asked for is a statement as text")
    if "{table}" not in answer:
        return wrong("the statement does not contain {table}, in place of which the checker puts its table")
    spark, table = lab.spark, lab.name(STOCK)
    before = [("apple", 10, 1.5), ("pear", 20, 2.0), ("plum", 30, 3.0)]
    news = [("pear", 25, None), ("plum", None, 2.5), ("quince", 5, 4.0)]
    wanted = {"apple": (10, 1.5), "pear": (25, 2.0), "plum": (30, 2.5), "quince": (5, 4.0)}
    shape = "article STRING, pieces INT, price DOUBLE"
    spark.createDataFrame(before, shape).writeTo(table).using("iceberg").createOrReplace()
    spark.createDataFrame(news, shape).createOrReplaceTempView("news")
    for time in ("first", "second"):
        try:
            spark.sql(answer.replace("{table}", table))
        except Exception as error:  # noqa: BLE001 - whatever Spark says to the statement is the student's to read
            return wrong(f"Spark does not take the statement: {_first_line(error)}")
        found = [tuple(None if pd.isna(v) else v for v in row) for row in _rows(lab, table)]
        said = _compare(found, wanted)
        if said:
            return wrong(f"after the {time} run, {said[0]}", said[1])
        if extra := sorted({str(row[0]) for row in found} - wanted.keys()):
            return wrong(f"after the {time} run, there is {extra[0]}, which nobody has brought")
    return right("run twice, it leaves the table as it was after the first time")


def _plain(rows: pd.DataFrame) -> list[tuple[Any, ...]]:
    return [
        tuple(None if pd.isna(v) else v for v in row)
        for row in rows.astype(object).itertuples(index=False, name=None)
    ]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _compare(found: list[tuple[Any, ...]], wanted: dict[str, tuple[int, float]]) -> tuple[str, str] | None:
    articles = [row[0] for row in found]
    double = next((a for a in articles if articles.count(a) > 1), None)
    if double is not None:
        return (
            f"{double} is there {articles.count(double)} times",
            "INSERT alone adds a row each time; MERGE looks first.",
        )
    for article, (pieces, price) in wanted.items():
        row = next((row for row in found if row[0] == article), None)
        if row is None:
            return (
                f"{article} is not there",
                "WHEN NOT MATCHED THEN INSERT adds what is new, and nothing deletes.",
            )
        if row[1:] != (pieces, price):
            return (
                f"{article} has {row[1]} pieces at {row[2]}, and should have {pieces} at {price}",
                "coalesce(n.pieces, s.pieces) takes what is new, and what was there if nothing is.",
            )
    return None


def _rows(lab: Lab, table: str) -> list[tuple[Any, ...]]:
    found = pd.DataFrame(lab.spark.table(table).select("article", "pieces", "price").toPandas())
    return list(found.itertuples(index=False, name=None))


def _from_function(answer: Any, rows: Any) -> pd.DataFrame | Verdict:
    """Return what a function from DataFrame to DataFrame makes of some rows; a verdict if it is none."""
    if not callable(answer):
        return wrong(
            f"answer is of type {type(answer).__name__}, asked for is a function",
            "answer = by_origin, without brackets: the function, not what it returns.",
        )
    made = answer(rows)
    if not hasattr(made, "toPandas"):
        return wrong(
            f"the function returns a {type(made).__name__}, asked for is a DataFrame of Spark",
            "does it end with return?",
        )
    found: pd.DataFrame = made.toPandas()
    return found


def _doubled(events: int) -> pd.DataFrame:
    """Rows of bronze in which every third event is heard two or three times, the later ones in front."""

    def row(heard: int, n: int, carrier: str) -> tuple[Any, ...]:
        # What is heard again says something else: a row that is made of several is found out.
        hour = f"2013-01-01T{n % 24:02}:00:00Z"
        delay = None if carrier == "AA" else 90 - n % 90
        return (heard, f"e-{n}", "departed", hour, carrier, n, None, None, delay, None)

    rows = [row(n, n, "AA" if n % 2 else "MQ") for n in range(events)]
    rows += [row(events + n, n, "B6") for n in range(0, events, 3)]
    rows += [row(2 * events + n, n, "ZZ") for n in range(0, events, 9)]
    found = pd.DataFrame(rows[::-1], columns=[part.split()[0] for part in BRONZE.split(", ")])
    whole = ("flight", "dep_delay", "arr_delay")
    return found.astype(dict.fromkeys(whole, "Int64")).astype({HEARD: "int64"})
