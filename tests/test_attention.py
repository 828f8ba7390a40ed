"""Attention against PyTorch's own, against hand-worked cases, and misused."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from transformer_annotated.attention import (
    MultiHeadAttention,
    attention,
    attention_weights,
    causal_mask,
    fused_attention,
    padding_mask,
)
from transformer_annotated.recurrent import (
    additive_score,
    dot_score,
    scaled_dot_score,
)

FLOATS = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
FORMS = pytest.mark.parametrize(
    "form",
    [lambda *a: attention(*a)[0], fused_attention],
    ids=["plain", "fused"],
)


def qkv(*shape, d_k=8, d_v=6, keys=7, dtype=torch.float32, seed=0):
    """Random queries, keys and values that want gradients."""
    generator = torch.Generator().manual_seed(seed)
    *batch, queries = shape
    sizes = (queries, d_k), (keys, d_k), (keys, d_v)
    return [
        torch.randn(*batch, *size, generator=generator, dtype=dtype)
        .mul(2)
        .requires_grad_()
        for size in sizes
    ]


def some_mask(queries=5, keys=7):
    """A mask ``(2, 1, T, S)`` with open, narrow and blind queries."""
    mask = torch.rand(2, 1, queries, keys).lt(0.6)
    mask[..., 0] = True
    mask[0, 0, 2] = False
    return mask


def value_and_gradients(output, *inputs):
    """An output, and what it sends back to its inputs."""
    weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype)
    loss = (output.flatten() * weight).sum()
    return output, *torch.autograd.grad(loss, inputs)


# Scaled dot-product attention


def test_hand_worked_case():
    """Scores ln 3 and 0 give weights 3/4 and 1/4."""
    q = torch.tensor([[2.0, 0, 0, 0]])
    k = torch.tensor([[math.log(3), 0, 0, 0], [0.0, 0, 0, 0]])
    output, weights = attention(q, k, torch.tensor([[4.0], [8.0]]))
    assert_close(weights, torch.tensor([[0.75, 0.25]]))
    assert_close(output, torch.tensor([[5.0]]))


@pytest.mark.parametrize("d_k", [1, 4, 64, 100])
def test_scores_are_divided_by_root_d_k(d_k):
    """The log-odds of two keys are their dot products over the root of d_k."""
    q, k = torch.randn(1, d_k), torch.randn(2, d_k)
    odds = attention_weights(q, k).log()[0]
    assert_close(odds[0] - odds[1], (q @ (k[0] - k[1]))[0] / math.sqrt(d_k))


def test_dot_products_of_strangers_have_variance_d_k():
    """Independent components of variance 1: mean 0, variance d_k."""
    for d_k in (4, 64, 256):
        q, k = torch.randn(2, 40_000, 1, d_k)
        scores = dot_score(q, k).flatten()
        assert abs(scores.mean()) < 0.03 * math.sqrt(d_k)
        assert_close(scores.var().item(), float(d_k), rtol=0.05, atol=0)
        scaled = scaled_dot_score(q, k).var().item()
        assert_close(scaled, 1.0, rtol=0.05, atol=0)


def test_scaling_keeps_the_gradient_of_the_softmax():
    """Without the division, wide heads send back a tenth of the gradient."""
    q, k = torch.randn(500, 1, 512), torch.randn(500, 32, 512)
    pull = torch.randn(500, 1, 32)
    norms = []
    for score in (scaled_dot_score, dot_score):
        s = score(q, k).requires_grad_()
        norms.append(torch.autograd.grad((s.softmax(-1) * pull).sum(), s)[0])
    scaled, raw = (norm.norm(dim=-1).median() for norm in norms)
    assert raw < scaled / 10


@FLOATS
@FORMS
@pytest.mark.parametrize("masked", [False, True])
def test_forms_agree_in_value_and_gradient(dtype, form, masked):
    """Readable and fused, both are F.scaled_dot_product_attention."""
    inputs = qkv(2, 3, 5, dtype=dtype)
    mask = some_mask() if masked else None
    ours = value_and_gradients(form(*inputs, mask), *inputs)
    theirs = F.scaled_dot_product_attention(*inputs, mask)
    assert_close(ours, value_and_gradients(theirs, *inputs))


@FORMS
def test_gradients_are_the_derivative(form):
    """Analytic and numerical derivatives agree, also with blind queries."""
    inputs = qkv(2, 1, 3, d_k=3, d_v=2, keys=4, dtype=torch.float64)
    mask = some_mask(3, 4)
    assert torch.autograd.gradcheck(form, (*inputs, mask))


@settings(max_examples=60)
@given(
    batch=st.integers(1, 3),
    queries=st.integers(1, 6),
    keys=st.integers(1, 6),
    d_k=st.integers(1, 9),
    d_v=st.integers(1, 9),
    seed=st.integers(0, 2**31),
)
def test_output_is_a_mixture_of_values(batch, queries, keys, d_k, d_v, seed):
    """Whatever the shape: weights sum to 1, outputs lie between values."""
    q, k, v = qkv(batch, queries, d_k=d_k, d_v=d_v, keys=keys, seed=seed)
    output, weights = attention(q, k, v)
    assert output.shape == (batch, queries, d_v)
    assert weights.shape == (batch, queries, keys)
    assert_close(weights.sum(-1), torch.ones(batch, queries))
    low, high = v.amin(-2, keepdim=True), v.amax(-2, keepdim=True)
    assert ((output >= low - 1e-5) & (output <= high + 1e-5)).all()
    assert_close(output, fused_attention(q, k, v))


@FORMS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(form, dtype):
    """Half precision is close to single, finite, and blind queries are 0."""
    mask = some_mask()
    inputs = [x.detach() for x in qkv(2, 3, 5)]
    half = form(*(x.to(dtype) for x in inputs), mask)
    assert half.dtype == dtype
    assert half.isfinite().all() and half[0, :, 2].eq(0).all()
    tolerance = 0.01 if dtype == torch.float16 else 0.1
    assert_close(half.float(), form(*inputs, mask), atol=tolerance, rtol=0.05)


def test_bfloat16_on_a_cpu_is_computed_in_float32():
    """Under autocast too, and rounded once, at the end."""
    query, key, value = torch.randn(3, 2, 4, 9, 16).bfloat16().unbind()
    bias = torch.randn(9, 9).bfloat16()
    mask = torch.rand(2, 1, 9, 9) < 0.6
    wide = [x.float() for x in (query, key, value)]
    wanted = fused_attention(*wide, mask, bias=bias.float())
    with torch.autocast("cpu", torch.bfloat16):
        found = fused_attention(query, key, value, mask, bias=bias)
        mixed = fused_attention(wide[0], key, value, mask, bias=bias)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, wanted.bfloat16())
    assert torch.equal(mixed, wanted)


# Masks


@FORMS
def test_masked_positions_carry_no_information(form):
    """Whatever stands at a forbidden position, the output stays the same."""
    q, k, v = (x.detach() for x in qkv(2, 1, 5))
    mask = padding_mask(torch.tensor([[1] * 7, [1] * 4 + [0] * 3]), pad=0)
    before = form(q, k, v, mask)
    k[1, :, 4:], v[1, :, 4:] = 1e4, -1e4
    assert torch.equal(before, form(q, k, v, mask))
    k[1, :, 3] = 9.0  # this one is allowed
    assert not torch.equal(before, form(q, k, v, mask))


@FORMS
def test_later_positions_carry_no_information(form):
    """Under a causal mask, changing position t leaves all before it alone."""
    q, k, v = (x.detach() for x in qkv(2, 1, 5, keys=5))
    before = form(q, k, v, causal_mask(5))
    for t in range(5):
        changed = [x.clone() for x in (q, k, v)]
        for x in changed:
            x[..., t, :] += 1.0
        after = form(*changed, causal_mask(5))
        assert torch.equal(before[..., :t, :], after[..., :t, :])
        assert not torch.equal(before[..., t, :], after[..., t, :])


def test_masked_scores_are_minus_infinity():
    """A mask removes a key as if it had never been there; 0 would not."""
    q, k, v = qkv(1, 5)
    mask = torch.tensor([True] * 4 + [False] * 3)
    output, weights = attention(q, k, v, mask)
    assert weights[..., 4:].eq(0).all()
    assert_close(output, attention(q, k[:, :4], v[:, :4])[0])
    zeroed = (scaled_dot_score(q, k) * mask).softmax(-1)
    assert zeroed[..., 4:].gt(0).all()


@FORMS
def test_blind_queries_give_zeros_and_no_nan(form):
    """A query that may attend to nothing: output 0, gradient 0."""
    inputs = qkv(2, 1, 5)
    mask = some_mask()
    with torch.autograd.set_detect_anomaly(True):  # no NaN in between either
        output, *gradients = value_and_gradients(form(*inputs, mask), *inputs)
    assert output[0, 0, 2].eq(0).all() and gradients[0][0, 0, 2].eq(0).all()
    assert not any(x.isnan().any() for x in (output, *gradients))
    everything = torch.zeros(1, 1, dtype=torch.bool)
    assert form(*inputs, everything).eq(0).all()


def test_masks_have_the_shapes_that_combine():
    """Padding and causal masks combine with ``&`` to (B, 1, T, T)."""
    ids = torch.tensor([[5, 6, 7], [5, 0, 0]])
    padding, causal = padding_mask(ids, pad=0), causal_mask(3)
    assert padding.shape == (2, 1, 1, 3) and causal.shape == (3, 3)
    assert (padding & causal).shape == (2, 1, 3, 3)
    assert padding[1, 0, 0].tolist() == [True, False, False]
    expected = [[j <= i for j in range(3)] for i in range(3)]
    assert causal.tolist() == expected
    assert (padding & causal)[0, 0].tolist() == expected
    assert causal_mask(3, device="meta").device.type == "meta"


# Multi-head attention


def copied_from_torch(heads, bias, dtype):
    """nn.MultiheadAttention, and ours with the same parameters."""
    theirs = nn.MultiheadAttention(
        24, heads, bias=bias, batch_first=True, dtype=dtype
    )
    ours = MultiHeadAttention(24, heads, bias=bias).to(dtype)
    state = {}
    for kind in ("weight", "bias") if bias else ("weight",):
        parts = getattr(theirs, f"in_proj_{kind}").chunk(3)
        for name, part in zip("qkv", parts, strict=True):
            state[f"w_{name}.{kind}"] = part
        state[f"w_o.{kind}"] = getattr(theirs.out_proj, kind)
    ours.load_state_dict(state)
    return ours, theirs


@FLOATS
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("heads", [1, 3, 8])
def test_multi_head_equals_torch(dtype, bias, heads):
    """With its weights copied over, nn.MultiheadAttention does the same."""
    ours, theirs = copied_from_torch(heads, bias, dtype)
    x = torch.randn(2, 5, 24, dtype=dtype, requires_grad=True)
    y = torch.randn(2, 7, 24, dtype=dtype, requires_grad=True)
    mask = some_mask()
    mask[0, 0, 2, 0] = True  # torch's module has no answer for blind queries
    forbidden = ~mask.expand(2, heads, 5, 7).flatten(0, 1)
    output, weights = theirs(
        x, y, y, attn_mask=forbidden, average_attn_weights=False
    )
    assert_close(ours.weights(x, y, mask), weights)
    assert_close(
        value_and_gradients(ours(x, y, y, mask), x, y),
        value_and_gradients(output, x, y),
    )


@pytest.mark.parametrize(
    ("heads", "d_k", "d_v"), [(1, 24, 24), (4, 6, 6), (4, 2, 9), (5, 7, 3)]
)
def test_heads_side_by_side_are_the_loop_over_heads(heads, d_k, d_v):
    """One product for all heads gives what the paper's equation says."""
    module = MultiHeadAttention(24, heads, d_k, d_v)
    x, y, z = (torch.randn(2, n, 24) for n in (5, 7, 7))
    answers = []
    for i in range(heads):
        w_q, w_k, w_v = (
            linear.weight.view(heads, -1, 24)[i].T
            for linear in (module.w_q, module.w_k, module.w_v)
        )
        answers.append(attention(x @ w_q, y @ w_k, z @ w_v)[0])
    expected = torch.cat(answers, -1) @ module.w_o.weight.T
    assert_close(module(x, y, z), expected)


