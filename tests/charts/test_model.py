"""The chart of the model holds the numbers that it is given."""

import torch
from torch.testing import assert_close

from tests.charts.drawing import drawn
from transformer_annotated.charts.model import forward_pass


def test_forward_pass_numbers_words_and_limits_colours():
    """A word may come twice; the number shown is exact, its colour is not."""
    first, then = torch.rand(2, 2, 4)
    steps = [("first", "source", first), ("then", "source", 9 * then)]
    rows = drawn(forward_pass(steps, {"source": ["a", "a"]}))["data"]["values"]
    assert {row["word"] for row in rows} == {"0 a", "1 a"}
    shown = torch.tensor([r["value"] for r in rows if r["step"] == 1])
    assert_close(shown, (9 * then).flatten(), atol=0.01, rtol=0)
    assert max(row["colour"] for row in rows) <= 3
