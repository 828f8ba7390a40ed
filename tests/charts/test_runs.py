"""Curves of a run: thinned, without what is no number, drawn by Vega."""

import math

from hypothesis import given
from hypothesis import strategies as st

from tests.charts.drawing import drawn
from transformer_annotated.charts.runs import (
    POINTS,
    learning_curves,
    median_speed,
    rate_curve,
    series,
    speed_curve,
    speeds,
)

ROWS = [
    {"step": 10, "nll": 2.0, "loss": 2.5, "rate": 1e-3}
    | {"tokens": 500, "seconds": 1.0},
    {"step": 10, "valid_nll": 1.9, "tokens": 500, "seconds": 1.0},
    {"step": 20, "nll": 1.5, "loss": 2.1, "rate": 2e-3}
    | {"tokens": 900, "seconds": 5.0},
]


@given(st.lists(st.floats(-1e6, 1e6), max_size=3 * POINTS))
def test_a_series_keeps_ends_and_mean(values):
    """However long it is; the last point is the last update."""
    rows = [{"step": i, "nll": v} for i, v in enumerate(values, 1)]
    found = series(rows, "nll")
    assert len(found) == min(len(values), len(found)) <= POINTS
    if len(values) <= POINTS:
        assert [value for _, value in found] == values
    if values:
        assert found[-1][0] == len(values)
        assert min(values) - 1e-6 <= found[0][1] <= max(values) + 1e-6


def test_what_is_no_number_is_left_out():
    """Of a line that was edited, or of a loss that was none."""
    odd = (None, "2.0", [], True, math.nan, math.inf, -math.inf)
    rows = [{"step": 1, "nll": value} for value in odd]
    assert series([*rows, *ROWS], "nll") == [(10, 2.0), (20, 1.5)]
    rows = [ROWS[0] | {"tokens": "x"}, ROWS[0] | {"seconds": math.nan}]
    assert speeds([*rows, *ROWS]) == speeds(ROWS)


def test_speed_by_hand():
    """Tokens over seconds from line to line, validations left out."""
    assert [row["speed"] for row in speeds(ROWS)] == [500, 100]
    assert median_speed(ROWS) == 300
    assert median_speed([]) is None
    assert speeds([ROWS[0], ROWS[0]]) == speeds(ROWS[:1])  # no time passed


def test_curves_are_drawn():
    """Likelihood, loss, rate and speed, by Vega itself."""
    spec = drawn(learning_curves(ROWS))
    found = {(r["of"], r["update"]) for r in spec["data"]["values"]}
    names = ("training, NLL", "training, smoothed loss")
    assert found == {(name, step) for name in names for step in (10, 20)} | {
        ("validation, NLL", 10)
    }
    for chart in (rate_curve(ROWS), speed_curve(ROWS)):
        assert len(drawn(chart)["data"]["values"]) == 2