def test_projections_have_no_bias_by_default():
    """The paper's projections are plain matrices; bias is a switch."""
    assert not any(
        "bias" in name for name in MultiHeadAttention(8, 2).state_dict()
    )
    assert len(MultiHeadAttention(8, 2, bias=True).state_dict()) == 8


@pytest.mark.parametrize(
    ("heads", "d_k", "d_v"),
    [(1, 512, 512), (4, 128, 128), (16, 32, 32), (32, 16, 16), (8, 16, 64)],
)
def test_head_sizes_are_free(heads, d_k, d_v):
    """The attention of Table 3, rows (A) and (B), can be built and counted."""
    with torch.device("meta"):
        module = MultiHeadAttention(512, heads, d_k, d_v)
        x = torch.empty(2, 3, 512)
        assert module(x, x, x).shape == (2, 3, 512)
    count = sum(p.numel() for p in module.parameters())
    assert count == heads * 512 * 2 * (d_k + d_v)


def test_default_head_size_is_d_model_over_heads():
    """The base model has 8 heads of 64, and 4 d_model² parameters a module."""
    with torch.device("meta"):
        module = MultiHeadAttention(512, 8)
    assert module.w_q.weight.shape == module.w_o.weight.shape == (512, 512)
    assert sum(p.numel() for p in module.parameters()) == 4 * 512**2


