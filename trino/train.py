"""Class-data-sharing training run, while the image is built: waits for Trino and runs one query."""

import json
import time
import urllib.error
import urllib.request

WAIT_S = 600.0
SQL = """
    SELECT r.name, count(*), sum(o.totalprice), row_number() OVER (ORDER BY count(*) DESC)
    FROM tpch.tiny.orders o JOIN tpch.tiny.customer c ON o.custkey = c.custkey
    JOIN tpch.tiny.nation n ON c.nationkey = n.nationkey LEFT JOIN tpch.tiny.region r USING (regionkey)
    WHERE o.orderdate > DATE '1995-01-01' GROUP BY r.name ORDER BY 2 DESC LIMIT 3
"""


def ask(url: str, sql: str | None = None) -> dict:
    """Send one request of Trino's client protocol; return the parsed response."""
    headers = {"X-Trino-User": "build"}
    data = sql.encode() if sql is not None else None
    request = urllib.request.Request(url, data=data, headers=headers)  # noqa: S310 - of this machine
    with urllib.request.urlopen(request, timeout=30) as told:  # noqa: S310
        return json.load(told)


def query(sql: str) -> list:
    """Return the rows of a statement.

    Raises:
        ValueError: the statement failed.
    """
    page, rows = ask("http://127.0.0.1:8080/v1/statement", sql), []
    while True:
        if "error" in page:
            raise ValueError(page["error"]["message"])
        rows += page.get("data", [])
        if "nextUri" not in page:
            return rows
        page = ask(page["nextUri"])


def main() -> None:
    """Repeat the query until it succeeds.

    Raises:
        SystemExit: the query does not succeed within 600 s.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            rows = query(SQL)
        except (OSError, ValueError) as error:
            if time.monotonic() > deadline:
                raise SystemExit(f"no answer within {WAIT_S:g} s: {error}") from error
            time.sleep(0.5)
        else:
            assert len(rows) == 3, rows
            return


if __name__ == "__main__":
    main()
