"""Sinusoids against the formula, shifts as rotations, and learned tables."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from transformer_annotated.attention import MultiHeadAttention
from transformer_annotated.embeddings import Embeddings
from transformer_annotated.positions import (
    LearnedPositions,
    SinusoidalPositions,
    shift_matrix,
    sinusoids,
)


@pytest.mark.parametrize("d_model", [2, 6, 64, 512])
def test_sinusoids_are_the_papers_formula(d_model):
    """Sines and cosines in turn, with the exponent 2i / d_model."""
    table = sinusoids(50, d_model)
    assert table.shape == (50, d_model)
    for pos in (0, 1, 7, 49):
        for i in range(d_model // 2):
            angle = pos / 10000 ** (2 * i / d_model)
            pair = torch.tensor([math.sin(angle), math.cos(angle)])
            assert_close(table[pos, 2 * i : 2 * i + 2], pair)


def test_position_counts_from_zero():
    """The first position has angle 0: zeros and ones in turn."""
    assert sinusoids(1, 6)[0].tolist() == [0, 1, 0, 1, 0, 1]


def test_wavelengths_form_a_geometric_series():
    """From 2π, by a constant factor, to just short of 10000 · 2π."""
    sine, cosine = sinusoids(2, 512).double()[1].view(-1, 2).unbind(-1)
    wavelengths = 2 * math.pi / torch.atan2(sine, cosine)
    assert_close(wavelengths[0].item(), 2 * math.pi, rtol=1e-6, atol=0)
    last = 2 * math.pi * 10000 ** (1 - 2 / 512)
    assert_close(wavelengths[-1].item(), last, rtol=1e-5, atol=0)
    ratios = wavelengths[1:] / wavelengths[:-1]
    expected = torch.full_like(ratios, 10000 ** (2 / 512))
    assert_close(ratios, expected, rtol=1e-5, atol=0)


@settings(max_examples=60)
@given(
    pos=st.integers(0, 300),
    offset=st.integers(-300, 300),
    d_model=st.integers(1, 40).map(lambda n: 2 * n),
)
def test_a_shift_is_a_linear_map(pos, offset, d_model):
    """For any offset one rotation moves every position by it."""
    matrix = shift_matrix(offset, d_model)
    here, there = (
        sinusoids(1, d_model, pos),
        sinusoids(1, d_model, pos + offset),
    )
    assert_close(matrix @ here[0], there[0], atol=2e-4, rtol=0)
    assert_close(matrix @ matrix.T, torch.eye(d_model), atol=1e-5, rtol=0)


def test_shift_matrices_are_rotations_of_pairs():
    """Blocks of cosines and sines on the diagonal, zeros elsewhere."""
    matrix = shift_matrix(3, 6)
    for i in range(3):
        angle = 3 / 10000 ** (2 * i / 6)
        cosine, sine = math.cos(angle), math.sin(angle)
        block = torch.tensor([[cosine, sine], [-sine, cosine]])
        assert_close(matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2], block)
    blocks = torch.block_diag(*[torch.ones(2, 2)] * 3).bool()
    assert matrix[~blocks].eq(0).all()


def test_dot_products_depend_on_distance_alone():
    """Every diagonal of the matrix of dot products is constant."""
    table = sinusoids(200, 128).double()
    products = table @ table.T
    omega = 10000.0 ** (-torch.arange(0, 128, 2).double() / 128)
    for k in range(200):
        diagonal = products.diagonal(k)
        expected = (k * omega).cos().sum()
        assert_close(diagonal, expected.expand_as(diagonal), atol=2e-3, rtol=0)


def test_encodings_all_have_one_length():
    """Half of d_model is the square of each encoding's length."""
    lengths = sinusoids(500, 512).norm(dim=-1)
    assert_close(lengths, torch.full((500,), 16.0))


