"""docs/operations.md: the doctor's codes are those of the code, and the limits of `scripts/tarn sql` too."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tarn.cli.clients import duck, engines, scans
from tests.support.pages import ROOT, section, tables, text_of

PAGE = text_of("docs/operations.md")
MIB = 1024 * 1024


def constants(node: ast.expr) -> Iterator[str]:
    """Yield the texts that an expression may be: a constant, or either side of a conditional one."""
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.IfExp):
        yield from (*constants(node.body), *constants(node.orelse))


def codes() -> set[str]:
    """The codes of all findings of the doctor."""
    found: set[str] = set()
    for path in (ROOT / "scripts" / "lib" / "tarn_host" / "doctor").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("Finding", "_known"):
                found |= {*constants(node.args[0])} if node.args else set()
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "code":
                found |= {*constants(node.value)}
    return found


def test_the_codes_of_the_doctor_are_those_that_it_finds() -> None:
    rows = tables(section(PAGE, "When something is wrong: `scripts/doctor`"))[0]
    documented = [code for row in rows for code in row["codes"].split(", ")]
    assert len(documented) == len(set(documented)) > 40
    assert set(documented) == codes()


def test_the_limits_of_sql_are_those_of_the_code() -> None:
    text = section(PAGE, "Use: `scripts/tarn`")
    (duckdb,) = [row["limits"] for row in tables(text)[1] if row["engine"] == "duckdb"]
    assert f"{duck.MEMORY_MB} MB" in duckdb
    assert f"{scans.READ_BYTES_MAX // (1024 * MIB)} GiB of Parquet per table" in duckdb
    assert f"{scans.FILE_BYTES_MAX // MIB} MiB per file" in duckdb
    assert f"At most {engines.ROWS_MAX:,} rows are printed" in text
    assert duck.ROWS_MAX == engines.ROWS_MAX
