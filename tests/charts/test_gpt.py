"""Charts of a language model hold the numbers that they are given."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.gpt import against_truth, scale_chart


def test_the_truth_is_a_diagonal():
    """Points after each number of updates, and where both agree."""
    rows = [
        {"sentence": "a .", "grammar": -20.0, "model": -21.5, "updates": n}
        for n in (100, 200)
    ]
    spec = drawn(against_truth(rows))
    assert "updates" in [param["name"] for param in spec["params"]]
    line, points = spec["layer"]
    assert line["data"]["values"] == [{"x": -21.5}, {"x": 0}]
    assert points["data"]["values"] == rows


def test_a_line_for_each_size():
    """With a rule from the lowest to the highest of the seeds."""
    rows = [
        {"parameters": size, "tokens": n, "gap": 0.5, "low": 0.4, "high": 0.6}
        for size in ("10 k", "40 k")
        for n in (1000, 2000)
    ]
    spec = drawn(scale_chart(rows))
    rule, line = spec["layer"]
    assert rule["encoding"]["y2"]["field"] == "high"
    assert line["encoding"]["y"]["field"] == "gap"
    assert "parameters" in str(spec["params"])
