"""The chart of Table 2 has every task."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.results import bleu_against_cost

COSTS = [
    {"model": model, "task": task, "kind": kind, "cost": 2e19, "BLEU": bleu}
    for task in ("German", "French")
    for model, kind, bleu in (("a", "single", 20), ("b", "ours", 30))
]


def test_bleu_against_cost_has_a_menu_of_tasks():
    """One task at a time, each kind in its colour."""
    chart = drawn(bleu_against_cost(COSTS))
    (param,) = chart["params"]
    assert param["bind"]["options"] == ["German", "French"]
    assert chart["layer"][0]["encoding"]["x"]["scale"]["type"] == "log"
    colours = chart["layer"][0]["encoding"]["color"]["scale"]
    assert colours["domain"] == ["single", "ours"]
