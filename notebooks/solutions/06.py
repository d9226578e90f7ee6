"""Solutions of notebook 06, and wrong answers with what the checker says of them."""

FACTS = 17
PICTURES = 7

SOLUTIONS = {
    "exercise-1": """
good = [night for night, rows in zip(prices.snapshots(), lists) if (rows["price"] < 50).all()]
answer = good[-1].snapshot_id
""",
    "exercise-2": """
answer = f'''
    SELECT count(*) FROM {PRICES} FOR VERSION AS OF '{{branch}}'
    WHERE price IS NULL OR price NOT BETWEEN 0.01 AND 50
'''
""",
    "exercise-3": """
then = tables.said(readings, readings.snapshot_by_name("good"), f"tarn.offsets.{ingestor}")["next"]
now = tables.said(readings, readings.current_snapshot(), f"tarn.offsets.{ingestor}")["next"]
answer = sum(now[partition] - then[partition] for partition in now)
""",
}

_WRONG_FROM = "next(at for at, rows in enumerate(lists) if rows['price'].max() > 50)"
_AUDIT = "answer = f\"SELECT {what} FROM {{PRICES}} FOR VERSION AS OF '{{{{branch}}}}' {where}\"\n"

WRONG = {
    "exercise-1": [
        (f"answer = prices.snapshots()[{_WRONG_FROM}].snapshot_id\n", "the first list with prices in cents"),
        (f"answer = prices.snapshots()[{_WRONG_FROM} - 2].snapshot_id\n", "it is not the last right one"),
        ("answer = prices.snapshots()[-1].snapshot_id\n", "prices in cents"),
        ("answer = 3\n", "no nightly list with the id 3"),
        ("answer = prices.snapshots()[0]\n", "asked for is a snapshot's id"),
    ],
    "exercise-2": [
        ("answer = AUDIT\n", "it lets prices of zero and below go out"),
        (
            _AUDIT.format(what="count(*)", where="WHERE price NOT BETWEEN 0.01 AND 50"),
            "it lets a product without a price go out",
        ),
        (
            _AUDIT.format(what="count(*)", where="WHERE price BETWEEN 0.01 AND 50"),
            "it stops the good delivery",
        ),
        (
            _AUDIT.format(what="count(*)", where="WHERE price IS NULL OR price NOT BETWEEN 1 AND 10"),
            "it stops the good delivery",
        ),
        (
            _AUDIT.format(what="count(*)", where="WHERE price IS NULL OR price < 0 OR price > 50"),
            "it counts 1 of 2 bad rows on the branch refund",
        ),
        (_AUDIT.format(what="*", where="WHERE price > 50"), "is not one whole number"),
        ('answer = f"SELECT count(*) FROM {PRICES} WHERE price > 50"\n', "no {branch} in the statement"),
        ('answer = "SELECT {branch}"\n', "the answer could not be checked"),
        ("answer = 3\n", "asked for is a statement as text"),
    ],
    "exercise-3": [
        ("answer = 3 * COUNT\n", "all messages of the topic"),
        ("answer = COUNT\n", "the messages that the tag has already"),
        ("answer = lab.rows(READINGS) - COUNT\n", "the delete has taken rows away"),
        ("answer = 1\n", "not the difference of the two maps"),
        ("answer = 'all'\n", "asked for is a whole number"),
    ],
}