def test_heads_cost_what_one_wide_head_costs():
    """Eight heads of 64 take as many operations as one of 512."""
    flops = []
    for heads in (1, 8):
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            x = torch.empty(2, 30, 512)
            MultiHeadAttention(512, heads)(x, x, x)
        flops.append(counter.get_total_flops())
    assert flops[0] == flops[1] == 2 * 2 * (4 * 30 * 512**2 + 2 * 30**2 * 512)


def test_heads_look_at_different_positions_at_once():
    """Two heads fetch two words whole; one head can only blend them."""
    words = torch.eye(4)  # four words, one to a component
    two = MultiHeadAttention(4, heads=2, d_k=4, d_v=4)
    aims = torch.zeros(8, 4)
    aims[1, 0] = aims[4 + 3, 0] = 100.0  # word 0 seeks words 1 and 3
    eye = torch.eye(4)
    told = torch.cat([eye, 2 * eye])  # the second head speaks up
    state = {"w_q": aims, "w_k": eye.repeat(2, 1), "w_v": told}
    state = {f"{name}.weight": w for name, w in state.items()}
    two.load_state_dict(state | {"w_o.weight": eye.repeat(1, 2)})
    seen = two(words[None], words[None], words[None])[0, 0]
    assert_close(seen, words[1] + 2 * words[3])
    one = MultiHeadAttention(4, heads=1)
    state = {"w_q": aims[:4] + aims[4:], "w_k": eye, "w_v": eye, "w_o": eye}
    one.load_state_dict({f"{name}.weight": w for name, w in state.items()})
    seen = one(words[None], words[None], words[None])[0, 0]
    assert_close(seen, (words[1] + words[3]) / 2)


