"""The charts hold the numbers that they are given, on the right axes."""

import pytest
import torch
import vl_convert
from torch.testing import assert_close

from transformer_annotated import charts
from transformer_annotated.positions import sinusoids

CURVE = [{"x": x, "y": x * k, "k": f"{k}"} for k in (1, 2) for x in (1, 2, 3)]
WEIGHTS = torch.rand(3, 2, 4).softmax(-1)
HEADS = {f"{i + 1}": w for i, w in enumerate(WEIGHTS)}
MATRICES = {0: torch.eye(2), 10: 2 * torch.eye(2)}
STEPS = [("first", "source", WEIGHTS[0]), ("then", "source", 9 * WEIGHTS[1])]
COUNTS = [{"model": "base", "ours": 63.0, "paper": 65}]
IDS = torch.tensor([[5, 2], [2, 0]])
PLAN = {"model": "base", "gpu": "P100", "work": 3.6e18, "peak": 1e13}
SIZES = [{"way": "a", "tokens": 2.0, "pairs": 3}] * 2
CHARTS = {
    "curves": lambda: charts.curves(CURVE, "x", "y", "k", log_x=True),
    "heat_map": lambda: charts.heat_map(HEADS, ["a", "a"], list("wxyz")),
    "sharpness": charts.sharpness,
    "score_map": lambda: charts.score_map(
        {"dot": torch.eye(3)}, [-1, 0, 1], query=[0.5, -1]
    ),
    "word_map": lambda: charts.word_map(MATRICES, ["a", "b"], ["x", "y"]),
    "clocks": lambda: charts.clocks(sinusoids(5, 16)),
    "position_map": lambda: charts.position_map(sinusoids(5, 8)),
    "waves": lambda: charts.waves(sinusoids(5, 4), [6.28, 628.0]),
    "shift_map": lambda: charts.shift_map({1: torch.eye(2), 2: -torch.eye(2)}),
    "walk_map": lambda: charts.walk_map(STEPS, {"source": ["a", "a"]}),
    "count_chart": lambda: charts.count_chart(COUNTS),
    "batch_map": lambda: charts.batch_map({"one": (IDS, IDS[:, :1])}),
    "batch_sizes": lambda: charts.batch_sizes(SIZES, max_tokens=12),
    "ring_map": lambda: charts.ring_map(torch.tensor([[[1, 1]] * 2] * 3)),
    "hours_chart": lambda: charts.hours_chart(
        [PLAN], [{"model": "base", "gpu": "P100", "hours": 12}]
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


@pytest.mark.parametrize(
    ("name", "param", "keys", "expected"),
    [
        ("word_map", "step", ("step", "word", "x"), (10, "a", 2.0)),
        ("position_map", None, ("position", "component", "value"), (0, 1, 1.0)),
        ("clocks", "position", ("position", "pair", "tip_x"), (0, 1, 2.5)),
        ("waves", "pair", ("pair", "part", "value"), (1, "cosine", 1.0)),
        (
            "shift_map",
            "shift",
            ("shift", "row", "column", "value"),
            (2, 1, 1, -1),
        ),
        ("count_chart", None, ("count", "millions"), ("the paper's", 65)),
    ],
)
def test_charts_hold_the_numbers_they_are_given(name, param, keys, expected):
    """A value stands where its row says, and the slider is there."""
    chart = CHARTS[name]().to_dict()
    rows = chart["data"]["values"]
    assert expected in {tuple(row[key] for key in keys) for row in rows}
    if param:
        assert param in [p["name"] for p in chart["params"]]


def test_walk_map_numbers_words_and_limits_colours():
    """A word may come twice; the number shown is exact, its colour is not."""
    rows = CHARTS["walk_map"]().to_dict()["data"]["values"]
    assert {row["word"] for row in rows} == {"0 a", "1 a"}
    drawn = torch.tensor([r["value"] for r in rows if r["step"] == 1])
    assert_close(drawn, (9 * WEIGHTS[1]).flatten(), atol=0.01, rtol=0)
    assert max(row["colour"] for row in rows) <= 3


def test_batch_map_counts_padding():
    """Source and target stand side by side; the title says what is empty."""
    chart = CHARTS["batch_map"]().to_dict()
    cells = [(r["x"], r["y"], r["cell"]) for r in chart["data"]["values"]]
    assert sorted(cells) == [
        (0, 0, "source"),
        (0, 1, "source"),
        (1, 0, "source"),
        (1, 1, "padding"),
        (3, 0, "target"),
        (3, 1, "target"),
    ]
    assert "2 pairs, 17% padding" in chart["title"]["text"]["expr"]


def test_batch_sizes_draws_the_budget():
    """The line is that of full batches, 12 tokens over 2."""
    line, points = CHARTS["batch_sizes"]().to_dict()["layer"]
    assert line["data"]["values"] == [{"tokens": 2, "pairs": 6.0}]
    assert points["data"]["values"] == SIZES


def test_ring_map_has_a_step_for_each_state():
    """A slider from before the first step to after the last."""
    counts = torch.stack([torch.eye(2) + step for step in range(3)])
    chart = charts.ring_map(counts).to_dict()
    assert chart["params"][0]["bind"]["max"] == 2
    rows = (
        chart["layer"][0]["data"]["values"]
        if "data" in chart["layer"][0]
        else chart["data"]["values"]
    )
    drawn = torch.zeros_like(counts)
    for row in rows:
        drawn[row["step"], row["worker"], row["chunk"]] = row["summands"]
    assert torch.equal(drawn, counts)


def test_hours_chart_divides_work_by_speed():
    """3.6e18 operations at 35 % of 1e13 on 8 GPUs are 35.7 hours."""
    spec = CHARTS["hours_chart"]().to_dict()
    svg = vl_convert.vegalite_to_svg(spec)
    assert "36 h" in svg
    assert {p["name"]: p["value"] for p in spec["params"]} == {
        "used": 35,
        "doublings": 3,
    }
    assert spec["layer"][2]["data"]["values"][0]["hours"] == 12
