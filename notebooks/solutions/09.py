"""Right and wrong answers to the exercises of notebook 09, for its test."""

FACTS = 4
PICTURES = 3

SOLUTIONS = {
    "exercise-1": """late_most = max(
    mark - datetime.fromisoformat(event["at"]) for mark, event in zip(marks, events, strict=True)
)
answer = -(-late_most // timedelta(hours=1))""",
    "exercise-2": """def starts(at):
    newest = at.replace(minute=0, second=0, microsecond=0)
    return [newest - timedelta(hours=1), newest]


answer = starts""",
    "exercise-3": """def alerts(windows):
    delays = {(start, origin): delay for start, origin, _, delay in windows}
    return [
        (start, origin)
        for start, origin, _, delay in windows
        if delay >= 30 and delays.get((start - WINDOW, origin), 0) < 30
    ]


answer = alerts""",
}

_BEFORE = """def answer(windows):
    before, found = {}, []
    for start, origin, _, delay in windows:
        if """

WRONG = {
    "exercise-1": [
        ("answer = 1.5", "asked for is a whole number"),
        ("answer = 1", "events are late"),
        ("answer = 24", "more than is needed"),
    ],
    "exercise-2": [
        ("answer = [datetime(2026, 3, 2)]", "asked for is a function"),
        ("answer = lambda at: None", "does it end with return?"),
        (
            "answer = lambda at: [at.replace(minute=0, second=0, microsecond=0)]",
            "is in 2 windows, you have 1",
        ),
        (
            """def answer(at):
    newest = at.replace(minute=0, second=0, microsecond=0)
    return [newest, newest - timedelta(hours=1)]""",
            "the earlier first",
        ),
        ("answer = lambda at: [at - timedelta(hours=1), at]", "round the time down"),
        (
            """def answer(at):
    newest = at.replace(minute=0, second=0, microsecond=0)
    return [newest - timedelta(hours=n) for n in ((2, 1, 0) if at == newest else (1, 0))]""",
            "The end does not belong",
        ),
    ],
    "exercise-3": [
        ("answer = []", "asked for is a function"),
        ("answer = lambda windows: None", "returns nothing"),
        (
            """def answer(windows):
    return [(start, origin) for start, origin, _, delay in windows if delay >= 30]""",
            "a delay that stays",
        ),
        (
            _BEFORE
            + """delay > 30 and before.get(origin, 0) <= 30:
            found.append((start, origin))
        before[origin] = delay
    return found""",
            "exactly 30 minutes",
        ),
        (
            """def answer(windows):
    before, found = 0, []
    for start, origin, _, delay in windows:
        if delay >= 30 and before < 30:
            found.append((start, origin))
        before = delay
    return found""",
            "two airports at one time",
        ),
        (
            """def answer(windows):
    seen, found = set(), []
    for start, origin, _, delay in windows:
        if delay >= 30 and origin not in seen:
            found.append((start, origin))
            seen.add(origin)
    return found""",
            "late again",
        ),
        (
            _BEFORE
            + """delay >= 30 and before.get(origin, 0) < 30:
            found.append((start, origin))
        before[origin] = delay
    return found""",
            "then no window",
        ),
    ],
}
