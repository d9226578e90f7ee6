"""Solutions of notebook 04, and wrong answers with what the checker says of them."""

FACTS = 12
PICTURES = 2

SOLUTIONS = {
    "exercise-1": """
def audit(rows, ends):
    there = rows.value_counts(["partition", "offset"])
    wanted = {(p, o) for p, end in ends.items() for o in range(end)}
    return len(wanted - set(there.index)), int((there - 1).sum())


answer = audit
""",
    "exercise-2": "answer = (BATCH, 0)\n",
    "exercise-3": """
def key_of(sale):
    return f"till-{sale['till']}-sale-{sale['number']}"


answer = key_of
""",
}

WRONG = {
    "exercise-1": [
        (
            """
def answer(rows, ends):
    difference = sum(ends.values()) - len(rows)
    return max(difference, 0), max(-difference, 0)
""",
            "one is missing and one is there twice it says (0, 0)",
        ),
        (
            """
def answer(rows, ends):
    return 0, int(rows.duplicated().sum())
""",
            "an offset in the middle is missing it says (0, 0)",
        ),
        ("def answer(rows, ends):\n    return len(rows)\n", "return a pair"),
        ("answer = (0, 0)\n", "(0, 0) is no function"),
    ],
    "exercise-2": [
        ("answer = (0, BATCH)\n", "stored after the commit"),
        ("answer = (0, 0)\n", "(0, 0) is not it"),
        ("answer = (1, 0)\n", "1 is not the size of the batch"),
        ("answer = 5\n", "could not be checked"),
    ],
    "exercise-3": [
        (
            "import uuid\n\n\ndef answer(sale):\n    return str(uuid.uuid4())\n",
            "a repeat of the same sale has another key",
        ),
        (
            "def answer(sale):\n    return f\"{sale['till']}-{sale['cents']}\"\n",
            "the next sale of the same till",
        ),
        ("def answer(sale):\n    return str(sale['number'])\n", "a sale of another till"),
        ("def answer(sale):\n    return f\"{sale['till']}{sale['number']}\"\n", "sale 11 of till 1"),
        ("def answer(sale):\n    return sale['number']\n", "17 cannot be a key"),
    ],
}
