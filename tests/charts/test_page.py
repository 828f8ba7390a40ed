"""A page with charts: one file, any text, no other host."""

import json
import re
import sys

import pytest
from bs4 import BeautifulSoup

from transformer_annotated.charts.common import bar_chart
from transformer_annotated.charts.page import (
    THEME,
    figure,
    page,
    script_safe,
    vega_bundle,
)

RUDE = "</script><script>alert(1)</script><!--<b>&\"'\u2028"


def test_any_text_is_text():
    """In the title, in a caption, and inside a chart."""
    chart = bar_chart([{"n": 1, "run": RUDE}], "n", "run")
    soup = BeautifulSoup(page(RUDE, figure(chart, RUDE)), "lxml")
    assert soup.title.string == soup.h1.string == RUDE
    assert soup.figcaption.string == RUDE
    spec = json.loads(soup.select_one("figure script").string)
    assert RUDE in json.dumps(spec, ensure_ascii=False).replace('\\"', '"')
    assert len(soup.find_all("script")) == 3 and not soup.find_all("b")


def test_numbers_that_json_has_not_are_refused():
    """Rather than written into a page that then shows nothing."""
    with pytest.raises(ValueError):
        script_safe([float("nan")])


def test_the_page_is_alone():
    """It names no other file, and its policy lets nothing in."""
    text = page("title", "<p>body</p>")
    soup = BeautifulSoup(text, "lxml")
    assert not soup.find_all(src=True)
    assert [tag["href"] for tag in soup.find_all(href=True)] == ["data:,"]
    policy = soup.find("meta", {"http-equiv": True})["content"]
    assert policy.startswith("default-src 'none';") and "http" not in policy
    assert len(text.encode()) < 1.1e6
    style = soup.style.string
    assert "@import" not in style and "url(" not in style


def test_ink_has_the_colour_of_the_text():
    """So that charts can be read in the light and in the dark."""
    colours = re.findall(r'"\w*[cC]olor": "(.*?)"', json.dumps(THEME))
    assert set(colours) == {"currentColor"} and len(colours) >= 8


def test_without_the_library_that_has_vega(monkeypatch):
    """What to install, and no traceback."""
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    vega_bundle.cache_clear()
    with pytest.raises(ValueError, match="pip install vl-convert-python"):
        page("title", "")
