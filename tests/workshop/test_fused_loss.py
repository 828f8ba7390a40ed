"""The loss in chunks against the readable form, and against PyTorch's."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.test_loss import LABELS, Watch, example, torchs
from transformer_annotated.embeddings import Embeddings
from transformer_annotated.loss import (
    LossSums,
    label_smoothed_cross_entropy,
    smoothed_targets,
)
from transformer_annotated.model import Transformer, TransformerConfig
from transformer_annotated.workshop.fused_loss import linear_cross_entropy

# The fast form


def both(hidden, weight, labels, epsilon=0.1, pad=0, **options):
    """Losses of the two forms, with their gradients."""
    results = []
    logits = hidden @ weight.T
    for loss in (
        linear_cross_entropy(hidden, weight, labels, epsilon, pad, **options),
        label_smoothed_cross_entropy(logits, labels, epsilon, pad),
    ):
        grads = torch.autograd.grad(loss.smoothed, (hidden, weight))
        results.append((loss, grads))
    return results


@given(
    sentences=st.integers(1, 4),
    length=st.integers(1, 6),
    vocab=st.integers(2, 20),
    chunk=st.integers(1, 30),
    epsilon=st.floats(0, 0.9),
    seed=st.integers(0, 1000),
)
def test_fast_form_is_the_readable_form(
    sentences, length, vocab, chunk, epsilon, seed
):
    """Values, gradients and hits agree for all sizes, chunks and pads."""
    hidden, weight, labels = example(sentences, length, vocab=vocab, seed=seed)
    pad = seed % vocab
    (ours, grads), (right, expected) = both(
        hidden, weight, labels, epsilon, pad, chunk=chunk, with_correct=True
    )
    assert_close(ours.smoothed, right.smoothed)
    assert_close(ours.nll, right.nll)
    assert_close(grads, expected)
    assert torch.equal(ours.tokens, right.tokens)
    assert not ours.nll.requires_grad
    assert torch.equal(ours.correct, right.correct)


def test_gradient_of_the_fast_form():
    """Against finite differences."""
    hidden, weight, labels = example()

    def loss(hidden, weight):
        return linear_cross_entropy(hidden, weight, labels, chunk=3).smoothed

    assert torch.autograd.gradcheck(loss, (hidden, weight))


def test_fast_form_is_torchs_in_float32():
    """At a size with many chunks, in single precision."""
    hidden, weight, labels = example(8, 40, 16, 500, dtype=torch.float32)
    loss = linear_cross_entropy(hidden, weight, labels, chunk=64)
    expected = torchs(hidden @ weight.T, labels)
    assert loss.smoothed.dtype == torch.float32
    assert_close(loss.smoothed, expected)
    grads, right = (
        torch.autograd.grad(x, (hidden, weight))
        for x in (loss.smoothed, expected)
    )
    assert_close(grads, right, rtol=1e-4, atol=1e-5)


def test_no_tensor_of_tokens_times_vocabulary():
    """Nothing larger than a chunk of logits, nor than the matrix, is made."""
    hidden, weight, labels = example(4, 32, 8, 100)
    with Watch() as fast:
        loss = linear_cross_entropy(hidden, weight, labels, chunk=16)
        loss.smoothed.backward()
    assert fast.largest() == 16 * 100
    with Watch() as plain:
        torchs(hidden @ weight.T, labels).backward()
    assert plain.largest() == 4 * 32 * 100


def test_padding_is_not_multiplied():
    """Rows of padding are gone before the first product."""
    hidden, weight, labels = example(4, 32, 8, 100)
    labels[:, 8:] = 0
    real = int((labels != 0).sum())
    with Watch() as watch:
        linear_cross_entropy(hidden, weight, labels).smoothed.backward()
    sizes = [n for name, n, _ in watch.made if name in ("mm", "exp_")]
    assert sizes.count(real * 100) == 2 and max(sizes) == real * 100
    assert not hidden.grad[labels == 0].any()


def test_labels_that_are_padding_may_have_any_vector():
    """Not a number at padding spoils neither the loss nor the gradient."""
    hidden, weight, labels = example()
    labels[1] = 0
    with torch.no_grad():
        hidden[1] = math.nan
    loss = linear_cross_entropy(hidden, weight, labels)
    loss.smoothed.backward()
    assert loss.smoothed.isfinite() and weight.grad.isfinite().all()
    assert hidden.grad.isfinite().all()


def test_padding_alone_costs_nothing():
    """No tokens: a loss of 0 whose gradient is 0, in both forms."""
    hidden, weight, _ = example()
    nothing = torch.zeros(2, 4, dtype=torch.long)
    for loss, grads in both(hidden, weight, nothing, with_correct=True):
        assert loss.smoothed == loss.nll == loss.tokens == 0
        assert loss.correct.all()
        assert not any(grad.any() for grad in grads)


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_no_gradient_work_without_gradients(context):
    """For evaluation, one product a chunk and none for gradients."""
    hidden, weight, labels = example()
    labels.clamp_(min=1)
    with context(), Watch() as watch:
        loss = linear_cross_entropy(hidden, weight, labels, chunk=4)
    assert len(watch.products()) == 2  # the logits of two chunks
    assert "scatter_add_" not in [name for name, _, _ in watch.made]
    assert not loss.smoothed.requires_grad
    expected = label_smoothed_cross_entropy(hidden @ weight.T, labels)
    assert_close(loss.smoothed, expected.smoothed.detach())


@pytest.mark.parametrize("frozen", [0, 1])
def test_frozen_inputs_get_no_gradient(frozen):
    """Hidden vectors or the matrix may be constants."""
    inputs = example()
    labels = inputs[2].clamp(min=1)
    inputs[frozen].requires_grad_(False)
    with Watch() as watch:
        loss = linear_cross_entropy(*inputs[:2], labels)
    assert len(watch.products()) == 2  # logits, and one gradient
    loss.smoothed.backward()
    assert inputs[frozen].grad is None
    other = inputs[1 - frozen]
    expected = torchs(inputs[0] @ inputs[1].T, labels)
    assert_close(other.grad, *torch.autograd.grad(expected, other))


def test_shared_matrix_collects_both_gradients():
    """One matrix embeds the input and makes the logits."""
    embeddings, labels = Embeddings(7, 4).double(), LABELS
    grads = []
    for fast in (True, False):
        hidden = embeddings(LABELS.flip(1)).tanh()
        if fast:
            loss = linear_cross_entropy(
                hidden, embeddings.weight, labels
            ).smoothed
        else:
            loss = torchs(embeddings.logits(hidden), labels)
        grads += torch.autograd.grad(loss, embeddings.weight)
    assert_close(*grads)


def test_incoming_gradient_scales():
    """The loss may be a part of something larger, and be used twice."""
    hidden, weight, labels = example()
    loss = linear_cross_entropy(hidden, weight, labels).smoothed
    once = torch.autograd.grad(loss, (hidden, weight), retain_graph=True)
    scaled = torch.autograd.grad(loss**2 / 7, (hidden, weight))
    factor = 2 * loss.detach() / 7
    assert_close(scaled, tuple(factor * grad for grad in once))


def test_second_derivative_is_refused():
    """It would be wrong, so it raises."""
    hidden, weight, labels = example()
    loss = linear_cross_entropy(hidden, weight, labels).smoothed
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(loss, hidden, create_graph=True)


def test_layout_does_not_matter():
    """Transposed vectors and int32 labels give the same numbers."""
    hidden, weight, labels = example()
    expected = linear_cross_entropy(hidden, weight, labels).smoothed
    turned = hidden.transpose(0, 1).contiguous().transpose(0, 1)
    turned_weight = weight.t().contiguous().t()
    loss = linear_cross_entropy(turned, turned_weight, labels.int())
    assert_close(loss.smoothed, expected)
    grads = (
        torch.autograd.grad(x, (hidden, weight))
        for x in (loss.smoothed, expected)
    )
    assert_close(*grads)


# Precision


def test_autocast_multiplies_in_bfloat16_and_sums_in_float32():
    """Products in bfloat16, softmax, losses and gradients in float32."""
    hidden, weight, labels = example(4, 16, 32, 64, dtype=torch.float32)
    labels.clamp_(min=1)
    with torch.autocast("cpu", torch.bfloat16), Watch() as watch:
        loss = linear_cross_entropy(hidden, weight, labels, chunk=32)
    assert watch.products() == [torch.bfloat16] * 6
    exps = [dtype for name, _, dtype in watch.made if name == "exp_"]
    assert exps == [torch.float32] * 2
    logits = (hidden.bfloat16() @ weight.bfloat16().T).float()
    right = label_smoothed_cross_entropy(logits, labels)
    assert loss.smoothed.dtype == loss.nll.dtype == torch.float32
    assert_close(loss.nll, right.nll)  # exactly these logits, in float32
    assert_close(loss.smoothed, right.smoothed, rtol=1e-4, atol=0)
    grads, expected = (
        torch.autograd.grad(x, (hidden, weight))
        for x in (loss.smoothed, torchs(hidden @ weight.T, labels))
    )
    for ours, theirs in zip(grads, expected, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.02 * theirs.norm()


def test_float16_is_too_coarse_for_probabilities():
    """Under float16 autocast everything is as in float32."""
    hidden, weight, labels = example(dtype=torch.float32)
    expected = linear_cross_entropy(hidden, weight, labels).smoothed
    with torch.autocast("cpu", torch.float16):
        loss = linear_cross_entropy(hidden, weight, labels).smoothed
    assert torch.equal(loss, expected)
    grads = (torch.autograd.grad(x, (hidden, weight)) for x in (loss, expected))
    for ours, theirs in zip(*grads, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_get_gradients_of_their_kind(dtype):
    """A model in half precision works too; its losses are float32."""
    hidden, weight, labels = example(4, 16, dtype=torch.float32)
    halves = [x.detach().to(dtype).requires_grad_() for x in (hidden, weight)]
    loss = linear_cross_entropy(*halves, labels)
    expected = torchs(hidden @ weight.T, labels)
    assert loss.smoothed.dtype == torch.float32
    assert_close(loss.smoothed, expected, rtol=0.01, atol=0)
    grads = torch.autograd.grad(loss.smoothed, halves)
    right = torch.autograd.grad(expected, (hidden, weight))
    for ours, theirs in zip(grads, right, strict=True):
        assert ours.dtype == dtype
        assert (ours.float() - theirs).norm() < 0.03 * theirs.norm()


@pytest.mark.filterwarnings("ignore")  # Dynamo warns itself
def test_compiled_step_has_the_same_numbers():
    """torch.compile steps over the loss, and gets its gradient."""
    hidden, weight, labels = example()

    def step(hidden, weight):
        return 3 * linear_cross_entropy(hidden.tanh(), weight, labels).smoothed

    compiled = torch.compile(step, backend="aot_eager")
    loss, expected = compiled(hidden, weight), step(hidden, weight)
    assert_close(loss, expected)
    grads = (torch.autograd.grad(x, (hidden, weight)) for x in (loss, expected))
    assert_close(*grads)


# What was right


def test_correct_is_none_unless_asked_for():
    """The readable form always knows, the fast one when asked."""
    hidden, weight, labels = example()
    assert linear_cross_entropy(hidden, weight, labels).correct is None
    assert LossSums(hidden, hidden, hidden).correct is None


def test_correct_with_a_teacher_is_correct_alone():
    """A sentence is right with the right words before it iff greedily."""
    torch.manual_seed(0)
    config = TransformerConfig(5, layers=1, d_model=8, d_ff=8, heads=2)
    model = Transformer(config).eval()
    src = torch.randint(1, 5, (60, 2))
    alone = torch.ones(60, 1, dtype=torch.long)
    for _ in range(2):  # write two words, the most probable each time
        words = model(src, alone).argmax(-1)
        alone = torch.cat([alone, words[:, -1:]], dim=1)
    labels = alone[:, 1:].clamp(min=1)
    labels[:20, 0] = torch.randint(1, 5, (20,))  # wrong in many places
    labels[10:40, 1] = torch.randint(1, 5, (30,))
    labels[::3, 1] = 0  # one word will do
    tgt = torch.cat([torch.ones(60, 1, dtype=torch.long), labels[:, :-1]], 1)
    hidden = model.decode(tgt, model.encode(src), src)
    matrix = model.embeddings.weight
    loss = linear_cross_entropy(hidden, matrix, labels, with_correct=True)
    greedy = ((alone[:, 1:] == labels) | (labels == 0)).all(-1)
    assert torch.equal(loss.correct.all(-1), greedy)
    assert 0 < greedy.sum() < 60
    assert loss.correct[labels == 0].all()


# Misuse


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 1.0}, "epsilon: 1.0, expected 0 <= epsilon < 1"),
        ({"epsilon": -0.1}, "epsilon: -0.1, expected"),
        ({"labels": LABELS + 1}, "labels: 7 in sentence 0, position 2"),
        ({"labels": LABELS - 1}, "labels: -1 in sentence 1, position 2"),
        ({"labels": LABELS.float()}, "labels: dtype torch.float32, expected"),
        ({"labels": LABELS[:, :3]}, r"shape \(2, 4, \d\), but labels have "),
    ],
)
def test_bad_arguments_are_named(changes, message):
    """Both forms say which argument is wrong, and how."""
    arguments = {"labels": LABELS} | changes
    with pytest.raises(ValueError, match=message):
        label_smoothed_cross_entropy(torch.zeros(2, 4, 7), **arguments)
    with pytest.raises(ValueError, match=message):
        linear_cross_entropy(
            torch.zeros(2, 4, 3), torch.zeros(7, 3), **arguments
        )


def test_labels_may_be_int32():
    """Token ids of either kind, in the readable form and the targets."""
    logits, short = torch.randn(2, 4, 7), LABELS.int()
    assert torch.equal(
        label_smoothed_cross_entropy(logits, short).smoothed,
        label_smoothed_cross_entropy(logits, LABELS).smoothed,
    )
    assert torch.equal(smoothed_targets(short, 7), smoothed_targets(LABELS, 7))


def test_bad_targets_are_named():
    """The definition checks its arguments too."""
    with pytest.raises(ValueError, match="labels: 4 in"):
        smoothed_targets(torch.tensor([4]), 4)
    with pytest.raises(ValueError, match="epsilon: 2"):
        smoothed_targets(torch.tensor([3]), 4, 2)


def test_bad_matrix_and_chunk_are_named():
    """The fast form checks what it alone takes."""
    hidden = torch.zeros(2, 4, 3)
    with pytest.raises(ValueError, match=r"hidden: shape \(2, 4, 3, 1\), but"):
        linear_cross_entropy(hidden[..., None], torch.zeros(7, 3), LABELS)
    with pytest.raises(ValueError, match=r"weight: shape \(7, 2\), expected"):
        linear_cross_entropy(hidden, torch.zeros(7, 2), LABELS)
    with pytest.raises(ValueError, match="chunk: 0, expected at least 1"):
        linear_cross_entropy(hidden, torch.zeros(7, 3), LABELS, chunk=0)
