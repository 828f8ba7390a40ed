"""Charts of what attention loses hold the numbers that they are given."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.limits import (
    SMALLEST,
    parity_curves,
    spread_chart,
)


def test_spread_is_drawn_by_layer_and_zero_is_not_lost():
    """A line for each stack; what has no logarithm stands at the bottom."""
    rows = [
        {"stack": stack, "layer": layer, "spread": spread}
        for stack in ("attention alone", "the paper's layer")
        for layer, spread in ((0, 1.0), (1, 0.0))
    ]
    spec = drawn(spread_chart(rows))
    values = spec["data"]["values"]
    assert [row["spread"] for row in values] == [1.0, SMALLEST] * 2
    assert spec["encoding"]["y"]["scale"]["type"] == "log"
    assert spec["encoding"]["color"]["field"] == "stack"


def test_parity_has_menus_a_band_and_the_trained_length():
    """Each choice draws its own rows; a rule stands at the trained length."""
    rows = [
        {"kind": kind, "rate": rate, "updates": updates, "length": length}
        | {"accuracy": 0.7, "low": 0.6, "high": 0.8}
        for kind in ("LSTM", "Transformer")
        for rate in (0.1, 0.2)
        for updates in (10, 20)
        for length in (2, 4)
    ]
    spec = drawn(parity_curves(rows, 3))
    names = {param["name"] for param in spec["params"]}
    assert {"rate", "updates"} <= names
    band, line, rule = spec["layer"]
    assert band["encoding"]["y2"]["field"] == "high"
    assert line["encoding"]["y"]["field"] == "accuracy"
    data = [part.get("data", spec.get("data")) for part in (line, rule)]
    assert data[0]["values"] == rows
    assert data[1]["values"] == [{"length": 3}]