def test_attention_dropout_is_a_switch_off_by_default():
    """Training is deterministic unless dropout of the weights is asked for."""
    x = torch.randn(2, 5, 24)
    plain, dropping = (
        MultiHeadAttention(24, 4),
        MultiHeadAttention(24, 4, dropout=0.5),
    )
    dropping.load_state_dict(plain.state_dict())
    assert torch.equal(plain.train()(x, x, x), plain.eval()(x, x, x))
    assert not torch.equal(dropping.train()(x, x, x), plain(x, x, x))
    assert torch.equal(dropping.eval()(x, x, x), plain(x, x, x))


def test_weights_are_taken_before_dropout():
    """Weights on request sum to 1, however much dropout there is."""
    x = torch.randn(2, 5, 24)
    module = MultiHeadAttention(24, 4, dropout=0.9).train()
    assert_close(module.weights(x, x).sum(-1), torch.ones(2, 4, 5))
    q, k, v = qkv(2, 5)
    output, weights = attention(q, k, v, dropout=0.9)
    assert_close(weights, attention_weights(q, k))
    assert not torch.allclose(output, weights @ v)


def test_three_uses():
    """Encoder self-, masked decoder self- and cross-attention fit together."""
    attend = MultiHeadAttention(24, 4)
    ids = torch.tensor([[3, 4, 5, 6, 7], [3, 4, 5, 0, 0]])
    source, target = torch.randn(2, 5, 24), torch.randn(2, 3, 24)
    seen = padding_mask(ids, pad=0)
    memory = attend(source, source, source, seen)
    decoded = attend(target, target, target, causal_mask(3))
    told = attend(decoded, memory, memory, seen)
    assert memory.shape == (2, 5, 24) and told.shape == (2, 3, 24)
    encoder = attend.weights(source, source, seen)
    assert encoder.shape == (2, 4, 5, 5) and encoder[1, ..., 3:].eq(0).all()
    decoder = attend.weights(target, target, causal_mask(3))
    assert decoder.shape == (2, 4, 3, 3) and decoder.triu(1).eq(0).all()
    cross = attend.weights(decoded, memory, seen)
    assert cross.shape == (2, 4, 3, 5) and cross[1, ..., 3:].eq(0).all()


