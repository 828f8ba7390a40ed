"""Charts of batches count what they show."""

import torch

from tests.charts.drawing import drawn
from transformer_annotated.charts.batching import batch_sizes, padding_grid


def test_padding_grid_counts_padding():
    """Source and target stand side by side; the title says what is empty."""
    ids = torch.tensor([[5, 2], [2, 0]])
    chart = drawn(padding_grid({"one": (ids, ids[:, :1])}))
    cells = [(r["x"], r["y"], r["cell"]) for r in chart["data"]["values"]]
    assert sorted(cells) == [
        (0, 0, "source"),
        (0, 1, "source"),
        (1, 0, "source"),
        (1, 1, "padding"),
        (3, 0, "target"),
        (3, 1, "target"),
    ]
    assert "2 pairs, 17% padding" in chart["title"]["text"]["expr"]


def test_batch_sizes_draws_the_budget():
    """The line is that of full batches, 12 tokens over 2."""
    sizes = [{"way": "a", "tokens": 2.0, "pairs": 3}] * 2
    line, points = drawn(batch_sizes(sizes, max_tokens=12))["layer"]
    assert line["data"]["values"] == [{"tokens": 2, "pairs": 6.0}]
    assert points["data"]["values"] == sizes
