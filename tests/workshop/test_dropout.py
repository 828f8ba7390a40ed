"""Dropout keeps the mean, drops what it should, and follows the seed."""

import pytest
import torch
from torch.testing import assert_close

from transformer_annotated.workshop.dropout import Dropout


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 0.999, 1 - 5e-6])
def test_dropout_drops_a_fraction_and_keeps_the_mean(rate):
    """A fraction is zero, the rest scaled; the gradient has the same mask."""
    x = torch.ones(400, 501, requires_grad=True)  # not a multiple of four
    y = Dropout(rate)(x)
    assert abs(y.eq(0).float().mean() - rate) < 0.005
    assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - rate)))
    y.sum().backward()
    assert_close(x.grad, y.detach())
    neighbours = y.detach().eq(0).float()[:, :500].reshape(-1, 4).T
    if 0.1 <= rate <= 0.3:  # four come from one number, and are independent
        assert (torch.corrcoef(neighbours) - torch.eye(4)).abs().max() < 0.03
        assert_close(
            neighbours.mean(1), torch.full((4,), rate), atol=0.01, rtol=0
        )


def test_dropout_rests_in_evaluation_and_follows_the_seed():
    """Nothing is dropped in evaluation; equal seeds drop the same."""
    x = torch.randn(3, 5, 7, dtype=torch.float64)
    drop = Dropout(0.5)
    assert torch.equal(drop.eval()(x), x)
    drop.train()
    twice = [drop(x) for _ in range(2) if torch.manual_seed(1)]
    assert torch.equal(*twice)
    assert not torch.equal(twice[0], drop(x))
    assert drop(x.to("meta")).shape == x.shape
