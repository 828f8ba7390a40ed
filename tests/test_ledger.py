"""Every name in the ledger is true: symbols and tests exist."""

import importlib
import re

import ledger
import pytest

from tests.site import ROOT

SECTIONS = ledger.load(ROOT / "book" / "ledger.toml")
ROWS = [
    (s["number"], i, row) for s in SECTIONS for i, row in enumerate(s["row"])
]
AFTER = ledger.load_after(ROOT / "book" / "ledger.toml")
ROWS += [("after", i, row) for i, row in enumerate(AFTER)]
EACH_ROW = pytest.mark.parametrize(
    "row", [r for *_, r in ROWS], ids=[f"{n}-{i}" for n, i, _ in ROWS]
)


def find(name):
    """The object with a dotted name, or None."""
    module, _, attribute = name.partition(".")
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            if not hasattr(found, part):
                found = importlib.import_module(f"{found.__name__}.{part}")
            else:
                found = getattr(found, part)
    except ImportError:
        return None
    return found


@EACH_ROW
def test_row_names_what_exists(row):
    """Symbols and tests exist; what has a symbol has a test."""
    assert set(row) <= {"says", "symbol", "deviation", "tests", "where"}
    assert row["says"].strip()
    symbol = row.get("symbol")
    if symbol:
        assert find(f"transformer_annotated.{symbol}") is not None, symbol
        assert row.get("tests"), symbol
    for test in row.get("tests", []):
        assert test.rpartition(".")[2].startswith("test_")
        assert callable(find(f"tests.{test}")), test


def test_what_is_not_the_papers_is_tested_and_told():
    """Each row has a symbol, tests, and a place in the book; none a box."""
    pages = "\n".join(
        path.read_text(encoding="utf-8")
        for path in (ROOT / "notebooks").rglob("*.ipynb")
    )
    for row in AFTER:
        assert set(row) == {"says", "symbol", "where", "tests"}
        assert f"({row['where']})=" in pages, row["where"]


def test_all_sections_of_the_paper_are_there():
    """Sections 3 to 6 are covered, each once, in order."""
    numbers = [section["number"] for section in SECTIONS]
    assert numbers == sorted(set(numbers))
    covered = {number.split(".")[0] for number in numbers}
    assert {"3", "4", "5", "6"} <= covered
    for part in ("3", "3.1", "3.2.1", "3.2.2", "3.2.3", "3.3", "3.4", "3.5"):
        assert part in numbers
    for part in ("5.1", "5.2", "5.3", "5.4", "6.1", "6.2", "6.3"):
        assert part in numbers


def test_a_wrong_name_is_found_out():
    """The look-up that these tests rest on says no to what is not there."""
    assert find("transformer_annotated.attention.attention") is not None
    assert find("transformer_annotated.attention.attend_badly") is None
    assert find("transformer_annotated.nowhere.attention") is None
    assert find("tests.test_ledger.test_nothing") is None


def test_every_promise_has_a_test():
    """What it promises: each row of a table names tests, and they exist."""
    page = (ROOT / "book" / "promises.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (?!Promise)(.*) \|$", page, re.MULTILINE)
    assert len(rows) > 10
    assert all("<tests." in row for row in rows)
    for name in re.findall(r"<(tests\.[\w.]+)>", page):
        assert callable(find(name)), name