def test_any_length_and_any_start():
    """Later positions are what a longer table would have had there."""
    assert_close(sinusoids(7, 64, start=5), sinusoids(12, 64)[5:])
    assert sinusoids(7, 64, device="meta").device.type == "meta"
    far = sinusoids(3, 64, start=50_000)
    assert far.isfinite().all()
    angles = torch.arange(50_000, 50_003).double()[:, None]
    angles = angles * 10000.0 ** (-torch.arange(0, 64, 2).double() / 64)
    assert_close(far[:, ::2], angles.sin().float(), atol=5e-3, rtol=0)


def test_sinusoids_are_exact_whatever_the_default():
    """Half precision as the default would turn the clocks by radians."""
    expected = sinusoids(100, 64)
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert_close(sinusoids(100, 64), expected)
    finally:
        torch.set_default_dtype(torch.float32)


def test_positions_are_added():
    """The module adds the encodings, in the precision that it is given."""
    x = torch.randn(2, 5, 8)
    add = SinusoidalPositions()
    assert_close(add(x), x + sinusoids(5, 8))
    assert_close(add(x, start=3), x + sinusoids(8, 8)[3:])
    assert add(x.bfloat16()).dtype == torch.bfloat16
    assert list(add.state_dict()) == []


def test_learned_positions_are_added():
    """Row t of the table, from a start on, and learned."""
    add = LearnedPositions(6, 8)
    x = torch.randn(2, 4, 8)
    assert_close(add(x), x + add.table[:4])
    assert_close(add(x, start=2), x + add.table[2:])
    (gradient,) = torch.autograd.grad(add(x).sum(), add.table)
    assert gradient[:4].eq(2).all() and gradient[4:].eq(0).all()


def test_learned_positions_start_as_long_as_sinusoids():
    """Nothing but the pattern changes between the two."""
    length = LearnedPositions(200, 512).table.norm(dim=-1).mean().item()
    assert_close(length, 16.0, rtol=0.02, atol=0)


def test_positions_tell_the_order():
    """With them, attention knows who bites whom; without, it does not."""
    attend, add = MultiHeadAttention(16, 4), SinusoidalPositions()
    x = torch.randn(1, 3, 16)
    for put_in, told in ((lambda x: x, False), (add, True)):
        one, other = put_in(x), put_in(x.flip(1))
        middle = attend(one, one, one)[0, 1], attend(other, other, other)[0, 1]
        assert torch.allclose(*middle, atol=1e-5) != told


def test_words_can_be_recognised_under_their_positions():
    """With the factor root d_model; without it, hardly one of them."""
    embeddings, add = Embeddings(5000, 512), SinusoidalPositions()
    ids = torch.randint(5000, (1, 300))
    scaled = embeddings(ids)
    share = []
    for x in (scaled, scaled / 512**0.5):
        guess = embeddings.logits(add(x)).argmax(-1)
        share.append((guess == ids).float().mean())
    assert share[0] == 1 and share[1] < 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sinusoids(5, 7), "d_model: 7, expected an even number"),
        (lambda: sinusoids(5, 0), "d_model: 0"),
        (lambda: LearnedPositions(0, 8), "max_length: 0, expected at least 1"),
        (lambda: LearnedPositions(8, 0), "d_model: 0, expected at least 1"),
        (
            lambda: LearnedPositions(4, 8)(torch.zeros(1, 1, 8), start=-1),
            "x: vectors of size 8 from position -1, expected size 8 from 0",
        ),
        (
            lambda: LearnedPositions(4, 8)(torch.zeros(1, 1, 1)),
            "x: vectors of size 1 from position 0, expected size 8",
        ),
        (
            lambda: LearnedPositions(4, 8)(torch.zeros(1, 5, 8)),
            "length: 5 positions, but 4 were learned",
        ),
        (
            lambda: LearnedPositions(4, 8)(torch.zeros(1, 1, 8), start=4),
            "length: 5 positions, but 4 were learned",
        ),
    ],
)
def test_bad_sizes_are_refused(make, message):
    """Odd sizes and sentences that outgrow a table: said clearly."""
    with pytest.raises(ValueError, match=message):
        make()
