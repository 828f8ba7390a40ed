"""Charts of pre-training hold the numbers that they are given."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.bert import label_curves, word_map


def test_curves_have_their_errors():
    """A line for each start, and a bar from the lowest to the highest."""
    rows = [
        {"head": head, "start": start, "labelled": n, "accuracy": 0.5,
         "low": 0.4, "high": 0.6}
        for head in ("tags", "span")
        for start in ("from scratch", "masked words")
        for n in (20, 100)
    ]  # fmt: skip
    spec = drawn(label_curves(rows))
    assert spec["data"]["values"] == rows
    bars, lines = spec["layer"]
    assert bars["encoding"]["y2"]["field"] == "high"
    assert lines["encoding"]["y"]["field"] == "accuracy"
    assert "head" in [param["name"] for param in spec["params"]]


def test_a_map_shows_one_layer_at_a_time():
    """Points have a colour for each role, and can be read."""
    rows = [
        {"layer": layer, "role": role, "words": "the dog", "x": 1.0, "y": 2.0}
        for layer in (0, 1, 2)
        for role in ("subject", "direct object")
    ]
    spec = drawn(word_map(rows))
    assert spec["data"]["values"] == rows
    assert spec["encoding"]["color"]["field"] == "role"
    assert "layer" in [param["name"] for param in spec["params"]]
