"""The charts hold the numbers that they are given, on the right axes."""

import pytest
import torch
import vl_convert
from torch.testing import assert_close

from transformer_annotated import charts

CURVE = [{"x": x, "y": x * k, "k": f"{k}"} for k in (1, 2) for x in (1, 2, 3)]
WEIGHTS = torch.rand(3, 2, 4).softmax(-1)
HEADS = {f"{i + 1}": w for i, w in enumerate(WEIGHTS)}
CHARTS = {
    "curves": lambda: charts.curves(CURVE, "x", "y", "k", log_x=True),
    "heat_map": lambda: charts.heat_map(HEADS, ["a", "a"], list("wxyz")),
    "sharpness": charts.sharpness,
    "score_map": lambda: charts.score_map(
        {"dot": torch.eye(3)}, [-1, 0, 1], query=[0.5, -1]
    ),
}


@pytest.mark.parametrize("name", CHARTS)
def test_chart_compiles_and_draws(name):
    """Vega-Lite compiles each chart, and Vega draws it."""
    spec = CHARTS[name]().to_dict()
    assert "<path" in vl_convert.vegalite_to_svg(spec)


def test_every_chart_is_tried():
    """No chart function is missing above."""
    functions = {n for n in charts.__all__ if callable(getattr(charts, n))}
    assert functions == set(CHARTS)


def test_heat_map_puts_queries_on_rows_and_keys_on_columns():
    """The cell at (query i, key j) has the weight w[i, j] of its panel."""
    chart = CHARTS["heat_map"]().to_dict()
    assert chart["encoding"]["y"]["field"] == "query"
    assert chart["encoding"]["x"]["field"] == "key"
    drawn = torch.zeros_like(WEIGHTS)
    for row in chart["data"]["values"]:
        i, j = (int(row[axis].split()[0]) for axis in ("query", "key"))
        drawn[int(row["panel"]) - 1, i, j] = row["weight"]
    assert_close(drawn, WEIGHTS, atol=1e-4, rtol=0)


def test_score_map_marks_the_query():
    """The cross stands where the query is."""
    _, mark = CHARTS["score_map"]().to_dict()["layer"]
    (spot,) = mark["data"]["values"]
    assert mark["encoding"]["x"]["field"] == "x"
    assert (spot["x"], spot["y"]) == (0.5, -1)


def test_menu_only_where_there_is_a_choice():
    """One panel needs no menu; several have one, in the order given."""
    (param,) = CHARTS["heat_map"]().to_dict()["params"]
    assert param["bind"]["options"] == ["1", "2", "3"]
    one = charts.heat_map({"only": WEIGHTS[0]}, ["a", "b"], list("wxyz"))
    assert "bind" not in one.to_dict()["params"][0]
