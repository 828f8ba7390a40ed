"""Positions inside the score: what they do to it, and what they leave."""

import pytest
import torch
from torch.testing import assert_close

from transformer_annotated.after.rotary import (
    POSITIONS,
    RelativeConfig,
    relative_transformer,
)
from transformer_annotated.workshop.models import start_decoding

EACH_POSITION = pytest.mark.parametrize("position", POSITIONS)


def a_model(position, **changes):
    """A small model in evaluation mode."""
    torch.manual_seed(0)
    sizes = {"layers": 2, "d_model": 16, "d_ff": 32, "heads": 2} | changes
    return relative_transformer(
        RelativeConfig(30, position=position, **sizes)
    ).eval()


@EACH_POSITION
def test_step_by_step_is_all_at_once(position):
    """Keys that were turned go into the cache, each at its place."""
    model = a_model(position)
    src, tgt = torch.randint(4, 30, (3, 5)), torch.randint(4, 30, (3, 40))
    with torch.no_grad():
        whole = model.decode(tgt, model.encode(src), src)
    decoder = start_decoding(model, src)
    steps = torch.stack([decoder.hidden(x) for x in tgt.unbind(1)], 1)
    assert_close(steps, whole, rtol=1e-4, atol=1e-5)
