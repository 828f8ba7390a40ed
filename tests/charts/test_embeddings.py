"""Charts of embeddings hold the numbers that they are given."""

import torch

from tests.charts.drawing import drawn, holds
from transformer_annotated.charts.embeddings import embedding_plane


def test_embedding_plane_has_every_word_at_every_step():
    """A value stands where its row says, and the slider is there."""
    matrices = {0: torch.eye(2), 10: 2 * torch.eye(2)}
    spec = drawn(embedding_plane(matrices, ["a", "b"], ["x", "y"]))
    assert holds(spec, "step", step=10, word="a", x=2.0)
