"""What charts share: kinds of chart, safe text, and nothing at import."""

import importlib
import json
import pkgutil
import subprocess
import sys

import altair as alt
import pytest
import torch
from torch.testing import assert_close

from tests.charts.drawing import drawn
from tests.charts.test_looking import explained
from tests.site import ROOT
from transformer_annotated import charts
from transformer_annotated.charts import common
from transformer_annotated.charts.looking import attention_explorer

CURVE = [{"x": x, "y": x * k, "k": f"{k}"} for k in (1, 2) for x in (1, 2, 3)]
WEIGHTS = torch.rand(3, 2, 4).softmax(-1)
HEADS = {f"{i + 1}": w for i, w in enumerate(WEIGHTS)}
LINKS = {
    "moved": ("a b c .", "x z y .", [(0, 0), (1, 2), (2, 1), (3, 3)]),
    "not": ("a b .", "x y .", [(0, 0), (1, 1), (2, 2)]),
}
RUDE = "</script><script>alert(1)</script><!-- <b>"
RUDE_CHARTS = {
    "heatmap": lambda: common.heatmap({RUDE: WEIGHTS[0]}, [RUDE] * 2, "wxyz"),
    "explorer": lambda: attention_explorer(
        {RUDE: explained([RUDE, "</s>"], ["<b>", "</s>"])}
    ),
    "bar_chart": lambda: common.bar_chart([{"n": 1, "run": RUDE}], "n", "run"),
}


def test_every_chart_is_tried():
    """Each function that returns a chart is drawn in the tests beside it."""
    for module in pkgutil.iter_modules(charts.__path__):
        tests = ROOT / "tests" / "charts" / f"test_{module.name}.py"
        text = tests.read_text(encoding="utf-8")
        found = importlib.import_module(f"{charts.__name__}.{module.name}")
        for name in found.__all__:
            hints = getattr(getattr(found, name), "__annotations__", {})
            if "Chart" in str(hints.get("return")):
                assert f"{name}(" in text, f"{module.name}.{name}"


