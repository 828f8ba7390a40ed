"""The first run of the book, with learning rates too small, good and too large.

    python -m experiments.first_run

The loop is that of the chapter on text, line by line; nothing but the rate
differs between runs. Writes results/first_run.json: the mean loss of every ten
updates, and how many of a thousand new lines each model copies.
"""

import random
from statistics import fmean

import torch
from torch.nn.functional import cross_entropy

from benchmarks.report import write_result
from transformer_annotated import Transformer, TransformerConfig

RATES = (0.0001, 0.002, 0.03)
LETTERS, BOS, EOS = "abcdefghijklmnopqrstuvwxyz", 1, 2
SEED, STEPS, LINES, EVERY = 0, 1000, 64, 10


def draw(count: int) -> list[str]:
    """Lines of five random letters."""
    return ["".join(random.choices(LETTERS, k=5)) for _ in range(count)]


def encode(line: str) -> list[int]:
    """The id of each letter, from 3 on."""
    return [3 + LETTERS.index(letter) for letter in line]


def batch(lines: list[str]) -> torch.Tensor:
    """Ids (B, 7) of lines, each between a start and an end symbol."""
    return torch.tensor([[BOS, *encode(line), EOS] for line in lines])


def first_run(rate: float) -> tuple[Transformer, list[float]]:
    """The loop of the chapter: a model, and the loss of each update."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    model = Transformer(
        TransformerConfig(
            vocab_size=29, layers=1, d_model=64, d_ff=128, heads=4, dropout=0.0
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    losses = []
    for _ in range(STEPS):
        ids = batch(draw(LINES))  # (B, 7)
        logits = model(ids[:, 1:], ids[:, :-1])  # (B, 6, 29)
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@torch.no_grad()
def copied(model: Transformer, count: int = 1000) -> int:
    """How many new lines come out as they went in."""
    lines = batch(draw(count))  # (count, 7)
    written = lines[:, :1]  # start symbols
    for _ in range(6):
        logits = model(lines[:, 1:], written)[:, -1:]  # (count, 1, 29)
        written = torch.cat([written, logits.argmax(-1)], 1)
    return int((written == lines).all(1).sum())


def main() -> None:
    """Every rate, with the same initial values and the same lines."""
    rows = []
    for rate in RATES:
        model, losses = first_run(rate)
        curve = [
            [i + EVERY, round(fmean(losses[i : i + EVERY]), 4)]
            for i in range(0, STEPS, EVERY)
        ]
        rows.append({"rate": rate, "copied": copied(model), "curve": curve})
    write_result(
        "first_run",
        rows,
        ("torch",),
        seed=SEED,
        updates=STEPS,
        lines_per_batch=LINES,
        tested=1000,
    )


if __name__ == "__main__":
    main()
