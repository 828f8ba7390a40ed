"""Charts of batches count what they show."""

import torch

from tests.charts.drawing import drawn
from transformer_annotated.charts.batching import batch_sizes, padding_grid


def test_padding_grid_counts_padding():
    """Source and target stand side by side; the title says what is empty."""
    ids = torch.tensor([[5, 2], [2, 0]])
    chart = drawn(padding_grid({"one": (ids, ids[:, :1])}))
    cells = {(r["y"], r["x"]): r["cell"][0] for r in chart["data"]["values"]}
    places = [(y, x) for y in (0, 1) for x in (0, 1, 3)]
    assert cells == dict(zip(places, "sst" + "spt", strict=True))
    assert "2 pairs, 17% padding" in chart["title"]["text"]["expr"]


def test_batch_sizes_draws_the_budget():
    """The line is that of full batches, 12 tokens over 2."""
    sizes = [{"way": "a", "tokens": 2.0, "pairs": 3}] * 2
    line, points = drawn(batch_sizes(sizes, max_tokens=12))["layer"]
    assert line["data"]["values"] == [{"tokens": 2, "pairs": 6.0}]
    assert points["data"]["values"] == sizes
