"""Kinds of positions on two tasks, within and beyond the trained length.

    python -m experiments.rotary [--cache DIR] [--seeds N …] [--check]

In one task the answer depends on a distance, in the other on what stands
there. Small decoders are trained on 16 positions, with each kind of positions
and five seeds, and asked on 64. Those with rotations are asked again with
slower ones, without further training. A run that the folder ``--cache`` holds
is not repeated. Writes results/rotary.json; ``--check`` computes its means
anew from the stored runs.
"""

import argparse
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

import torch

from experiments import records
from transformer_annotated.after.sequences import (
    KINDS,
    LONGEST,
    TASKS,
    TRAINED,
    SequenceModel,
    accuracy_by_position,
    train_sequences,
)

SEEDS = (0, 1, 2, 3, 4)
STEPS = 400
PARTS = {"within": (0, TRAINED), "beyond": (TRAINED, LONGEST)}
FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)
LEARNED, EVERY = 0.1, 20  # a loss; updates over which it is averaged


def scaled(model: SequenceModel, task: str, scaling: str) -> list[dict]:
    """Accuracy of a trained model whose rotations are slowed down."""
    rows = []
    for factor in FACTORS:
        for layer in model.decoder.layers:
            position = layer.self_attention.position
            position.factor, position.scaling = factor, scaling
        accuracy = accuracy_by_position(model, task)
        rows.append({"factor": factor, "accuracy": rounded(accuracy.values())})
    return rows


def rounded(numbers: Iterable[float]) -> list[float]:
    """To three digits after the point."""
    return [round(number, 3) for number in numbers]


def run(task: str, kind: str, seed: int) -> dict:
    """Train a model once, and ask it at all positions."""
    began = time.process_time()
    model, losses = train_sequences(kind, task, seed, STEPS)
    means = [
        statistics.fmean(losses[i : i + EVERY])
        for i in range(0, len(losses), EVERY)
    ]
    seconds = round(time.process_time() - began, 1)
    accuracy = accuracy_by_position(model, task)
    row = {
        "task": task,
        "kind": kind,
        "seed": seed,
        "processor_seconds": seconds,
        "losses": rounded(means),
        "positions": list(accuracy),
        "accuracy": rounded(accuracy.values()),
    }
    if kind == "rotary":
        for scaling in ("ntk", "linear"):
            row[scaling] = scaled(model, task, scaling)
    return row


def summary(rows: Sequence[dict]) -> list[dict]:
    """Over seeds: accuracy within and beyond, and when it was learned."""
    found = []
    for task, kind in product(TASKS, KINDS):
        mine = [r for r in rows if (r["task"], r["kind"]) == (task, kind)]
        row = {"task": task, "kind": kind, "runs": len(mine)}
        for name, ends in PARTS.items():
            values = [mean_between(r, *ends) for r in mine]
            row[name] = round(statistics.fmean(values), 3)
            row[f"{name}_range"] = rounded([min(values), max(values)])
        steps = [learned_after(r["losses"]) for r in mine]
        known = sorted(s for s in steps if s is not None)
        row["learned"] = len(known)
        row["updates"] = int(statistics.median(known)) if known else None
        found.append(row)
    return found


def mean_between(row: dict, first: int, end: int) -> float:
    """Mean accuracy of the blocks between two positions."""
    pairs = zip(row["positions"], row["accuracy"], strict=True)
    return statistics.fmean(value for at, value in pairs if first <= at < end)


def learned_after(losses: Sequence[float]) -> int | None:
    """Updates until a mean loss is below ``LEARNED``; None = never."""
    for number, loss in enumerate(losses, 1):
        if loss < LEARNED:
            return number * EVERY
    return None


def main(cache: Path, seeds: Sequence[int]) -> None:
    """Train all that the cache does not hold, and write what came of it."""
    torch.set_num_threads(1)
    rows = []
    for seed, task, kind in product(seeds, TASKS, KINDS):
        file = cache / f"{task.replace(' ', '-')}-{kind}-{seed}.json"
        rows.append(records.cached(file, run, task, kind, seed))
        row = {key: rows[-1][key] for key in ("seed", "task", "kind")}
        print(row, rows[-1]["losses"][-1], rows[-1]["accuracy"], flush=True)
    records.write_record(
        "rotary",
        rows,
        ("torch",),
        list(seeds),
        threads=1,
        steps=STEPS,
        trained=TRAINED,
        longest=LONGEST,
        tasks=list(TASKS),
        summary=summary(rows),
    )


def check() -> Iterator[records.Checked]:
    """That the summary follows from the runs."""
    found = records.load_record("rotary")
    for stored, row in zip(
        found["summary"], summary(found["rows"]), strict=True
    ):
        yield f"{row['task']}, {row['kind']}", stored, row


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path("runs/rotary"))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    records.start(lambda: main(options.cache, options.seeds), check)
