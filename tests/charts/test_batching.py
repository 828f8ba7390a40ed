"""Charts of batches count what they show."""

import torch

from tests.charts.drawing import drawn
from transformer_annotated.charts.batching import padding_grid


def test_padding_grid_counts_padding():
    """A bar for each sentence, one for its padding; the title counts."""
    ids = torch.tensor([[5, 2], [2, 0]])
    chart = drawn(padding_grid({"one": (ids, ids[:, :1])}))
    bars = {
        (r["y"], r["x"], r["x2"]): r["cell"] for r in chart["data"]["values"]
    }
    assert bars == {
        (0, 0, 2): "source",
        (1, 0, 1): "source",
        (1, 1, 2): "padding",
        (0, 3, 4): "target",
        (1, 3, 4): "target",
    }
    assert "2 pairs, 17% padding" in chart["title"]["text"]["expr"]
