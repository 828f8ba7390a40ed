"""The chart of the tour holds the numbers that it is given."""

import torch
from torch.testing import assert_close

from tests.charts.drawing import drawn
from transformer_annotated.charts.tour import forward_pass


def test_forward_pass_numbers_words_and_keeps_numbers():
    """A word may come twice; a step shows its first components."""
    first, then = torch.rand(2, 2, 4)
    steps = [("first", "source", first), ("then", "source", 9 * then)]
    chart = forward_pass(steps, {"source": ["a", "a"]}, components=3)
    rows = drawn(chart)["data"]["values"]
    assert [row["word"] for row in rows] == ["0 a", "1 a"] * 2
    shown = torch.tensor([r["value"] for r in rows if r["step"] == 1])
    assert_close(shown, 9 * then[:, :3], atol=0.01, rtol=0)
