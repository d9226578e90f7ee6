"""Right and wrong answers to the exercises of notebook 05, for its test."""

FACTS = 7
PICTURES = 2

SOLUTIONS = {
    "exercise-1": """def by_origin(flights):
    return flights.where("origin IS NOT NULL").groupBy("origin").agg(
        fn.count("*").alias("flights"),
        fn.count_if("cancelled").alias("cancelled"),
        fn.avg("dep_delay").alias("mean_dep_delay"),
    )


answer = by_origin""",
    "exercise-2": """def once(events):
    in_order = Window.partitionBy("event_id").orderBy("heard")
    return events.withColumn("nth", fn.row_number().over(in_order)).where("nth = 1").drop("nth")


answer = once""",
    "exercise-3": '''answer = """
    MERGE INTO {table} s USING news n ON s.article = n.article
    WHEN MATCHED THEN UPDATE SET pieces = coalesce(n.pieces, s.pieces), price = coalesce(n.price, s.price)
    WHEN NOT MATCHED THEN INSERT *
"""''',
}

ALSO = {
    "exercise-2": [
        """def answer(events):
    firsts = events.groupBy("event_id").agg(fn.min_by(fn.struct("*"), "heard").alias("first"))
    return firsts.select("first.*")""",
        """def answer(events):
    heard = events.groupBy("event_id").agg(fn.min("heard").alias("heard"))
    names = ["heard", "event_id", "event", "time_hour", "carrier", "flight"]
    more = ["origin", "dest", "dep_delay", "arr_delay"]
    return events.join(heard, ["event_id", "heard"], "left_semi").select(*names, *more)""",
    ],
    "exercise-3": [
        '''answer = """
    MERGE INTO {table} AS t USING (SELECT * FROM news) AS n ON t.article = n.article
    WHEN MATCHED THEN UPDATE SET t.pieces = nvl(n.pieces, t.pieces), t.price = ifnull(n.price, t.price)
    WHEN NOT MATCHED THEN INSERT (article, pieces, price) VALUES (n.article, n.pieces, n.price)
"""''',
    ],
}

_BY_ORIGIN = """def answer(flights):
    return flights.where("origin IS NOT NULL").groupBy("origin").agg(
        {flights}.alias("flights"), {cancelled}.alias("cancelled"), {mean}.alias("mean_dep_delay")
    )"""
_COUNT, _CANCELLED, _MEAN = 'fn.count("*")', 'fn.count_if("cancelled")', 'fn.avg("dep_delay")'

WRONG = {
    "exercise-1": [
        ("answer = delays(spark.table(SILVER)).toPandas()", "asked for is a function"),
        ("answer = lambda flights: None", "does it end with return?"),
        ("answer = delays", "the column origin is missing"),
        (
            _BY_ORIGIN.format(flights='fn.count("dep_delay")', cancelled=_CANCELLED, mean=_MEAN),
            "count of a column leaves out",
        ),
        (
            _BY_ORIGIN.format(flights=_COUNT, cancelled='fn.count("cancelled")', mean=_MEAN),
            "cancelled flights, you count",
        ),
        (
            _BY_ORIGIN.format(
                flights=_COUNT, cancelled=_CANCELLED, mean='fn.avg(fn.coalesce("dep_delay", fn.lit(0)))'
            ),
            "null stays null",
        ),
    ],
    "exercise-2": [
        ("answer = lambda events: events.distinct()", "there more than once"),
        (
            'answer = lambda events: events.orderBy(fn.desc("heard")).dropDuplicates(["event_id"])',
            "keeps the first",
        ),
        ('answer = lambda events: events.where("heard < 150")', "events are lost"),
        (
            """def answer(events):
    rest = [name for name in events.columns if name != "event_id"]
    return events.groupBy("event_id").agg(*(fn.min(name).alias(name) for name in rest))""",
            "of different messages",
        ),
        (
            """def answer(events):
    in_order = Window.partitionBy("event_id").orderBy("heard")
    return events.withColumn("nth", fn.row_number().over(in_order)).where("nth = 1")""",
            "is not one of bronze",
        ),
    ],
    "exercise-3": [
        ("answer = 3", "asked for is a statement"),
        ("answer = 'DELETE FROM stock'", "does not contain {table}"),
        ('answer = "MERGE INTO {table} USING nothing"', "Spark does not take the statement"),
        ('answer = "INSERT INTO {table} SELECT * FROM news"', "is there 2 times"),
        (
            'answer = "MERGE INTO {table} s USING news n ON s.article = n.article '
            'WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"',
            "takes what is new, and what was there if nothing is",
        ),
        (
            'answer = "MERGE INTO {table} s USING news n ON s.article = n.article '
            "WHEN MATCHED THEN UPDATE SET "
            'pieces = coalesce(n.pieces, s.pieces), price = coalesce(n.price, s.price)"',
            "quince is not there",
        ),
    ],
}