def test_importing_the_package_loads_no_altair():
    """Charts are for those who draw; importing them configures nothing."""
    code = (
        "import sys, transformer_annotated; assert 'altair' not in sys.modules;"
        "import altair as alt; save = alt.TopLevelMixin.save;"
        "import transformer_annotated.charts.looking;"
        "assert not alt.renderers.options and alt.TopLevelMixin.save is save"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_a_slider_chooses_the_rows_of_its_value():
    """The rows with its value under its name are drawn, and no others."""
    slider = common.slider("x", 2, 1, 3, label="steps")
    spec = drawn(common.chart_of(CURVE, at=slider).mark_bar().encode(x="x:Q"))
    assert spec["transform"] == [{"filter": "(datum.x === x)"}]
    assert spec["params"][0]["bind"]["name"] == "steps "


def test_line_chart_has_a_logarithmic_axis():
    """Ticks are the powers that enclose the numbers."""
    spec = drawn(common.line_chart(CURVE, "x", "y", "k", log_x=True))
    assert spec["encoding"]["x"]["scale"] == {"type": "log", "base": 2}
    assert spec["encoding"]["x"]["axis"]["values"] == [1, 2, 4]
    assert "scale" not in spec["encoding"]["y"]


def test_bar_chart_writes_the_number_at_the_end():
    """A bar and a number for each row, in the order given."""
    rows = [{"hours": 2, "run": "b"}, {"hours": 3.5, "run": "a"}]
    spec = drawn(common.bar_chart(rows, "hours", "run"))
    assert spec["data"]["values"] == rows
    assert spec["layer"][0]["encoding"]["y"]["sort"] is None
    assert spec["layer"][1]["encoding"]["text"]["field"] == "hours"


def test_heatmap_puts_queries_on_rows_and_keys_on_columns():
    """The cell at (query i, key j) has the weight w[i, j] of its panel."""
    chart = drawn(common.heatmap(HEADS, ["a", "a"], list("wxyz")))
    assert chart["encoding"]["y"]["field"] == "query"
    assert chart["encoding"]["x"]["field"] == "key"
    drawn_weights = torch.zeros_like(WEIGHTS)
    for row in chart["data"]["values"]:
        i, j = (int(row[axis].split()[0]) for axis in ("query", "key"))
        drawn_weights[int(row["panel"]) - 1, i, j] = row["weight"]
    assert_close(drawn_weights, WEIGHTS, atol=1e-4, rtol=0)


def test_menu_only_where_there_is_a_choice():
    """One panel needs no menu; several have one, in the order given."""
    (param,) = drawn(common.heatmap(HEADS, "ab", "wxyz"))["params"]
    assert param["bind"]["options"] == ["1", "2", "3"]
    one = common.heatmap({"only": WEIGHTS[0]}, "ab", "wxyz")
    assert "bind" not in one.to_dict()["params"][0]


def test_word_alignment_draws_links_between_words():
    """A line from each word to its partner; crossing ones are marked."""
    chart = drawn(common.word_alignment(LINKS))
    lines, left, right = chart["layer"]
    moved = [r for r in lines["data"]["values"] if r["panel"] == "moved"]
    assert [(r["y"], r["y2"]) for r in moved] == LINKS["moved"][2]
    assert [r["words"] for r in moved] == ["a – x", "b – y", "c – z", ". – ."]
    crossing = [r["line"] == "crosses another" for r in moved]
    assert crossing == [False, True, True, False]
    words = [r["word"] for r in left["data"]["values"] if r["panel"] == "moved"]
    assert words == [*"abc.", *"xzy."]
    assert left["mark"]["align"] == "right"
    assert right["mark"]["align"] == "left"
    (param,) = chart["params"]
    assert param["bind"]["options"] == ["moved", "not"]


@pytest.mark.parametrize("name", RUDE_CHARTS)
def test_no_text_ends_the_script_of_a_chart(name, tmp_path):
    """Shown, saved or as HTML: text of a chart cannot be taken for a tag."""
    chart = RUDE_CHARTS[name]()
    chart.save(tmp_path / "page.html")
    shown = chart._repr_mimebundle_()["text/html"]
    assert shown.count("</script") == shown.count("<script") == 1
    saved = (tmp_path / "page.html").read_text(encoding="utf-8")
    for html in (shown, saved, chart.to_html()):
        assert "<script>alert" not in html and r"\u003c!-- \u003cb>" in html
        assert "<b>" not in html and "<!--" not in html
    spec = shown.rpartition("})(")[2].rpartition(", {")[0]
    assert RUDE in json.dumps(json.loads(spec))


def test_a_renderer_without_html_is_left_alone():
    """Who chose another renderer keeps it, and its options."""
    with alt.renderers.enable("mimetype"):
        common.bar_chart([{"n": 1, "run": "a"}], "n", "run")
        assert alt.renderers.active == "mimetype"
        assert alt.renderers.options == {}


@pytest.mark.parametrize(
    "renderer", "default html colab kaggle zeppelin browser olli".split()
)
def test_a_renderer_chosen_later_is_safe_too(renderer, monkeypatch):
    """The text is escaped where HTML is made, not where it is asked for."""
    pages = []
    monkeypatch.setattr(
        "altair.utils._show.open_html_in_browser",
        lambda html, *_, **__: pages.append(html),
    )
    chart = RUDE_CHARTS["bar_chart"]()
    with alt.renderers.enable(renderer):
        bundle = chart._repr_mimebundle_() or {}
    pages += [page for page in bundle.values() if isinstance(page, str)]
    assert any(r"\u003c!-- \u003cb>" in page for page in pages)
    assert not any("<script>alert" in page for page in pages)


def test_json_settings_of_ones_own_are_safe_too(tmp_path):
    """They are not asked."""
    chart = RUDE_CHARTS["bar_chart"]()
    chart.save(tmp_path / "page.html", json_kwds={"indent": 1})
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for html in (page, chart.to_html(json_kwds={"sort_keys": True})):
        assert "<script>alert" not in html and r"\u003c!-- \u003cb>" in html


def test_accuracy_curves_have_a_menu_bars_and_lines():
    """The axes are named; x is logarithmic, and a click picks a series."""
    row = {"accuracy": 0.5, "low": 0.4, "high": 0.6}
    rows = [
        {"size": size, "kind": kind, "of": of} | row
        for of in ("digits", "letters")
        for kind in ("one", "two")
        for size in (10, 100)
    ]
    chart = common.accuracy_curves(
        rows, "size", "kind", "of", axes=("images", "right"), colours="rg"
    )
    spec = drawn(chart)
    assert spec["data"]["values"] == rows
    bars, lines = spec["layer"]
    x, low = bars["encoding"]["x"], bars["encoding"]["y"]
    assert x["title"] == "images" and low["title"] == "right"
    assert x["scale"]["type"] == "log" and x["axis"]["values"] == [10, 100]
    assert bars["encoding"]["y2"]["field"] == "high"
    assert lines["encoding"]["y"]["field"] == "accuracy"
    assert "of" in [param["name"] for param in spec["params"]]