def test_self_attention_is_permutation_equivariant():
    """Shuffled words get the vectors they would have got: order is unseen."""
    x, order = torch.randn(2, 6, 24), torch.randperm(6)
    attend = MultiHeadAttention(24, 4)
    shuffled = x[:, order]
    expected = attend(x, x, x)[:, order]
    assert_close(attend(shuffled, shuffled, shuffled), expected)


def test_compiles_to_one_graph():
    """Checks and masks leave nothing that torch.compile must break at."""
    module = MultiHeadAttention(24, 4)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    for length in (5, 6, 9):
        x = torch.randn(2, length, 24)
        mask = causal_mask(length)
        assert_close(compiled(x, x, x, mask), module(x, x, x, mask))


# Rival scores


def recall_error(score, d_k, seed, steps=250):
    """The error after learning to fetch eight facts by their names."""
    torch.manual_seed(seed)
    question, name = torch.randn(2, 8, 32).unbind()
    w_q, w_k = (torch.randn(2, 32, d_k) / math.sqrt(32)).unbind()
    u = torch.randn(d_k) / math.sqrt(d_k)
    learned = [x.requires_grad_() for x in (question, name, w_q, w_k, u)]
    optimizer = torch.optim.Adam(learned, lr=3e-3)
    for _ in range(steps):
        facts = torch.randint(2, (64, 8, 1)) * 2.0 - 1
        if score is additive_score:
            scores = score(question, name, w_q, w_k, u)
        else:
            scores = score(question @ w_q, name @ w_k)
        loss = (scores.softmax(-1) @ facts - facts).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_additive_attention_beats_unscaled_dot_products_in_wide_heads():
    """In narrow heads both learn; in wide ones scaling is what helps."""
    for d_k, learns in ((8, True), (256, False)):
        assert (recall_error(dot_score, d_k, seed=0) < 0.2) == learns
        assert recall_error(additive_score, d_k, seed=0) < 0.2
        assert recall_error(scaled_dot_score, d_k, seed=0) < 0.2


class LargestTensor(TorchDispatchMode):
    """Remembers how large the largest result of any operation was."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the operation and look at what it gives."""
        result = func(*args, **(kwargs or {}))
        self.numel = max(self.numel, result.numel())
        return result


def test_additive_score_holds_a_hidden_layer_for_every_pair():
    """It needs T × S × width numbers where dot products need T × S."""
    q, k = torch.randn(50, 16), torch.randn(60, 16)
    w_q, w_k, u = torch.randn(16, 32), torch.randn(16, 32), torch.randn(32)
    with LargestTensor() as additive:
        additive_score(q, k, w_q, w_k, u)
    with LargestTensor() as dot:
        dot_score(q, k)
    assert (additive.numel, dot.numel) == (50 * 60 * 32, 50 * 60)


# Bad input

Z = torch.zeros


