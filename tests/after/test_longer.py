"""Attention for long texts: exact limits, oracles, tasks, bad input."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from transformers import ReformerConfig
from transformers.models.reformer.modeling_reformer import LSHSelfAttention

from benchmarks.longer import crossings
from transformer_annotated.after.longer import (
    ASKED,
    KINDS,
    NAMES,
    TASKS,
    VALUES,
    VOCABULARY,
    LongAttention,
    LongModel,
    accuracy,
    favor_attention,
    find,
    linformer_attention,
    lsh_attention,
    lsh_buckets,
    most_frequent,
    multiplications,
    positive_features,
    prefix_sums,
    random_features,
    shared_attention,
    train_long,
    window_attention,
)
from transformer_annotated.attention import attention, causal_mask
from transformer_annotated.complexity import multiply_adds
from transformer_annotated.workshop.files import load_result

EACH_KIND = pytest.mark.parametrize("kind", KINDS)
CAUSAL = pytest.mark.parametrize("causal", [False, True])


def vectors(n=64, d=16, dtype=torch.double):
    """Queries, keys and values ``(2, 4, n, d)``."""
    return torch.randn(
        3, 2, 4, n, d, generator=torch.Generator().manual_seed(0), dtype=dtype
    )


# --- Linformer


def test_linformer_with_identities_is_attention():
    """Also if the projections have columns for a longer text."""
    q, k, v = vectors(40)
    for n in (40, 64):
        same = torch.eye(40, n, dtype=torch.double)
        found = linformer_attention(q, k, v, same, same)
        assert_close(found, attention(q, k, v)[0])


def test_linformer_by_hand():
    """One mixture: all queries get the mixture of the values."""
    q, k, v = vectors(5)
    e, f = torch.randn(2, 1, 5, dtype=torch.double)
    found = linformer_attention(q, k, v, e, f)
    assert_close(found, (f @ v).expand_as(v))


# --- Performer


@pytest.mark.parametrize("n", [1, 63, 64, 200])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_prefix_sums_are_the_masked_product(n, chunk):
    """For lengths that a chunk divides, and others."""
    q, k, v = vectors(n)
    expected = (q @ k.mT).tril() @ v
    assert_close(prefix_sums(q, k, v, chunk), expected)


def test_causal_estimates_are_the_masked_form():
    """Weights of estimated exponentials, masked and normalised."""
    q, k, v = vectors(100)
    w = random_features(24, 16).double()
    phi_q = positive_features(q, w, -1)
    phi_k = positive_features(k, w, (-2, -1))
    weights = phi_q @ phi_k.mT
    for causal, of in ((True, weights.tril()), (False, weights)):
        expected = of / of.sum(-1, keepdim=True) @ v
        assert_close(favor_attention(q, k, v, w, causal), expected)


def test_estimates_come_near_attention_with_many_features():
    """At a quarter of unit scale; the error falls with their number."""
    q, k, v = vectors(32)
    q, k = q / 4, k / 4
    exact = attention(q, k, v)[0]

    def error(features):
        chance = torch.Generator().manual_seed(1)
        w = random_features(features, 16, chance).double()
        return (favor_attention(q, k, v, w) - exact).norm() / exact.norm()

    assert error(4096) < 0.05
    assert error(4096) < error(16) / 2


def test_features_are_orthogonal_in_blocks():
    """Up to d of them; their lengths are those of normal vectors."""
    w = random_features(40, 16, torch.Generator().manual_seed(0))
    for block in w.split(16):
        products = block @ block.T
        assert_close(products, products.diagonal().diag(), atol=1e-4, rtol=0)
    many = random_features(8000, 16, torch.Generator().manual_seed(0))
    squares = many.square().sum(-1)
    assert abs(squares.mean() - 16) < 0.5 and abs(squares.std() - 32**0.5) < 0.5


@pytest.mark.parametrize(("causal", "scale"), [(False, 4), (True, 3)])
def test_features_of_long_vectors_do_not_vanish(causal, scale):
    """In single precision as in double, where nothing is subtracted."""
    q, k, v = vectors()
    q, k = scale * q, scale * k
    w = random_features(32, 16, torch.Generator().manual_seed(0)).double()
    features = [
        (x / 2 @ w.T - (x / 2).square().sum(-1, keepdim=True) / 2).exp()
        for x in (q, k)
    ]  # 2 is the fourth root of 16
    weights = features[0] @ features[1].mT
    weights = weights.tril() if causal else weights
    expected = weights / weights.sum(-1, keepdim=True) @ v
    single = (x.float() for x in (q, k, v, w))
    found = favor_attention(*single, causal=causal)
    assert_close(found, expected.float(), rtol=1e-3, atol=1e-3)


# --- Reformer


@CAUSAL
def test_one_chunk_is_shared_attention(causal):
    """Whatever the buckets, in one round or three."""
    q, _, v = vectors()
    for rounds in (1, 3):
        buckets = torch.randint(8, (2, 4, rounds, 64))
        found = lsh_attention(q, v, buckets, 64, causal)
        assert_close(found, shared_attention(q, v, causal))


@CAUSAL
@pytest.mark.parametrize(
    ("chunk", "rounds"), [(64, 1), (16, 1), (8, 3), (32, 2)]
)
def test_outputs_are_those_of_transformers(causal, chunk, rounds):
    """With copied weights and rotations; in one chunk, and in many."""
    config = ReformerConfig(
        hidden_size=32,
        num_attention_heads=2,
        attention_head_size=16,
        lsh_attn_chunk_length=chunk,
        lsh_num_chunks_before=1,
        lsh_num_chunks_after=0,
        num_hashes=rounds,
        num_buckets=8,
        is_decoder=causal,
        hash_seed=3,
        lsh_attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    theirs = LSHSelfAttention(config).eval().double()
    ours = LongAttention("Reformer", 32, 2, 64, 16).double().inner
    ours.w_q.weight.data = theirs.query_key.weight.data
    ours.w_v.weight.data = theirs.value.weight.data
    x = torch.randn(3, 64, 32, dtype=torch.double)
    expected = theirs(x).hidden_states
    torch.manual_seed(3)
    rotations = torch.randn(2, 16, rounds, 4, dtype=torch.double)
    qk, v = ours.keys_values(x, x)
    found = lsh_attention(qk, v, lsh_buckets(qk, rotations), chunk, causal)
    assert_close(found.transpose(1, 2).flatten(2), expected)


def test_buckets_by_hand():
    """The nearest axis, plus or minus; equal directions share a bucket."""
    rotations = torch.eye(2)[None, :, None]  # (h, d, rounds, buckets / 2)
    x = torch.tensor([[3.0, 1], [-1, 2], [-3, 2], [1, -2], [6, 2]])
    assert lsh_buckets(x[None, None], rotations).tolist() == [
        [[[0, 1, 2, 3, 0]]]
    ]


def test_like_vectors_meet_and_others_do_not():
    """Two crowds, far apart, in two chunks each: no weight crosses over."""
    torch.manual_seed(0)
    crowd = torch.tensor([20.0, 0]).repeat(64, 1) + 0.1 * torch.randn(64, 2)
    x = torch.cat([crowd, -crowd])[torch.randperm(128)][None, None]
    side = x[..., :1].sign()
    buckets = lsh_buckets(x, torch.randn(1, 2, 4, 1))
    assert_close(lsh_attention(x, side, buckets, 64), side)


# --- windows


@pytest.mark.parametrize("side", [1, 7, 16, 50, 100])
@pytest.mark.parametrize("n", [1, 50, 64])
def test_a_window_is_attention_with_a_band(side, n):
    """For sides that divide the length, and others, and larger ones."""
    q, k, v = vectors(n)
    place = torch.arange(n)
    band = (place - place[:, None]).abs() <= side
    found = window_attention(q, k, v, side)
    assert_close(found, attention(q, k, v, band)[0])


# --- all kinds


@EACH_KIND
def test_operations_are_counted_as_torch_counts(kind):
    """At several lengths and sizes."""

    class Mix(nn.Module):
        def __init__(self, n, size):
            super().__init__()
            self.long = LongAttention(kind, 16, 1, n, size).eval()

        def forward(self, x):
            return self.long.mix(*[x[:, None]] * 3)

    for n, size in ((128, 16), (512, 64)):
        expected = multiplications(kind, n, 16, size)
        assert multiply_adds(Mix(n, size), n, 16) == expected


@EACH_KIND
def test_every_parameter_learns(kind):
    """Gradients arrive everywhere, and are finite."""
    torch.manual_seed(0)
    model = LongModel(kind, 256)
    ids, answers = find(2, 256, torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(
        model(ids).mT, answers, ignore_index=-1
    ).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


def test_full_is_multi_head_attention():
    """With its own weights; and shared attention has one projection less."""
    torch.manual_seed(0)
    x = torch.randn(2, 30, 16)
    full = LongAttention("full", 16, 2, 30)
    assert_close(full(x, x, x), full.inner(x, x, x))
    shared = LongAttention("shared", 16, 2, 30)
    count = [sum(p.numel() for p in m.parameters()) for m in (full, shared)]
    assert count[0] - count[1] == 16 * 16


# --- tasks


@pytest.mark.parametrize("near", [False, True])
def test_names_are_told_once_and_asked_for_once(near):
    """The answer is the value that was told before; far, or near."""
    ids, answers = find(5, 512, torch.Generator().manual_seed(0), near)
    for row, wanted in zip(ids.tolist(), answers.tolist(), strict=True):
        told, asked = {}, set()
        for at, (token, answer) in enumerate(zip(row, wanted, strict=True)):
            name, value = divmod(token, VALUES + 1)
            if token == VOCABULARY - 1:
                assert answer == -1
            elif value == ASKED:
                place, known = told[name]
                assert answer == known
                assert at - place < 8 if near else at - place > 512 // 4 - 1
                asked.add(name)
            else:
                assert name not in told and answer == -1
                told[name] = at, value
        assert asked == told.keys() == set(range(NAMES))


def test_the_most_frequent_by_counting():
    """All positions have the same answer."""
    ids, answers = most_frequent(20, 256, torch.Generator().manual_seed(0))
    for row, wanted in zip(ids.tolist(), answers.tolist(), strict=True):
        [best] = set(wanted)
        counts = [row.count(NAMES * (VALUES + 1) + i) for i in range(VALUES)]
        assert sum(counts) == 256 and counts[best] == max(counts)


def test_training_is_the_same_each_time():
    """A seed decides all, also where buckets are drawn anew."""
    (a, losses), (b, again) = (
        train_long("Reformer", "find", 256, 3, steps=3) for _ in "ab"
    )
    assert losses == again and len(losses) == 3
    assert_close(a.state_dict(), b.state_dict())
    assert accuracy(a, "find", 256, 4) == accuracy(b, "find", 256, 4)


def test_accuracy_counts_what_is_asked():
    """A model that knows all answers has 1."""

    def knowing(ids):
        chance = torch.Generator().manual_seed(2**20)
        _, answers = find(4, 256, chance)
        return nn.functional.one_hot(answers.clamp(min=0), VALUES)

    assert accuracy(knowing, "find", 256, 4) == 1


# --- bad input

QKV = vectors(32, dtype=torch.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: lsh_buckets(QKV[0], torch.randn(4, 16, 1, 32)),
            "^buckets: 64, but there are 32 tokens",
        ),
        (
            lambda: lsh_attention(
                *QKV[:2], torch.zeros(2, 4, 1, 32, dtype=torch.long), 5
            ),
            "^chunk: 5 does not divide 32",
        ),
        (
            lambda: LongAttention("Reformer", 16, 2, 16, 64),
            "^chunk: 32 does not divide 16, the number of tokens",
        ),
        (
            lambda: LongAttention("Reformer", 16, 2, 64, 2)(
                *torch.ones(3, 1, 64, 16)
            ),
            "^buckets: 128, but there are 64 tokens",
        ),
        (
            lambda: linformer_attention(
                *QKV, torch.ones(8, 32), torch.ones(8, 20)
            ),
            "^k: 32 positions, but the projections have 20",
        ),
        (lambda: random_features(0, 8), "^features: 0, expected at least 1"),
        (lambda: random_features(-3, 8), "^features: -3, expected at least 1"),
        (
            lambda: favor_attention(*QKV, random_features(8, 4)),
            "^w: features of size 4, but queries have size 16",
        ),
        (
            lambda: linformer_attention(*QKV, *torch.ones(2, 8, 20)),
            "^k: 32 positions, but the projections have 20",
        ),
        (lambda: window_attention(*QKV, 0), "^side: 0, expected at least 1"),
        (lambda: multiplications("Reformr", 8, 8), "mean 'Reformer'"),
        (lambda: LongModel("full", 512, 1), "^size: 1, expected at least 2"),
        (lambda: train_long("full", "fnd"), "mean 'find'"),
        (
            lambda: find(1, 100, torch.Generator()),
            "^length: 100, expected at least 256",
        ),
        (
            lambda: LongAttention("full", 8, 1, 4)(
                *torch.ones(3, 1, 4, 8), causal_mask(4)
            ),
            r"^mask: shape \(4, 4\), expected None",
        ),
    ],
)
def test_bad_input_gets_one_line(call, message):
    """What was given, and what would do."""
    with pytest.raises(ValueError, match=message) as problem:
        call()
    assert "\n" not in str(problem.value)


# --- what was measured


def test_the_comparison_rests_on_enough_seeds():
    """Three, or two for long texts; all kinds, but not all shared ones."""
    found = load_result("longer")
    runs = {(r["task"], r["n"], r["kind"]): r["runs"] for r in found["summary"]}
    for kind in KINDS:
        if kind != "shared":
            assert all(runs[task, 512, kind] >= 3 for task in TASKS)
            assert all(runs["find", n, kind] >= 2 for n in (1024, 2048))
    assert runs["find", 512, "shared"] >= 3


def test_every_training_has_its_memory():
    """Beside its time; and what stores a matrix of n² entries grows."""
    found = load_result("longer")
    held = {(r["task"], r["n"], r["kind"]): r for r in found["memory"]}
    trained = {(r["task"], r["n"], r["kind"]) for r in found["summary"]}
    assert held.keys() == trained
    assert {r["n"] * r["batch"] for r in held.values()} == {4096}

    def bytes_of(kind, n):
        return held["find", n, kind]["peak_bytes"]

    assert bytes_of("full", 2048) < 1.01 * bytes_of("full", 512)
    assert bytes_of("shared", 2048) > 2 * bytes_of("shared", 512)


def test_ratios_and_crossings_are_to_the_fused_kernel():
    """Of the same run, at the same length."""
    found = load_result("speed-longer")
    rows = found["rows"]
    assert found["crossings"] == crossings(rows)
    fused = {row["n"]: row for row in rows if row["kind"] == "fused"}
    for row in rows:
        for key, ratio in row["ratios"].items():
            expected = row[key] / fused[row["n"]][key]
            assert math.isclose(ratio, expected, rel_tol=0.01)
