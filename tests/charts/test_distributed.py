"""A chart of several GPUs: how a ring adds up."""

import torch

from tests.charts.drawing import drawn
from transformer_annotated.charts.distributed import ring_all_reduce


def test_ring_all_reduce_has_a_step_for_each_state():
    """A slider from before the first step to after the last."""
    counts = torch.stack([torch.eye(2) + step for step in range(3)])
    chart = drawn(ring_all_reduce(counts))
    assert chart["params"][0]["bind"]["max"] == 2
    held = torch.zeros_like(counts)
    for row in chart["data"]["values"]:
        held[row["step"], row["worker"], row["chunk"]] = row["summands"]
    assert torch.equal(held, counts)
