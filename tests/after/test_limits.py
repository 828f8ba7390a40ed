"""What attention loses is measured rightly, and the stored runs say it."""

import math

import pytest
import torch
from torch.testing import assert_close

from transformer_annotated.after.limits import (
    KINDS,
    SUBLAYERS,
    TRAINED,
    ParityModel,
    flip_influence,
    parity_accuracy,
    random_bits,
    spread_by_layer,
    token_spread,
    train_parity,
)
from transformer_annotated.layers import TransformerConfig
from transformer_annotated.model import Encoder
from transformer_annotated.workshop.files import load_result

EACH_KIND = pytest.mark.parametrize("kind", KINDS)


def count_all(bits):
    """Knows parity: a logit of 2 for odd, and of −2 for even."""
    return 4.0 * (bits.sum(1) % 2) - 2


def only(place):
    """Answers by one bit alone."""
    return lambda bits: 4.0 * bits[:, place] - 2


# --- words that become alike


def test_spread_by_hand():
    """Equal words have none; opposite ones have nothing else."""
    assert token_spread(torch.ones(3, 4)) == 0
    assert token_spread(torch.tensor([[1.0, 2.0], [-1.0, -2.0]])) == 1
    mixed = torch.tensor([[3.0, 0.0], [1.0, 0.0]])  # mean 2, rest ±1
    assert math.isclose(token_spread(mixed), math.sqrt(2 / 10), rel_tol=1e-6)


def test_spread_knows_no_scale():
    """It is a fraction, the same for longer vectors and other orders."""
    x = torch.randn(7, 5, dtype=torch.double)
    order = torch.randperm(7)
    assert math.isclose(token_spread(x), token_spread(-30 * x[order]))


@pytest.mark.parametrize("seed", range(3))
def test_attention_alone_loses_rank_and_residuals_keep_it(seed):
    """In an untrained stack; each layer about cubes what is left."""
    torch.manual_seed(seed)
    config = TransformerConfig(9, layers=6, d_model=32, d_ff=64, heads=4)
    layers = Encoder(config).double().eval().layers
    x = torch.randn(1, 12, 32, dtype=torch.double)
    found = {
        name: spread_by_layer(layers, x, step)
        for name, step in SUBLAYERS.items()
    }
    assert all(len(values) == 7 for values in found.values())
    assert found["attention alone"][-1] < 1e-8
    assert found["with feed-forward"][-1] < 1e-8
    for kept in ("with residual", "the paper's layer"):
        assert found[kept][-1] > 1e-2


def test_the_papers_layer_is_the_papers_layer():
    """The last way through a layer is its own."""
    config = TransformerConfig(9, layers=1, d_model=8, d_ff=8, heads=2)
    layer = Encoder(config).eval().layers[0]
    x = torch.randn(1, 4, 8)
    assert_close(SUBLAYERS["the paper's layer"](layer, x), layer(x))
    alone = SUBLAYERS["attention alone"](layer, x)
    assert_close(alone, layer.self_attention(x, x, x))
    assert_close(SUBLAYERS["with residual"](layer, x), x + alone)


# --- parity


def test_accuracy_of_one_who_knows_and_of_one_who_guesses():
    """All answers right; or about half of them."""
    assert parity_accuracy(count_all, [1, 5, 40]) == [1, 1, 1]
    [single, many] = parity_accuracy(only(0), [1, 30])
    assert single == 1 and 0.4 < many < 0.6


def test_influence_of_one_flip():
    """Full if the first bit counts, none if it does not."""
    assert flip_influence(count_all, [3, 50]) == [4, 4]
    assert flip_influence(only(1), [3, 50]) == [0, 0]


@EACH_KIND
def test_every_bit_reaches_the_answer(kind):
    """The first and the last one change it, in either model."""
    torch.manual_seed(0)
    model = ParityModel(kind).double().eval()
    bits = random_bits(4, 6, torch.Generator().manual_seed(0))
    assert model(bits).shape == (4,)
    for place in (0, 5):
        other = bits.clone()
        other[:, place] = 1 - other[:, place]
        assert ((model(other) - model(bits)).abs() > 1e-9).all()


def test_the_influence_of_a_bit_falls_as_one_over_n():
    """In a Transformer that is given; from 32 to 128 bits about fourfold."""
    ratios = []
    for seed in range(5):
        torch.manual_seed(seed)
        model = ParityModel("Transformer").double().eval()
        near, far = flip_influence(model, [32, 128], 64)
        ratios.append(near / far)
    ratios.sort()
    assert 2 < ratios[2] < 10


@EACH_KIND
def test_training_is_the_same_each_time(kind):
    """A seed decides all, and whoever watches changes nothing."""
    seen = []
    one = train_parity(kind, 1e-3, 3, seed=5)
    two = train_parity(kind, 1e-3, 3, 5, lambda step, model: seen.append(step))
    assert_close(one.state_dict(), two.state_dict())
    assert seen == [1, 2, 3] and not one.training


def test_an_lstm_learns_parity():
    """In a second or two, far beyond the lengths of training."""
    model = train_parity("LSTM", 3e-3, 1000)
    assert min(parity_accuracy(model, [2, TRAINED, 60], 200)) > 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ParityModel("LTSM"), "mean 'LSTM'"),
        (lambda: train_parity("LSTM", 1e-3, 0), "^steps: 0, expected at least"),
        (lambda: flip_influence(only(0), [0]), "^length: 0, expected at least"),
    ],
)
def test_bad_input_gets_one_line(call, message):
    """What was given, and what would do."""
    with pytest.raises(ValueError, match=message) as problem:
        call()
    assert "\n" not in str(problem.value)


# --- results


def test_the_experiment_rests_on_enough_seeds():
    """Each kind and rate three times; each translator twice or more."""
    found = load_result("limits")
    runs = [(run["kind"], run["rate"]) for run in found["parity"]]
    assert {runs.count(run) for run in runs} == {3}
    assert len(set(runs)) == len(KINDS) * 3
    runs = [(run["model"], run["trained_depth"]) for run in found["rows"]]
    assert {runs.count(run) for run in runs} == {len(found["nesting_seeds"])}
    assert len(found["nesting_seeds"]) >= 2 and len(set(runs)) == 4
    assert min(found["sentences"].values()) >= 100
