"""The first run of the book, with learning rates too small, good and too large.

    python -m experiments.first_run [--check]

The loop is that of the chapter on text, line by line; nothing but the rate
differs between runs. Writes results/first_run.json: the mean loss of every ten
updates, and how many of a thousand new lines each model copies.
"""

import random
from collections.abc import Iterator
from statistics import fmean

import torch
from torch.nn.functional import cross_entropy

from experiments import records
from transformer_annotated import Transformer, TransformerConfig

RATES = (0.0001, 0.001, 0.03)
LETTERS, BOS, EOS = "abcdefghijklmnopqrstuvwxyz", 1, 2
SEED, STEPS, LINES, EVERY = 0, 800, 128, 10


def draw(count: int) -> list[str]:
    """Lines of four different letters."""
    return ["".join(random.sample(LETTERS, 4)) for _ in range(count)]


def encode(line: str) -> list[int]:
    """The id of each letter, from 3 on."""
    return [3 + LETTERS.index(letter) for letter in line]


def batch(lines: list[str]) -> torch.Tensor:
    """Ids (B, 6) of lines, each between a start and an end symbol."""
    return torch.tensor([[BOS, *encode(line), EOS] for line in lines])


def first_run(rate: float) -> tuple[Transformer, set[str], list[float]]:
    """The loop of the chapter: model, lines it saw, loss of each update."""
    random.seed(SEED)
    torch.manual_seed(SEED)
    model = Transformer(
        TransformerConfig(
            vocab_size=29, layers=1, d_model=64, d_ff=128, heads=2
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    seen, losses = set(), []
    for _ in range(STEPS):
        ids = batch(lines := draw(LINES))  # (B, 6)
        logits = model(ids[:, 1:], ids[:, :-1])  # (B, 5, 29)
        loss = cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.update(lines)
        losses.append(loss.item())
    return model, seen, losses


@torch.no_grad()
def copied(model: Transformer, seen: set[str], count: int = 1000) -> int:
    """How many new lines come out as they went in."""
    new = [line for line in draw(2 * count) if line not in seen][:count]
    ids = batch(new)  # (count, 6)
    written = ids[:, :1]  # start symbols
    model.eval()
    for _ in range(5):
        logits = model(ids[:, 1:], written)[:, -1:]  # (count, 1, 29)
        written = torch.cat([written, logits.argmax(-1)], 1)
    return int((written == ids).all(1).sum())


def main() -> None:
    """Every rate, with the same initial values and the same lines."""
    rows = []
    for rate in RATES:
        model, seen, losses = first_run(rate)
        curve = [
            [i + EVERY, round(fmean(losses[i : i + EVERY]), 4)]
            for i in range(0, STEPS, EVERY)
        ]
        row = {"rate": rate, "copied": copied(model, seen), "curve": curve}
        rows.append(row)
    records.write_record(
        "first_run",
        rows,
        ("torch",),
        seed=SEED,
        updates=STEPS,
        lines_per_batch=LINES,
        tested=1000,
    )


def check() -> Iterator[records.Checked]:
    """That every rate has its whole curve, of as many updates as said."""
    found = records.load_record("first_run")
    yield "rates", [row["rate"] for row in found["rows"]], list(RATES)
    yield "updates", found["updates"], STEPS
    for row in found["rows"]:
        steps = [step for step, _ in row["curve"]]
        wanted = list(range(EVERY, STEPS + 1, EVERY))
        yield f"{row['rate']}, updates", steps, wanted
    yield ("lines copied: the models are not stored",)


if __name__ == "__main__":
    records.start(main, check)
