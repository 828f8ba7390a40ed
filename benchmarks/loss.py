"""Time and memory of the vocabulary loss, beside logits and cross_entropy.

    python -m benchmarks.loss [--rounds 7] [--threads 1]

Times are those of the processor, not of the clock, so that a machine that is
busy with other things does not matter much. Writes results/loss.json.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.report import peak_bytes, write_result
from transformer_annotated.loss import LossSums, label_smoothed_cross_entropy
from transformer_annotated.workshop.fused_loss import linear_cross_entropy

SIZES = {"tiny": (4096, 128, 10_000), "base": (2048, 512, 37_000)}
CHUNKS = (256, 512, 1024)
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


def of_torch(chunk: int | None) -> Callable[..., Tensor]:
    """PyTorch's own loss in chunks; None = of a size that it chooses.

    With ``label_smoothing`` it would make all logits at once. But the smoothed
    loss is the plain one and epsilon times the right logit minus the mean.
    """
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=chunk)

    def loss(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        hidden, labels = hidden.flatten(0, 1), labels.flatten()
        nll = F.linear_cross_entropy(
            hidden,
            weight,
            labels,
            ignore_index=0,
            reduction="sum",
            options=options,
        )
        right = F.embedding(labels, weight) - weight.mean(0)
        gap = (hidden * right).sum(1)
        return nll + 0.1 * gap[labels != 0].sum()

    return loss


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


def our_hits(hidden: Tensor, weight: Tensor, labels: Tensor) -> LossSums:
    """What validation wants: the losses, and which tokens were right."""
    with torch.no_grad():
        return linear_cross_entropy(hidden, weight, labels, with_correct=True)


def torch_hits(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The same with PyTorch's loss, which keeps its logits to itself."""
    with torch.no_grad():
        of_torch(512)(hidden, weight, labels)
        rows = hidden.flatten(0, 1).split(512)
        best = [F.linear(row, weight).argmax(1) for row in rows]
        return torch.cat(best) == labels.flatten()


def both_passes(loss: Callable[..., Tensor]) -> Callable[..., None]:
    """Forward and backward pass of a loss."""

    def run(hidden: Tensor, weight: Tensor, labels: Tensor) -> None:
        hidden.grad = weight.grad = None
        loss(hidden, weight, labels).backward()

    return run


def seconds(run: Callable[..., object], data: tuple[Tensor, ...]) -> float:
    """Processor time of a run."""
    began = time.process_time()
    run(*data)
    return time.process_time() - began


def measure(
    name: str, runs: dict[str, Callable[..., object]], rounds: int
) -> list[dict]:
    """Several forms at one size, taking turns; the first is the yardstick."""
    data = inputs(*SIZES[name])
    times = {form: [] for form in runs}
    for turn in range(rounds + 1):
        for form, run in runs.items():
            duration = seconds(run, data)
            if turn:  # the first round warms up
                times[form].append(duration)
    first, *_ = times.values()
    sizes = zip(("tokens", "d_model", "vocab_size"), SIZES[name], strict=True)
    about, rows = {"size": name, **dict(sizes)}, []
    for form, run in runs.items():
        data[0].grad = data[1].grad = None
        most = peak_bytes(lambda run=run: run(*data))
        pairs = zip(first, times[form], strict=True)
        ratios = [theirs / ours for theirs, ours in pairs]
        measured = {
            "form": form,
            "seconds": round(min(times[form]), 4),
            "times_faster": round(statistics.median(ratios), 3),
            "times_faster_range": [round(f(ratios), 3) for f in (min, max)],
            "peak_megabytes": round(most / 1e6, 1),
        }
        rows.append(about | measured)
    return rows


def main() -> None:
    """Measure both sizes and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    losses = {"cross_entropy": plain, "label_smoothing": readable}
    losses |= {"torch": of_torch(None), "torch 512": of_torch(512)}
    losses |= {f"chunk {chunk}": chunked(chunk) for chunk in CHUNKS}
    training = {form: both_passes(loss) for form, loss in losses.items()}
    validation = {"hits, torch 512": torch_hits, "hits, chunk 512": our_hits}
    rows = [
        row
        for name in SIZES
        for runs in (training, validation)
        for row in measure(name, runs, options.rounds)
    ]
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
