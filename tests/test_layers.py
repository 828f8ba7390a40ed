"""Layers against PyTorch's own, against the paper's formulas, and misused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from transformer_annotated.attention import (
    MultiHeadAttention,
    causal_mask,
    padding_mask,
)
from transformer_annotated.embeddings import Embeddings
from transformer_annotated.layers import (
    ACTIVATIONS,
    DecoderLayer,
    EncoderLayer,
    FeedForward,
    Residual,
    TransformerConfig,
    layer_norm,
)
from transformer_annotated.model import Decoder, Transformer

NORMS = pytest.mark.parametrize(
    "pre_norm", [False, True], ids=["post-norm", "pre-norm"]
)


def sizes(d=16, **changes):
    """Those of a small layer."""
    changes = {"d_model": d, "heads": 4, "d_ff": 4 * d, "dropout": 0} | changes
    return TransformerConfig(1, **changes)


def encoder_layer(*args, **changes):
    """A small encoder layer."""
    return EncoderLayer(sizes(*args, **changes))


def decoder_layer(*args, **changes):
    """A small decoder layer."""
    return DecoderLayer(sizes(*args, **changes))


# Layer normalisation


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_layer_norm_is_torchs(scale):
    """Value and gradient agree with nn.LayerNorm at all sizes."""
    norm = nn.LayerNorm(12, eps=1e-6).double()
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    x = (scale * torch.randn(3, 12, dtype=torch.double)).requires_grad_()
    inputs = (x, norm.weight, norm.bias)
    results = []
    for y in (layer_norm(*inputs), norm(x)):
        results.append((y, *torch.autograd.grad(y.sin().sum(), inputs)))
    assert_close(*results)


def test_layer_norm_by_hand():
    """Biased variance, and eps inside the root."""
    ones, zeros = torch.ones(2), torch.zeros(2)
    x = torch.tensor([1.0, 3.0])  # mean 2, variance 1
    assert_close(layer_norm(x, ones, zeros), torch.tensor([-1.0, 1.0]))
    halved = torch.tensor([-0.5, 0.5])  # 1 / sqrt(1 + 3)
    assert_close(layer_norm(x, ones, zeros, eps=3.0), halved)
    constant = layer_norm(torch.full((2,), 7.0), ones, zeros)
    assert constant.eq(0).all()


def test_residual_normalises_as_the_formula_says():
    """The module inside is nn.LayerNorm with an eps of 1e-6."""
    x = 1e-3 * torch.randn(2, 3, 8)
    ours = Residual(8, dropout=0.0)(x, torch.zeros_like)
    assert_close(ours, layer_norm(x, torch.ones(8), torch.zeros(8)))


# Residual connections and dropout


def test_post_norm_is_the_default():
    """LayerNorm(x + Sublayer(x)), and nothing is normalised before."""
    x, sublayer = torch.randn(2, 3, 8), nn.Linear(8, 8)
    expected = F.layer_norm(x + sublayer(x), (8,), eps=1e-6)
    assert_close(Residual(8, dropout=0.0)(x, sublayer), expected)


def test_pre_norm_is_a_switch():
    """x + Sublayer(LayerNorm(x)): the bypass itself is never normalised."""
    x, sublayer = torch.randn(2, 3, 8), nn.Linear(8, 8)
    expected = x + sublayer(F.layer_norm(x, (8,), eps=1e-6))
    ours = Residual(8, dropout=0.0, pre_norm=True)(x, sublayer)
    assert_close(ours, expected)


@NORMS
def test_dropout_acts_on_the_sublayers_output_alone(pre_norm):
    """Before the sum: what was dropped leaves x, the rest is scaled up."""
    residual = Residual(1000, dropout=0.25, pre_norm=pre_norm)
    residual.norm = nn.Identity()  # see the sum itself
    x, seen = torch.randn(1, 4, 1000), []

    def sublayer(y):
        seen.append(y)
        return torch.ones_like(y)

    y = residual(x, sublayer)
    assert torch.equal(*seen, x)
    dropped = (y - x).abs() < 1e-5
    kept = (y - x - 1 / 0.75).abs() < 1e-5
    assert (dropped | kept).all()
    assert abs(dropped.float().mean() - 0.25) < 0.03
    assert_close(residual.eval()(x, torch.ones_like), x + 1)


def dropout_rates(layer):
    """How much each place of a layer drops, by its name."""
    return {
        name: module.p if isinstance(module, nn.Dropout) else module.dropout
        for name, module in layer.named_modules()
        if isinstance(module, nn.Dropout | MultiHeadAttention)
    }


def test_dropout_is_where_the_paper_has_it():
    """On the output of each sub-layer; none inside, on weights or units."""
    config = TransformerConfig(1, d_model=8, heads=2, d_ff=8)
    for layer in (EncoderLayer(config), DecoderLayer(config)):
        assert set(dropout_rates(layer).values()) == {0.0, 0.1}
    assert Residual(8).dropout.p == 0.1
    rates = dropout_rates(encoder_layer(dropout=0.3))
    assert rates == {
        "self_attention": 0.0,
        "self_attention_residual.dropout": 0.3,
        "feed_forward_residual.dropout": 0.3,
    }
    rates = dropout_rates(decoder_layer(dropout=0.3))
    assert [name for name, rate in rates.items() if rate] == [
        "self_attention_residual.dropout",
        "cross_attention_residual.dropout",
        "feed_forward_residual.dropout",
    ]


def test_gradient_passes_a_deep_stack():
    """With bypasses and norms it arrives; without them it has faded."""

    def arrives(around):
        x = torch.randn(50, 32, requires_grad=True)
        y = x
        for _ in range(24):
            y = around(y, FeedForward(32, 128))
        pull = torch.randn_like(y)
        (gradient,) = torch.autograd.grad(y, x, pull)
        return gradient.norm() / pull.norm()

    assert arrives(Residual(32, dropout=0.0)) > 1e-2
    assert arrives(lambda y, sublayer: sublayer(y)) < 1e-8


@NORMS
def test_gradients_of_the_last_layer_at_the_start(pre_norm):
    """Pre-norm's shrink with depth; post-norm's, as in the paper, do not."""
    sizes = []
    for layers in (2, 16):
        torch.manual_seed(0)
        x = torch.randn(8, 10, 32)
        stack = [encoder_layer(32, pre_norm=pre_norm) for _ in range(layers)]
        for layer in stack:
            for p in layer.parameters():
                if p.dim() == 2:
                    nn.init.xavier_uniform_(p)
            x = layer(x)
        if pre_norm:
            x = F.layer_norm(x, (32,))
        logits = Embeddings(50, 32).logits(x).flatten(0, 1)
        F.cross_entropy(logits, torch.randint(50, (80,))).backward()
        sizes.append(stack[-1].feed_forward.w_2.weight.grad.norm())
    assert (sizes[1] < sizes[0] / 1.5) == pre_norm


# Feed-forward


def test_feed_forward_is_the_papers_formula():
    """max(0, x W1 + b1) W2 + b2, with both biases."""
    ffn = FeedForward(6, 20)
    x = torch.randn(2, 3, 6)
    w_1, w_2 = ffn.w_1.weight.T, ffn.w_2.weight.T
    assert w_1.shape == (6, 20) and w_2.shape == (20, 6)
    expected = (x @ w_1 + ffn.w_1.bias).clamp(min=0) @ w_2 + ffn.w_2.bias
    assert_close(ffn(x), expected)


def test_feed_forward_is_position_wise():
    """Each position by itself, all of them alike."""
    ffn, x = FeedForward(6, 20), torch.randn(2, 5, 6)
    order = torch.randperm(5)
    assert_close(ffn(x[:, order]), ffn(x)[:, order])
    changed = x.clone()
    changed[:, 2] += 1
    same = (ffn(changed) - ffn(x)).abs().amax((0, 2)) < 1e-6
    assert same.tolist() == [True, True, False, True, True]


def test_feed_forward_is_two_convolutions_of_kernel_size_1():
    """The same numbers, seen as convolutions."""
    ffn, x = FeedForward(6, 20), torch.randn(2, 5, 6)
    y = F.conv1d(x.mT, ffn.w_1.weight[..., None], ffn.w_1.bias).relu()
    y = F.conv1d(y, ffn.w_2.weight[..., None], ffn.w_2.bias).mT
    assert_close(ffn(x), y)


# Whole layers


@NORMS
def test_encoder_layer_is_two_sublayers(pre_norm):
    """Self-attention, then feed-forward, each with its own add and norm."""
    layer = encoder_layer(pre_norm=pre_norm)
    x = torch.randn(2, 5, 16)
    mask = padding_mask(torch.tensor([[1] * 5, [1, 1, 1, 0, 0]]), pad=0)
    first, second = layer.self_attention_residual, layer.feed_forward_residual

    def attend(y):
        return layer.self_attention(y, y, y, mask)

    if pre_norm:
        y = x + attend(first.norm(x))
        y = y + layer.feed_forward(second.norm(y))
    else:
        y = first.norm(x + attend(x))
        y = second.norm(y + layer.feed_forward(y))
    assert_close(layer(x, mask), y)


@NORMS
def test_decoder_layer_is_three_sublayers(pre_norm):
    """Cross-attention stands between self-attention and feed-forward."""
    layer = decoder_layer(pre_norm=pre_norm)
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 7, 16)
    mask, seen = causal_mask(5), torch.rand(2, 1, 1, 7) < 0.8
    seen[..., 0] = True
    first, second = (
        layer.self_attention_residual,
        layer.cross_attention_residual,
    )
    third = layer.feed_forward_residual

    def look_back(y):
        return layer.self_attention(y, y, y, mask)

    def look_across(y):
        return layer.cross_attention(y, memory, memory, seen)

    if pre_norm:
        y = x + look_back(first.norm(x))
        y = y + look_across(second.norm(y))
        y = y + layer.feed_forward(third.norm(y))
    else:
        y = first.norm(x + look_back(x))
        y = second.norm(y + look_across(y))
        y = third.norm(y + layer.feed_forward(y))
    assert_close(layer(x, memory, mask, seen), y)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FeedForward(8, 0), "d_ff: 0, expected at least 1"),
        (lambda: Residual(8, dropout=-0.5), "dropout: -0.5, expected 0 <="),
        (lambda: Residual(8, dropout="0.1"), "dropout: '0.1', expected 0 <="),
        (
            lambda: encoder_layer(8, heads=3),
            "heads: 3 does not divide d_model 8",
        ),
        (lambda: decoder_layer(d_ff=-1), "d_ff: -1, expected at least 1"),
    ],
)
def test_bad_sizes_are_refused(make, message):
    """The argument and what is wrong with it are named."""
    with pytest.raises(ValueError, match=message):
        make()


def test_activations_are_what_their_names_say():
    """GELU is x Φ(x); the approximation is near it, and is not it."""
    x = torch.linspace(-4, 4, 41, dtype=torch.float64)
    phi = torch.distributions.Normal(0.0, 1.0).cdf(x)
    assert_close(ACTIVATIONS["relu"](x), x.clamp(min=0))
    assert_close(ACTIVATIONS["gelu"](x), x * phi)
    near = ACTIVATIONS["gelu_tanh"](x)
    assert 1e-5 < (near - x * phi).abs().max() < 1e-3
    layer = EncoderLayer(sizes(activation="gelu"))
    assert layer.feed_forward.activation is ACTIVATIONS["gelu"]
    assert DecoderLayer(sizes()).feed_forward.activation is F.relu
    for build in (
        lambda name: sizes(activation=name),
        lambda name: FeedForward(4, 8, name),
    ):
        with pytest.raises(ValueError, match=r"^unknown activation, 'gelo'"):
            build("gelo")


def test_every_norm_has_the_epsilon_of_the_config():
    """Of both stacks, and of the last norm; the paper's code has 1e-6."""
    for eps in (1e-6, 1e-12):
        model = Transformer(sizes(norm_eps=eps, pre_norm=True))
        norms = [m for m in model.modules() if isinstance(m, nn.LayerNorm)]
        assert {norm.eps for norm in norms} == {eps}
    assert TransformerConfig(9).norm_eps == 1e-6


@NORMS
def test_a_decoder_layer_without_a_memory(pre_norm):
    """Masked self-attention and feed-forward: an encoder layer, but causal."""
    torch.manual_seed(0)
    config = sizes(dropout=0.0, pre_norm=pre_norm)
    alone, encoder = (
        DecoderLayer(config, with_memory=False),
        EncoderLayer(config),
    )
    encoder.load_state_dict(alone.state_dict())
    x, mask = torch.randn(2, 5, 16), causal_mask(5)
    assert_close(alone(x, None, mask), encoder(x, mask))
    stack = Decoder(config, with_memory=False)
    assert not any("cross" in name for name in stack.state_dict())
    assert stack(x, None).shape == x.shape
