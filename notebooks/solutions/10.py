"""Right and wrong answers to the exercises of notebook 10, for its test."""

FACTS = 12
PICTURES = 4

SOLUTIONS = {
    "exercise-1": """answer = lab.name("shreds")
_ = lab.trino(f"ALTER TABLE {answer} EXECUTE optimize")""",
    "exercise-2": """def held_by_history(table):
    everything = set(table.inspect.all_data_files()["file_path"].to_pylist())
    return everything - {task.file.file_path for task in table.scan().plan_files()}


answer = held_by_history""",
    "exercise-3": 'answer = "10, 1m for 1h, 1d for 30d"',
}

WRONG = {
    "exercise-1": [
        ("answer = 1", "asked for is the table or its name"),
        ("answer = shreds", "is made of 12 files"),
        (
            """shreds.append(ten_rows(0))
answer = shreds""",
            "has 130 rows",
        ),
        (
            """shreds = scratch.recreate(lab, "shreds", COLUMNS)
for number in range(12):
    shreds.append(ten_rows(number))
answer = lab.name("shreds")""",
            "is made of 12 files",
        ),
    ],
    "exercise-2": [
        ("answer = set()", "asked for is a function"),
        (
            "answer = lambda table: table.inspect.all_data_files()['file_path'].to_pylist()",
            "asked for is a set",
        ),
        (
            "answer = lambda table: set(table.inspect.all_data_files()['file_path'].to_pylist())",
            "of your files are live",
        ),
        (
            "answer = lambda table: set(table.inspect.all_manifests()['path'].to_pylist())",
            "are not data files",
        ),
        ("answer = lambda table: set()", "files are missing"),
    ],
    "exercise-3": [
        ("answer = 10", "asked for is a text"),
        ("answer = '10 newest, then one a minute'", "the catalog would refuse it"),
        ("answer = 'all'", "keeps everything"),
        ("answer = '40, 1m for 1h, 1d for 30d'", "keeps the newest 40"),
        ("answer = '10, 1m for 1h'", "you have 1 steps"),
        ("answer = '10, 1h for 1d, 1d for 30d'", "asked for is 1m for 1h"),
    ],
}
