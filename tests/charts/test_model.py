"""Charts of the model hold the numbers that they are given."""

import torch
from torch.testing import assert_close

from tests.charts.drawing import drawn, holds
from transformer_annotated.charts.model import count_chart, forward_pass


def test_forward_pass_numbers_words_and_limits_colours():
    """A word may come twice; the number shown is exact, its colour is not."""
    first, then = torch.rand(2, 2, 4)
    steps = [("first", "source", first), ("then", "source", 9 * then)]
    rows = drawn(forward_pass(steps, {"source": ["a", "a"]}))["data"]["values"]
    assert {row["word"] for row in rows} == {"0 a", "1 a"}
    shown = torch.tensor([r["value"] for r in rows if r["step"] == 1])
    assert_close(shown, (9 * then).flatten(), atol=0.01, rtol=0)
    assert max(row["colour"] for row in rows) <= 3


def test_count_chart_has_ours_beside_the_papers():
    """Two numbers for each model."""
    spec = drawn(count_chart([{"model": "base", "ours": 63.0, "paper": 65}]))
    assert holds(spec, None, count="ours", millions=63)
    assert holds(spec, None, count="the paper's", millions=65)
