"""Right and wrong answers to the exercises of notebook 11, for its test."""

FACTS = 4
PICTURES = 4

SOLUTIONS = {
    "exercise-1": '''def hires(count):
    """Hires of bicycles from five stations."""
    chance = random.Random(7)
    begin = datetime(2026, 4, 1, 6, 0, tzinfo=UTC)
    for number in range(count):
        yield {
            "hire": number,
            "began": (begin + timedelta(minutes=3 * number)).isoformat(),
            "station": chance.choice(["harbour", "market", "museum", "park", "university"]),
            "minutes": round(chance.expovariate(1 / 20), 1),
            "member": chance.random() < 0.7,
        }


answer = list(hires(300))''',
    "exercise-2": """answer = spec_of(
    {
        "fields": [
            {"name": "hire", "type": "long", "required": True},
            {"name": "began", "type": "timestamptz", "required": True},
            {"name": "station", "type": "string"},
            {"name": "minutes", "type": "double"},
            {"name": "member", "type": "boolean"},
        ]
    }
)""",
    "exercise-3": '''answer = lab.trino(f"""
    SELECT station, count(*) AS hires, avg(minutes) AS minutes FROM {EVENTS} GROUP BY station ORDER BY hires
""")''',
    "exercise-4": """_, ax = plt.subplots(figsize=(8, 3))
ax.barh(answer["station"], answer["hires"]) if hasattr(answer, "columns") else ax.plot([1, 2])
ax.set(title="Hires", xlabel="hires on one day", ylabel="station")
answer = ax""",
}

ALSO = {
    "exercise-1": [
        """mine = Path("/notebooks/work/trips.csv")
lines = [f"{n},2026-03-{1 + n % 28:02}T08:15:00+01:00,{'harbour' if n % 3 else 'park'}" for n in range(120)]
mine.write_text("\\n".join(["trip,began,station", *lines]), encoding="utf-8")
answer = list(from_csv(mine))
mine.unlink()""",
    ],
}

_EVENT = '{"id": n, "at": "2026-03-02T08:15:00Z", "text": "x"}'

WRONG = {
    "exercise-1": [
        ("answer = cafe(400)", "asked for is a list"),
        ("answer = list(cafe(99))", "these are 99 events"),
        ("answer = ['event'] * 100", "should be a dictionary"),
        ("answer = [*cafe(100), {'id': 1}]", "event 100 and the first one differ"),
        ("answer = [{'id': n, 'at': datetime.now(UTC)} for n in range(100)]", "cannot be written as JSON"),
        ("answer = [{'id': n, 'at': '2026-03-02'} for n in range(100)]", "no key has a time"),
        (
            "answer = [{'id': n, 'at': '2026-03-02T08:15:00'} for n in range(100)]",
            "do not say in which time zone",
        ),
        (
            f"answer = [{_EVENT.replace(': n', ': n // 2')} for n in range(100)]",
            "no key distinguishes the events",
        ),
    ],
    "exercise-2": [
        ('answer = "infer"', "asked for is a spec"),
        ('answer = spec_of({"fields": []})', "ingest would refuse it"),
        ('answer = spec_of({"fields": [{"name": "station", "type": "long"}]})', "would be bad records"),
        (
            'answer = spec_of({"fields": [{"name": "price", "type": "long", "required": True}]})',
            "would be bad records",
        ),
        ('answer = spec_of({"fields": [{"name": "station", "type": "string"}]})', "goes nowhere"),
        ('answer = spec_of("infer", table={"namespace": lab.namespace, "name": "other"})', "and should fill"),
        ('answer = spec_of("infer", trace=False)', "needs the column _tarn"),
    ],
    "exercise-3": [
        ("answer = 42", "asked for is a DataFrame"),
        ('answer = lab.trino(f"SELECT count(*) AS n FROM {EVENTS}")', "one column alone"),
        ('answer = lab.trino(f"SELECT count(*) AS n, max(began) AS last FROM {EVENTS}")', "one row alone"),
        ('answer = lab.trino(f"SELECT hire, station FROM {EVENTS}")', "it copies"),
        (
            'answer = lab.trino(f"SELECT station, station AS again FROM {EVENTS} GROUP BY 1, 2")',
            "no column has a number",
        ),
        ('answer = lab.trino(f"SELECT station, 1 AS one FROM {EVENTS} GROUP BY 1")', "nothing to see"),
    ],
    "exercise-4": [
        ("answer = plt", "asked for are the axes"),
        ("_, answer = plt.subplots()", "nothing is drawn"),
        ("_, answer = plt.subplots()\nanswer.plot([1, 2])", "has no title"),
        (
            "_, answer = plt.subplots()\nanswer.plot([1, 2])\nanswer.set(title='x', xlabel='x')",
            "has no ylabel",
        ),
    ],
}
