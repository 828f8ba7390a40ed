"""Tables show text as it is."""

import pytest
from bs4 import BeautifulSoup

from transformer_annotated.charts.tables import show_table

RUDE = "</td><script>alert(1)</script><!-- <b>"


def test_tables_are_text():
    """Everything is escaped; a row is marked; German says that it is."""
    rows = [{"de <b>": RUDE, "n": 1}, {"de <b>": "ja"}]
    table = show_table(rows, RUDE, mark=1, german=["de <b>"])
    parsed = BeautifulSoup(table._repr_html_(), "lxml")
    assert list(parsed.strings) == [RUDE, "de <b>", "n", RUDE, "1", "ja"]
    assert not parsed.select("script, b")
    assert [td.get("lang") for td in parsed.select("td")] == ["de", None] * 2
    assert parsed.select("tr.marked") == parsed.select("tr")[2:]
    with pytest.raises(ValueError, match="rows: none"):
        show_table([], "empty")
