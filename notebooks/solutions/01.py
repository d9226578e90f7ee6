"""Solutions of notebook 01, and wrong answers with what the checker says of them."""

FACTS = 11
PICTURES = 2

SOLUTIONS = {
    "exercise-1": "answer = 2 + len(anatomy.manifests(table)) + len(anatomy.data_files(table))\n",
    "exercise-2": """
by_file = anatomy.bounds(table, "celsius")
answer = set(by_file["file"][by_file["least"] < 5])
""",
    "exercise-3": """
before, after = anatomy.data_files(table, before_delete), anatomy.data_files(table)
answer = (before - after, after - before)
""",
}

WRONG = {
    "exercise-1": [
        ("answer = len(anatomy.data_files(table))\n", "a reader has to find them first"),
        (
            "answer = 1 + len(anatomy.manifests(table)) + len(anatomy.data_files(table))\n",
            "the metadata file and the manifest list are two objects",
        ),
        ("answer = 1000\n", "1000 is not the number of objects"),
    ],
    "exercise-2": [
        ('answer = set(anatomy.bounds(table, "celsius")["file"])\n', "of these files need not be opened"),
        ("answer = set()\n", "1 file that may have such rows is missing"),
        ('answer = ["oslo.parquet"]\n', "'oslo.parquet' is no data file"),
        ("answer = 5\n", "could not be checked: TypeError"),
    ],
    "exercise-3": [
        (
            """
before, after = anatomy.data_files(table, before_delete), anatomy.data_files(table)
answer = (after - before, before - after)
""",
            "the two are swapped",
        ),
        (
            "answer = (anatomy.data_files(table, before_delete), anatomy.data_files(table))\n",
            "all data files before and after",
        ),
        ("answer = (set(), set())\n", "not the difference between the two snapshots"),
    ],
}
