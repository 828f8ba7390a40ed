"""The chart of Table 3 shows every row."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.variations import ablation

CHANGES = [
    {"row": "h = 1", "measure": "BLEU", "of": "the paper", "change": -0.9},
    {"row": "h = 1", "measure": "BLEU", "of": "here", "change": 2.0}
    | {"low": 1.5, "high": 2.5},
]
OTHER = {"row": "h = 1", "measure": "NLL", "of": "here", "change": 0.1}


def test_ablation_reaches_from_the_worst_run_to_the_best():
    """A line for each row of several runs, a point for each row."""
    chart = drawn(ablation([*CHANGES, OTHER]))
    (param,) = chart["params"]
    assert param["bind"]["options"] == ["BLEU", "NLL"]
    _, line, point = chart["layer"]
    assert line["encoding"]["x"]["field"] == "low"
    assert line["encoding"]["x2"]["field"] == "high"
    assert point["encoding"]["x"]["field"] == "change"
    assert point["encoding"]["y"]["field"] == "row"
    colours = point["encoding"]["color"]["scale"]
    assert colours["domain"] == ["the paper", "here"]
