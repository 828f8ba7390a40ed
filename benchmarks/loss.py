"""Time and memory of the vocabulary loss, beside logits and cross_entropy.

    python -m benchmarks.loss [--rounds 7] [--threads 2]

Writes results/loss.json.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks.report import write_result
from transformer_annotated.loss import label_smoothed_cross_entropy
from transformer_annotated.workshop.fused_loss import linear_cross_entropy

SIZES = {"tiny": (4096, 128, 10_000), "base": (2048, 512, 37_000)}
CHUNKS = (128, 256, 512, 1024)
SEED = 0


def plain(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """Logits of all tokens at once, and PyTorch's own loss."""
    logits = F.linear(hidden, weight).flatten(0, 1)
    return F.cross_entropy(
        logits,
        labels.flatten(),
        label_smoothing=0.1,
        ignore_index=0,
        reduction="sum",
    )


def readable(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The readable form of the book."""
    return label_smoothed_cross_entropy(
        F.linear(hidden, weight), labels
    ).smoothed


def of_torch(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """PyTorch's own loss in chunks, with the smoothing added by hand.

    With ``label_smoothing`` it would make all logits at once. But the smoothed
    loss is the plain one and epsilon times the right logit minus the mean.
    """
    hidden, labels = hidden.flatten(0, 1), labels.flatten()
    nll = F.linear_cross_entropy(
        hidden,
        weight,
        labels,
        ignore_index=0,
        reduction="sum",
        options=torch.nn.LinearCrossEntropyOptions(),
    )
    gap = (hidden * (F.embedding(labels, weight) - weight.mean(0))).sum(1)
    return nll + 0.1 * gap[labels != 0].sum()


def chunked(chunk: int) -> Callable[..., Tensor]:
    """The fast form, with chunks of a size."""

    def loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        return linear_cross_entropy(
            hidden, weight, labels, chunk=chunk
        ).smoothed

    return loss


def inputs(tokens: int, d_model: int, vocab: int) -> tuple[Tensor, ...]:
    """Hidden vectors, matrix and labels without padding."""
    torch.manual_seed(SEED)
    hidden = torch.randn(32, tokens // 32, d_model, requires_grad=True)
    weight = torch.randn(vocab, d_model).mul_(d_model**-0.5).requires_grad_()
    return hidden, weight, torch.randint(1, vocab, (32, tokens // 32))


def seconds(loss: Callable[..., Tensor], data: tuple[Tensor, ...]) -> float:
    """Duration of forward and backward pass."""
    data[0].grad = data[1].grad = None
    began = time.perf_counter()
    loss(*data).backward()
    return time.perf_counter() - began


def peak(loss: Callable[..., Tensor], data: tuple[Tensor, ...]) -> int:
    """Most bytes held at one time by what the two passes allocate."""
    data[0].grad = data[1].grad = None
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        loss(*data).backward()
    events = log.profiler.kineto_results.events()
    memory = [event for event in events if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(memory, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def measure(name: str, rounds: int) -> list[dict]:
    """All forms at one size, taking turns."""
    data = inputs(*SIZES[name])
    forms = {"cross_entropy": plain, "label_smoothing": readable}
    forms["linear_cross_entropy"] = of_torch
    forms |= {f"chunk {chunk}": chunked(chunk) for chunk in CHUNKS}
    times = {form: [] for form in forms}
    for turn in range(rounds + 1):
        for form, loss in forms.items():
            duration = seconds(loss, data)
            if turn:  # the first round warms up
                times[form].append(duration)
    tokens, d_model, vocab = SIZES[name]
    sizes = {"tokens": tokens, "d_model": d_model, "vocab_size": vocab}
    rows = []
    for form, loss in forms.items():
        pairs = zip(times["cross_entropy"], times[form], strict=True)
        ratios = [theirs / ours for theirs, ours in pairs]
        measured = {
            "size": name,
            **sizes,
            "form": form,
            "seconds": round(min(times[form]), 4),
            "times_faster": round(statistics.median(ratios), 3),
            "times_faster_range": [round(f(ratios), 3) for f in (min, max)],
            "peak_megabytes": round(peak(loss, data) / 1e6, 1),
        }
        rows.append(measured)
    return rows


def main() -> None:
    """Measure both sizes and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows = [row for name in SIZES for row in measure(name, options.rounds)]
    write_result(
        "loss",
        rows,
        ("torch",),
        seed=SEED,
        rounds=options.rounds,
        threads=options.threads,
    )


if __name__ == "__main__":
    main()
