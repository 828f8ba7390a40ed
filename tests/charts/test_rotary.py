"""Charts of accuracy against position hold the numbers that they are given."""

import pytest

from tests.charts.drawing import drawn
from transformer_annotated.charts.rotary import accuracy_curves, scaled_curves


def points(**more):
    """Two positions of two lines, on two tasks."""
    return [
        {"task": task, name: line, "position": at, "accuracy": 0.5}
        | {"low": 0.25, "high": 0.75}
        | {k: v for k, v in more.items() if k != "name"}
        for name in [more["name"]]
        for task in ("look back", "repeat")
        for line in ("a", "b")
        for at in (2, 6)
    ]


@pytest.mark.parametrize("slowed", [False, True])
def test_curves_have_menus_a_band_and_the_trained_length(slowed):
    """Each choice draws its own rows; a rule stands at the trained length."""
    if slowed:
        rows = points(name="rotation", factor=4) + points(
            name="rotation", factor=2
        )
        spec = drawn(scaled_curves(rows, 16))
    else:
        rows = points(name="kind")
        spec = drawn(accuracy_curves(rows, 16))
    names = [param["name"] for param in spec["params"]]
    assert "task" in names and ("factor" in names) == slowed
    band, line, rule = spec["layer"]
    assert band["encoding"]["y2"]["field"] == "high"
    assert line["encoding"]["y"]["field"] == "accuracy"
    data = [part.get("data", spec.get("data")) for part in (line, rule)]
    assert data[0]["values"] == rows
    assert data[1]["values"] == [{"position": 16}]
