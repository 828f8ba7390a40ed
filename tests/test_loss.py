"""The smoothed loss against its definition, PyTorch's, and hard cases."""

import inspect
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from transformer_annotated.loss import (
    label_smoothed_cross_entropy,
    smoothed_targets,
)
from transformer_annotated.workshop.fused_loss import linear_cross_entropy

EPSILONS = pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.2])  # Table 3 (D)
LABELS = torch.tensor([[3, 1, 6, 2], [5, 2, 0, 0]])  # V = 7, two are padding


def torchs(logits, labels, epsilon=0.1, pad=0):
    """PyTorch's loss of the same name, summed over real tokens."""
    return F.cross_entropy(
        logits.flatten(0, 1),
        labels.flatten(),
        label_smoothing=epsilon,
        ignore_index=pad,
        reduction="sum",
    )


def example(sentences=2, length=4, d=3, vocab=7, seed=0, dtype=torch.double):
    """Hidden vectors and a matrix that want gradients, and labels."""
    draw = torch.Generator().manual_seed(seed)
    hidden = torch.randn(sentences, length, d, dtype=dtype, generator=draw)
    weight = torch.randn(vocab, d, dtype=dtype, generator=draw)
    labels = torch.randint(vocab, (sentences, length), generator=draw)
    return hidden.requires_grad_(), weight.requires_grad_(), labels


