"""Right and wrong answers to the exercises of notebook 08, for its test."""

FACTS = 8
PICTURES = 5

SOLUTIONS = {
    "exercise-1": '''answer = lab.trino(f"""
    SELECT dest, count(*) AS flights, avg(arr_delay) AS mean_delay
    FROM {FLIGHTS}
    GROUP BY dest
    HAVING count(*) >= 20
    ORDER BY mean_delay DESC
    LIMIT 5
""")''',
    "exercise-2": '''answer = lab.trino(f"""
    SELECT wind_speed > 15 AS windy, count(*) AS flights,
           count_if(dep_delay IS NULL) / 1e0 / count(*) AS cancelled
    FROM {FLIGHTS} JOIN {WEATHER} USING (origin, time_hour)
    WHERE wind_speed IS NOT NULL
    GROUP BY 1
""")''',
    "exercise-3": '''answer = lab.trino(f"""
    SELECT origin, max_by(date, mean_delay) AS date, max(mean_delay) AS mean_delay
    FROM (SELECT origin, date, avg(dep_delay) AS mean_delay FROM {FLIGHTS} GROUP BY origin, date)
    GROUP BY origin
""")''',
}

ALSO = {
    "exercise-1": [
        '''answer = lab.trino(f"""
    WITH busy AS (SELECT dest, count(*) AS flights, avg(arr_delay) AS late FROM {FLIGHTS} GROUP BY 1)
    SELECT dest, flights, round(late, 1) AS mean_delay FROM busy WHERE flights > 19 ORDER BY late DESC LIMIT 5
""")''',
    ],
    "exercise-2": [
        '''answer = lab.trino(f"""
    SELECT w.wind_speed > 15 AS windy, count(*) AS flights, avg(if(f.dep_delay IS NULL, 1, 0)) AS cancelled
    FROM {FLIGHTS} f JOIN {WEATHER} w ON f.origin = w.origin AND f.time_hour = w.time_hour
    WHERE w.wind_speed IS NOT NULL
    GROUP BY w.wind_speed > 15
""")''',
    ],
}

WRONG = {
    "exercise-1": [
        ("answer = 'TUL'", "asked for is a DataFrame"),
        (
            'answer = lab.trino(f"SELECT dest, count(*) AS flights FROM {FLIGHTS} GROUP BY dest")',
            "mean_delay is missing",
        ),
        (
            'answer = lab.trino(f"SELECT dest, count(*) AS flights, avg(arr_delay) AS mean_delay '
            'FROM {FLIGHTS} GROUP BY dest ORDER BY mean_delay DESC NULLS LAST LIMIT 5")',
            "HAVING count(*) >= 20",
        ),
        (
            'answer = lab.trino(f"SELECT dest, count(*) AS flights, avg(arr_delay) AS mean_delay '
            'FROM {FLIGHTS} GROUP BY dest HAVING count(*) >= 20 ORDER BY mean_delay LIMIT 5")',
            "these are the five best",
        ),
        (
            'answer = lab.trino(f"SELECT dest, count(arr_delay) AS flights, avg(arr_delay) AS mean_delay '
            'FROM {FLIGHTS} GROUP BY dest HAVING count(*) >= 20 ORDER BY mean_delay DESC LIMIT 5")',
            "count(*) counts cancelled flights too",
        ),
    ],
    "exercise-2": [
        (
            'answer = lab.trino(f"SELECT wind_speed > 15 AS windy, count(*) AS flights, '
            "count_if(dep_delay IS NULL) / count(*) AS cancelled FROM {FLIGHTS} "
            'JOIN {WEATHER} USING (origin, time_hour) WHERE wind_speed IS NOT NULL GROUP BY 1")',
            "both shares are 0",
        ),
        (
            'answer = lab.trino(f"SELECT wind_speed > 15 AS windy, count(*) AS flights, '
            "avg(if(dep_delay IS NULL, 1.0, 0.0)) AS cancelled FROM {FLIGHTS} "
            'JOIN {WEATHER} USING (origin, time_hour) WHERE wind_speed IS NOT NULL GROUP BY 1")',
            "one digit after the point",
        ),
        (
            'answer = lab.trino(f"SELECT coalesce(wind_speed, 0) > 15 AS windy, count(*) AS flights, '
            "count_if(dep_delay IS NULL) / 1e0 / count(*) AS cancelled FROM {FLIGHTS} "
            'LEFT JOIN {WEATHER} USING (origin, time_hour) GROUP BY 1")',
            "leave them out",
        ),
        (
            'answer = lab.trino(f"SELECT w.wind_speed > 15 AS windy, count(*) AS flights, '
            "count_if(dep_delay IS NULL) / 1e0 / count(*) AS cancelled FROM {FLIGHTS} f "
            'JOIN {WEATHER} w ON f.time_hour = w.time_hour WHERE wind_speed IS NOT NULL GROUP BY 1")',
            "join on origin and time_hour",
        ),
    ],
    "exercise-3": [
        (
            'answer = lab.trino(f"SELECT origin, date, avg(dep_delay) AS mean_delay '
            'FROM {FLIGHTS} GROUP BY 1, 2")',
            "one for each of the 3 airports",
        ),
        (
            'answer = lab.trino(f"SELECT origin, max(date) AS date, max(mean_delay) AS mean_delay FROM '
            '(SELECT origin, date, avg(dep_delay) AS mean_delay FROM {FLIGHTS} GROUP BY 1, 2) GROUP BY 1")',
            "had a worse day than",
        ),
        (
            'answer = lab.trino(f"SELECT origin, max_by(day, mean_delay) AS date, max(mean_delay) AS '
            "mean_delay FROM (SELECT origin, date(time_hour) AS day, avg(dep_delay) AS mean_delay "
            'FROM {FLIGHTS} GROUP BY 1, 2) GROUP BY 1")',
            "which is in UTC",
        ),
    ],
}
