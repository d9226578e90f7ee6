"""Solutions of notebook 02, and wrong answers with what the checker says of them."""

FACTS = 13
PICTURES = 1

SOLUTIONS = {
    "exercise-1": """
def add_one(store):
    while True:
        found = store.get("counter")
        try:
            store.put("counter", str(int(found.data) + 1).encode(), if_match=found.etag)
            return
        except StoreRefusedError:
            continue


answer = add_one
""",
    "exercise-2": 'answer = lab.catalog.load_table(lab.name("counter")).current_snapshot().snapshot_id\n',
    "exercise-3": "answer = sum(range(1, 17))\n",
}

WRONG = {
    "exercise-1": [
        (
            """
def answer(store):
    found = store.get("counter")
    store.put("counter", str(int(found.data) + 1).encode(), if_match=found.etag)
""",
            "the first refusal ended it",
        ),
        (
            """
def answer(store):
    found = store.get("counter")
    store.put("counter", str(int(found.data) + 1).encode())
""",
            "it wrote without if_match",
        ),
        (
            """
def answer(store):
    found = store.get("counter")
    while True:
        try:
            return store.put("counter", str(int(found.data) + 1).encode(), if_match=found.etag)
        except StoreRefusedError:
            pass
""",
            "did not end",
        ),
        (
            """
def answer(store):
    first = store.get("counter")
    while True:
        try:
            store.put("counter", str(int(first.data) + 1).encode(), if_match=store.get("counter").etag)
            return
        except StoreRefusedError:
            pass
""",
            "instead of 8",
        ),
        ("answer = 6\n", "6 is no function"),
    ],
    "exercise-2": [
        ("answer = first\n", "main has moved on since"),
        ("answer = 'main'\n", "'main' is not the snapshot"),
    ],
    "exercise-3": [
        ("answer = 16\n", "the refused attempts count too"),
        ("answer = 256\n", "not every writer needs sixteen attempts"),
        ("answer = 120\n", "are the refusals alone"),
        ("answer = 1\n", "the first round has 16 attempts"),
    ],
}