class Watch(TorchDispatchMode):
    """Notes name, size and dtype of what each operation makes."""

    def __enter__(self):
        """Start with nothing noted."""
        self.made = []
        return super().__enter__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Run the operation, and note its first result."""
        result = func(*args, **(kwargs or {}))
        for x in result if isinstance(result, tuple | list) else [result]:
            if isinstance(x, torch.Tensor):
                self.made.append((func._opname, x.numel(), x.dtype))
        return result

    def products(self):
        """Precisions of the products of matrices, not with vectors."""
        names = ("mm", "addmm", "addmm_", "bmm")
        return [dtype for name, _, dtype in self.made if name in names]

    def largest(self):
        """Elements of the largest tensor."""
        return max(numel for _, numel, _ in self.made)


# The targets


def test_targets_by_hand():
    """The right token keeps 1 - eps, and all of them share eps."""
    expected = torch.tensor([[0.05, 0.05, 0.85, 0.05]])
    assert_close(smoothed_targets(torch.tensor([2]), 4, 0.2), expected)
    sure = smoothed_targets(torch.tensor([2]), 4, 0.0)
    assert_close(sure, torch.tensor([[0.0, 0, 1, 0]]))


@given(
    vocab=st.integers(1, 50),
    epsilon=st.floats(0, 0.99),
    shape=st.lists(st.integers(1, 3), max_size=3),
)
def test_targets_are_distributions(vocab, epsilon, shape):
    """They sum to 1, are not negative, and have the shape (..., V)."""
    labels = torch.randint(vocab, shape)
    targets = smoothed_targets(labels, vocab, epsilon)
    assert targets.shape == (*shape, vocab) and (targets >= 0).all()
    assert_close(targets.sum(-1), torch.ones(shape))
    assert torch.equal(targets.argmax(-1), labels)


# The readable form


def test_smoothing_of_the_paper_is_the_default():
    """Every form has an epsilon of 0.1 unless told otherwise."""
    for function in (
        smoothed_targets,
        label_smoothed_cross_entropy,
        linear_cross_entropy,
    ):
        assert inspect.signature(function).parameters["epsilon"].default == 0.1


def test_loss_by_hand():
    """Two tokens, p = 3/4 for the right one, eps = 0.2."""
    logits = torch.tensor([[[0.0, math.log(3.0)], [9.0, -9.0]]])
    loss = label_smoothed_cross_entropy(
        logits, torch.tensor([[1, 0]]), epsilon=0.2
    )
    smoothed = 0.9 * math.log(4 / 3) + 0.1 * math.log(4)
    assert_close(loss.nll, torch.tensor(math.log(4 / 3)))
    assert_close(loss.smoothed, torch.tensor(smoothed))
    assert loss.tokens == 1
    assert_close(loss.perplexity, torch.tensor(4 / 3))  # of nll, not smoothed


@EPSILONS
def test_loss_is_cross_entropy_with_smoothed_targets(epsilon):
    """The shortcut through the log-sum-exp is the definition."""
    logits = torch.randn(2, 4, 7, dtype=torch.double)
    targets = smoothed_targets(LABELS, 7, epsilon)
    each = -(targets * logits.log_softmax(-1)).sum(-1)  # (B, T)
    expected = each[LABELS != 0].sum()
    assert_close(
        label_smoothed_cross_entropy(logits, LABELS, epsilon).smoothed, expected
    )


@EPSILONS
@pytest.mark.parametrize("pad", [0, 2])
def test_loss_is_torchs(epsilon, pad):
    """Value and gradient agree with F.cross_entropy; padding has none."""
    logits = torch.randn(2, 4, 7, dtype=torch.double, requires_grad=True)
    loss = label_smoothed_cross_entropy(logits, LABELS, epsilon, pad)
    expected = torchs(logits, LABELS, epsilon, pad)
    assert_close(loss.smoothed, expected)
    (grad,), (right,) = (
        torch.autograd.grad(x, logits) for x in (loss.smoothed, expected)
    )
    assert_close(grad, right)
    assert not grad[LABELS.eq(pad)].any()
    assert_close(loss.nll, torchs(logits, LABELS, 0, pad).detach())
    assert loss.tokens == LABELS.ne(pad).sum() and not loss.nll.requires_grad


def test_half_precision_logits_are_summed_in_float32():
    """The loss of bfloat16 logits is that of the same numbers in float32."""
    logits = torch.randn(2, 4, 7).bfloat16()
    loss = label_smoothed_cross_entropy(logits, LABELS)
    assert loss.smoothed.dtype == loss.nll.dtype == torch.float32
    assert_close(loss.smoothed, torchs(logits.float(), LABELS))


def test_readable_form_keeps_no_second_copy_of_the_logits():
    """Between forward and backward there are the logits, and nothing else."""
    logits, kept = torch.randn(2, 4, 7, requires_grad=True), set()

    def note(x):
        if x.numel() >= logits.numel():
            kept.add(x.untyped_storage().data_ptr())
        return x

    with saved_tensors_hooks(note, lambda x: x):
        label_smoothed_cross_entropy(logits, LABELS)
    assert kept == {logits.untyped_storage().data_ptr()}


@pytest.mark.parametrize("sign", [1, -1])
def test_huge_logits_cost_what_they_should(sign):
    """No inf and no nan for logits of 1e4, in either form."""
    weight = torch.zeros(7, 1)
    weight[3] = sign * 1e4
    hidden = torch.ones(1, 1, 1, requires_grad=True)
    labels = torch.tensor([[3]])
    gap = 0.0 if sign == 1 else 1e4 + math.log(6)
    lse = 1e4 if sign == 1 else math.log(6)
    expected = 0.9 * gap + 0.1 * (lse - sign * 1e4 / 7)
    for loss in (
        label_smoothed_cross_entropy(hidden @ weight.T, labels),
        linear_cross_entropy(hidden, weight, labels),
    ):
        assert_close(loss.nll.item(), gap, rtol=1e-6, atol=1e-6)
        assert_close(loss.smoothed.item(), expected, rtol=1e-5, atol=1e-3)
        (grad,) = torch.autograd.grad(loss.smoothed, hidden)
        assert grad.isfinite().all()


def test_perplexity_is_the_number_of_equal_choices():
    """A model that knows nothing has a perplexity of V, whatever eps is."""
    for epsilon in (0.0, 0.1):
        loss = label_smoothed_cross_entropy(
            torch.zeros(2, 4, 7), LABELS, epsilon
        )
        assert_close(loss.perplexity, torch.tensor(7.0))  # float32
        assert_close(loss.smoothed, loss.nll)


@EPSILONS
def test_best_gap_between_logits_is_finite(epsilon):
    """At log((1 - eps + eps/V) / (eps/V)) the gradient is zero."""
    if not epsilon:
        gap, most = 30.0, 1e-10  # there is none: it only gets smaller
    else:
        gap, most = math.log((1 - epsilon + epsilon / 7) / (epsilon / 7)), 1e-12
    logits = torch.zeros(1, 1, 7, dtype=torch.double)
    logits[..., 4] = gap
    logits.requires_grad_()
    loss = label_smoothed_cross_entropy(logits, torch.tensor([[4]]), epsilon)
    (grad,) = torch.autograd.grad(loss.smoothed, logits)
    assert grad.abs().max() < most
    target = smoothed_targets(torch.tensor([4]), 7, epsilon).double()
    entropy = torch.special.entr(target).sum()
    assert_close(loss.smoothed.item(), entropy.item(), rtol=1e-6, atol=1e-6)
