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

from transformer_annotated.embeddings import Embeddings
from transformer_annotated.loss import (
    LossSums,
    label_smoothed_cross_entropy,
    linear_cross_entropy,
    smoothed_targets,
)
from transformer_annotated.model import Transformer, TransformerConfig

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