@FORMS
@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((Z(8), Z(7, 8), Z(7, 6)), r"query: shape \(8,\).* 2 dimensions"),
        ((Z(5, 8), Z(8), Z(7, 6)), r"key: shape \(8,\).* 2 dimensions"),
        ((Z(5, 8), Z(7, 9), Z(7, 6)), "key: .*size 9.*query have size 8"),
        ((Z(2, 5, 8), Z(3, 7, 8), Z(3, 7, 6)), r"key: .*\(3,\).*query.*\(2,\)"),
        ((Z(5, 8), Z(7, 8), Z(6, 6)), r"value: .*\(6, 6\).*key.*\(7, 8\)"),
        ((Z(5, 8), Z(7, 8), Z(6)), r"value: .*\(6,\).*key.*\(7, 8\)"),
        ((Z(5, 8), Z(7, 8), Z(7, 6), Z(5, 7)), "mask: .*float32.*torch.bool"),
        (
            (Z(5, 8), Z(7, 8), Z(7, 6), Z(4, 7).bool()),
            r"mask: shape \(4, 7\).*\(5, 7\)",
        ),
        (
            (Z(5, 8), Z(7, 8), Z(7, 6), Z(1, 5, 7).bool()),
            r"mask: shape \(1, 5, 7\).*\(5, 7\)",
        ),
    ],
)
def test_attention_refuses_what_does_not_fit(form, inputs, message):
    """Wrong shapes and dtypes: the argument and both sizes are named."""
    with pytest.raises(ValueError, match=message):
        form(*inputs)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MultiHeadAttention(512, 7), "heads: 7 .*d_model 512"),
        (lambda: MultiHeadAttention(512, 7, d_k=64), "heads: 7 .*d_model 512"),
        (lambda: MultiHeadAttention(-8, 2), "d_model: -8, expected at least 1"),
        (lambda: MultiHeadAttention(8, 0), "heads: 0, expected at least 1"),
        (lambda: MultiHeadAttention(8, 2, d_k=-1), "d_k: -1, expected"),
        (lambda: MultiHeadAttention(8, 2, d_v=0), "d_v: 0, expected"),
        (lambda: MultiHeadAttention(8, 2, dropout=1.0), "dropout: 1.0"),
        (lambda: MultiHeadAttention(8, 2, dropout=-0.1), "dropout: -0.1"),
        (
            lambda: MultiHeadAttention(8, 2)(Z(2, 3, 8), *[Z(2, 3, 9)] * 2),
            r"key: .*9\).* 8",
        ),
        (
            lambda: MultiHeadAttention(8, 2)(*[Z(2, 3, 8)] * 2, Z(2, 3, 9)),
            r"value: .*9\).* 8",
        ),
        (
            lambda: MultiHeadAttention(8, 2).weights(*[Z(2, 3, 9)] * 2),
            r"query: .*9\).* 8",
        ),
        (
            lambda: MultiHeadAttention(8, 2)(*[Z(2, 3, 9)] * 3),
            r"query: .*9\).* 8",
        ),
        (
            lambda: MultiHeadAttention(8, 2)(*[Z(3, 8)] * 3),
            r"query: .*\(3, 8\)",
        ),
        (
            lambda: MultiHeadAttention(8, 2)(Z(2, 3, 8), *[Z(1, 3, 8)] * 2),
            r"key: .*\(1, 2\).*query.*\(2, 2\)",
        ),
        (lambda: padding_mask(Z(3), pad=0), r"ids: shape \(3,\).*\(B, S\)"),
        (lambda: causal_mask(0), "length: 0, expected at least 1"),
    ],
)
def test_bad_sizes_are_refused(make, message):
    """Impossible sizes: the argument and both sizes are named."""
    with pytest.raises(ValueError, match=message):
        make()


class Halving(nn.Module):
    """A position that halves queries, doubles keys, and biases scores."""

    def forward(self, q, k, start=0):
        """What a position returns, with less weight on what is far away."""
        keys, queries = torch.arange(k.size(-2)), torch.arange(q.size(-2))
        return q / 2, k * 2, -(queries[:, None] - keys).abs().to(q.dtype)


@FLOATS
def test_a_position_acts_on_output_and_weights_alike(dtype):
    """Attention that has one computes with the weights that it shows."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 16, dtype=dtype)
    attend = MultiHeadAttention(16, 4).to(dtype)
    plain = attend.weights(x, x)
    attend.position = Halving()
    for mask in (None, some_mask(keys=5)):
        weights = attend.weights(x, x, mask)
        _, v = attend.keys_values(x, x)
        expected = attend.w_o((weights @ v).transpose(1, 2).flatten(2))
        assert_close(attend(x, x, x, mask), expected)
    places = torch.arange(5, dtype=dtype)
    biased = plain.log() - (places[:, None] - places).abs()
    assert_close(attend.weights(x, x), biased.softmax(-1))
