"""What notebook 00 shows, with right and wrong answers to its exercises."""

FACTS = 13
PICTURES = 4

SOLUTIONS = {
    "exercise-1": """far = lab.trino("SELECT dest FROM gold.delays_by_route ORDER BY distance DESC LIMIT 1")
answer = far["dest"][0]""",
    "exercise-2": """lab.trino(f"DROP TABLE IF EXISTS {lab.name('favourites')}")
lab.trino(f'''
    CREATE TABLE {lab.name("favourites")} AS
    SELECT dest, sum(flights) AS flights FROM gold.delays_by_route GROUP BY dest ORDER BY flights DESC LIMIT 5
''')
answer = lab.name("favourites")""",
}

ALSO = {
    "exercise-1": [
        """routes = lab.spark.table("gold.delays_by_route").toPandas()
answer = routes.loc[routes["distance"].idxmax(), "dest"].lower()""",
    ],
}

_MAKE = """lab.trino(f"DROP TABLE IF EXISTS {{lab.name('favourites')}}")
lab.trino(f"CREATE TABLE {{lab.name('favourites')}} AS {}")
answer = lab.name("favourites")"""

WRONG = {
    "exercise-1": [
        ("answer = 4983", "asked for is the code of an airport"),
        ('answer = "New York"', "is no destination"),
        (
            'near = lab.trino("SELECT min_by(dest, distance) AS dest FROM gold.delays_by_route")\n'
            'answer = near["dest"][0]',
            "some destination is farther",
        ),
    ],
    "exercise-2": [
        ('answer = "gold.delays_by_route"', "asked for is the name of your table"),
        ('answer = lab.name("favourites")', "there is no table"),
        (_MAKE.format("SELECT dest FROM gold.delays_by_route LIMIT 5"), "the column flights is missing"),
        (
            _MAKE.format("SELECT dest, flights FROM gold.delays_by_route ORDER BY flights DESC LIMIT 3"),
            "the table has 3 rows",
        ),
        (
            _MAKE.format("SELECT 'MIA' AS dest, n AS flights FROM UNNEST(sequence(1, 5)) AS t(n)"),
            "more than once",
        ),
        (
            _MAKE.format(
                "SELECT dest, max(flights) AS flights FROM gold.delays_by_route r "
                "GROUP BY 1 ORDER BY sum(r.flights) DESC LIMIT 5"
            ),
            "flights in your table",
        ),
        (
            _MAKE.format(
                "SELECT dest, sum(flights) AS flights FROM gold.delays_by_route GROUP BY 1 ORDER BY 2 LIMIT 5"
            ),
            "is not among the 5 destinations",
        ),
    ],
}
