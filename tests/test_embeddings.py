"""One matrix in three places: looked up, scaled, and read backwards."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from transformer_annotated.embeddings import Embeddings


def test_embedding_is_a_row_times_root_d_model():
    """Looked up, and multiplied by the root of d_model."""
    embeddings = Embeddings(10, 16)
    ids = torch.tensor([[3, 1, 9], [0, 3, 3]])
    assert_close(embeddings(ids), embeddings.weight[ids] * 4)
    one_hot = F.one_hot(ids, 10).float()
    assert_close(embeddings(ids), one_hot @ embeddings.weight * 4)
    assert embeddings(ids.int()).equal(embeddings(ids))


def test_logits_are_dot_products_with_the_rows():
    """The output side has the same matrix, no factor and no bias."""
    embeddings = Embeddings(10, 16)
    hidden = torch.randn(2, 3, 16)
    expected = torch.einsum("btd,vd->btv", hidden, embeddings.weight)
    assert_close(embeddings.logits(hidden), expected)
    assert embeddings.logits(torch.zeros(16)).eq(0).all()


def test_there_is_one_parameter():
    """Nothing to tie: both directions learn the same numbers."""
    embeddings = Embeddings(10, 16)
    assert list(embeddings.state_dict()) == ["weight"]
    ids = torch.tensor([[3, 4]])
    (come_in,) = torch.autograd.grad(embeddings(ids).sum(), embeddings.weight)
    assert come_in.any(-1).nonzero().flatten().tolist() == [3, 4]
    logits = embeddings.logits(torch.randn(1, 16))
    loss = F.cross_entropy(logits, torch.tensor([7]))
    (go_out,) = torch.autograd.grad(loss, embeddings.weight)
    assert go_out.any(-1).all()


def test_initial_sizes():
    """Rows of length 1, inputs of variance 1, logits of variance 1."""
    embeddings = Embeddings(2000, 512)
    assert_close(embeddings.weight.std().item(), 512**-0.5, rtol=0.02, atol=0)
    assert abs(embeddings.weight.mean()) < 1e-3
    assert embeddings.weight.abs().max() > 4 * 512**-0.5  # normal, not uniform
    x = embeddings(torch.randint(2000, (10, 100)))
    assert_close(x.std().item(), 1.0, rtol=0.02, atol=0)
    logits = embeddings.logits(torch.randn(200, 512))
    assert_close(logits.std().item(), 1.0, rtol=0.03, atol=0)
    labels = torch.randint(2000, (200,))
    assert abs(F.cross_entropy(logits, labels) - math.log(2000)) < 1


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([[1, 2], [10, 3]], r"ids: 10 in sentence 1, position 0.*10 tokens"),
        ([[1, 10], [10, 3]], r"ids: 10 in sentence 0, position 1"),
        ([[1, -1]], r"ids: -1 in sentence 0, position 1.*0 to 9"),
        ([[1.0, 2.0]], r"ids: dtype torch.float32, expected torch.int64 or"),
        ([[True, False]], r"ids: dtype torch.bool"),
        ([1, 2], r"ids: shape \(2,\), expected \(B, length\)"),
        ([[], []], r"ids: shape \(2, 0\).* at least one sentence and one"),
        ([[[1]]], r"ids: shape \(1, 1, 1\)"),
    ],
)
def test_wrong_ids_are_refused(ids, message):
    """Out of range, not whole numbers, or no sentences: said clearly."""
    with pytest.raises(ValueError, match=message):
        Embeddings(10, 4)(torch.tensor(ids))


def test_no_sentences_and_other_whole_numbers_are_refused():
    """A batch of nothing, and types that torch cannot look up."""
    with pytest.raises(ValueError, match="ids: list, expected a tensor"):
        Embeddings(10, 4)([[1, 2]])
    with pytest.raises(ValueError, match=r"ids: shape \(0, 3\)"):
        Embeddings(10, 4)(torch.zeros(0, 3, dtype=torch.long))
    for dtype in (torch.int8, torch.int16, torch.uint8):
        with pytest.raises(ValueError, match=f"ids: dtype {dtype}"):
            Embeddings(10, 4)(torch.zeros(2, 3, dtype=dtype))


def test_ids_without_values_are_trusted():
    """On meta and fake tensors there is nothing to look at."""
    with torch.device("meta"):
        x = Embeddings(10, 4)(torch.ones(2, 3, dtype=torch.long))
    assert x.shape == (2, 3, 4)
    with FakeTensorMode():
        x = Embeddings(10, 4)(torch.ones(2, 3, dtype=torch.long))
    assert x.shape == (2, 3, 4)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [((0, 4), "vocab_size: 0, expected at least 1"), ((9, -4), "d_model: -4")],
)
def test_bad_sizes_are_refused(sizes, message):
    """A vocabulary and its vectors have at least one entry."""
    with pytest.raises(ValueError, match=message):
        Embeddings(*sizes)


def test_vectors_that_are_not_scaled():
    """As in models after the paper: rows as they are."""
    embeddings = Embeddings(10, 16, scaled=False)
    ids = torch.tensor([[3, 1, 9]])
    assert_close(embeddings(ids), embeddings.weight[ids])
