"""Kinds of attention for long texts: errors on random vectors, and training.

    python -m experiments.longer [--cache DIR] [--check]

Compares what each kind computes on random vectors with exact attention, by
the multiplications that it spends. Then trains a layer of each kind on tasks
that need one far word, one near word, or all words. A run that the folder
``--cache`` holds is not repeated. The most memory that an update holds is
counted apart, over all tensors of model, activations and optimizer. Writes
results/longer.json; ``--check`` computes its means anew from the stored runs,
and a part of the errors and of the memory.
"""

import argparse
import statistics
import time
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.report import peak_bytes
from experiments import records
from transformer_annotated.after.longer import (
    KINDS,
    accuracy,
    favor_attention,
    linformer_attention,
    lsh_attention,
    lsh_buckets,
    multiplications,
    random_features,
    shared_attention,
    train_long,
    window_attention,
)
from transformer_annotated.attention import attention

SEEDS = (0, 1, 2)
UNSHARED = tuple(kind for kind in KINDS if kind != "shared")
# Task, length, sequences of a batch, updates, seeds, kinds.
PLANS = (
    ("find", 512, 8, 300, SEEDS, KINDS),
    ("find near", 512, 8, 150, SEEDS, UNSHARED),
    ("most frequent", 512, 8, 150, SEEDS, UNSHARED),
    ("find", 1024, 4, 200, SEEDS[:2], KINDS),
    ("find", 2048, 2, 200, SEEDS[:2], KINDS),
)
LENGTHS, SCALES, D = (128, 256, 512, 1024), (0.5, 1.0, 2.0), 32
CHUNK, EVERY = 32, 20


def run(
    task: str, kind: str, n: int, batch: int, steps: int, seed: int
) -> dict:
    """Train a layer once, and ask it."""
    began = time.process_time()
    model, losses = train_long(kind, task, n, seed, steps, batch)
    seconds = time.process_time() - began
    means = [
        round(statistics.fmean(losses[i : i + EVERY]), 3)
        for i in range(0, len(losses), EVERY)
    ]
    return {
        "task": task,
        "kind": kind,
        "n": n,
        "batch": batch,
        "steps": steps,
        "seed": seed,
        "processor_seconds": round(seconds, 2),
        "losses": means,
        "accuracy": round(accuracy(model, task, n), 4),
    }


def summary(rows: Sequence[dict]) -> list[dict]:
    """Over seeds: accuracy and time of training, with their ranges."""
    found = []
    for task, n, kind in (
        (task, n, kind) for task, n, *_, kinds in PLANS for kind in kinds
    ):
        mine = [
            r for r in rows if (r["task"], r["n"], r["kind"]) == (task, n, kind)
        ]
        row = {"task": task, "n": n, "kind": kind, "runs": len(mine)}
        for key in ("accuracy", "processor_seconds"):
            values = [r[key] for r in mine]
            row[key] = round(statistics.fmean(values), 3)
            row[f"{key}_range"] = [min(values), max(values)]
        found.append(row)
    return found


def memory(task: str, kind: str, n: int, batch: int) -> dict:
    """The most bytes that training holds, in its first two updates."""
    held = peak_bytes(lambda: train_long(kind, task, n, 0, 2, batch))
    row = {"task": task, "n": n, "kind": kind, "batch": batch}
    return row | {"peak_bytes": held}


class Errors:
    """Errors of all methods on the same random vectors ``(1, 1, n, D)``.

    Args:
        n: Positions.
        scale: Of queries and keys.
        seed: Of all random numbers.
    """

    def __init__(self, n: int, scale: float, seed: int) -> None:
        """Draw vectors, and compute what is exact."""
        self.n, self.scale, self.rows = n, scale, []
        self.chance = torch.Generator().manual_seed(seed)
        q, k, self.v = (self.normal(1, 1, n, D) for _ in "qkv")
        self.q, self.k = scale * q, scale * k
        self.exact, self.weights = attention(self.q, self.k, self.v)
        self.qk = scale * self.q  # so that scores vary as much as above
        self.shared = shared_attention(self.qk, self.v)

    def normal(self, *shape: int) -> Tensor:
        """Normally distributed numbers."""
        return torch.randn(shape, generator=self.chance)

    def add(self, method: str, size: int, cost: int, found: Tensor) -> None:
        """Note how far what was found is from what is exact."""
        exact = self.shared if method == "LSH" else self.exact
        error = (found - exact).norm() / exact.norm()
        full = multiplications("full", self.n, D)
        self.rows.append(
            {"n": self.n, "scale": self.scale, "method": method}
            | {"size": size, "cost": cost / full, "error": error.item()}
        )

    def estimated(self) -> None:
        """Random features, orthogonal or not."""
        for size in (16, 64, 256, 1024):
            cost = multiplications("Performer", self.n, D, size)
            for name in ("FAVOR+", "FAVOR+, independent"):
                w = random_features(size, D, self.chance, name == "FAVOR+")
                found = favor_attention(self.q, self.k, self.v, w)
                self.add(name, size, cost, found)

    def projected(self) -> None:
        """Random projections, and the nearest weights of a rank."""
        left, strength, right = torch.linalg.svd(self.weights)
        for size in (8, 32, 128, 512):
            if size < self.n:
                cost = multiplications("Linformer", self.n, D, size)
                e, f = (self.normal(size, self.n) / size**0.5 for _ in "ef")
                found = linformer_attention(self.q, self.k, self.v, e, f)
                self.add("Linformer, random", size, cost, found)
                best = left[..., :size] * strength[..., None, :size]
                found = best @ (right[..., :size, :] @ self.v)
                self.add("best of that rank", size, cost, found)

    def hashed(self) -> None:
        """Chunks of like buckets, in several rounds."""
        half = self.n // CHUNK  # of the buckets
        for rounds in (1, 2, 4, 8):
            buckets = lsh_buckets(self.qk, self.normal(1, D, rounds, half))
            cost = rounds * self.n * D * (half + 4 * CHUNK)
            found = lsh_attention(self.qk, self.v, buckets, CHUNK)
            self.add("LSH", rounds, cost, found)

    def windowed(self) -> None:
        """Neighbours, which are no more alike than others here."""
        for side in (4, 16, 64, 256):
            if 3 * side <= self.n:
                cost = multiplications("window", self.n, D, 2 * side)
                found = window_attention(self.q, self.k, self.v, side)
                self.add("window", side, cost, found)


def errors(n: int, scale: float, seed: int) -> list[dict]:
    """A row for each method and size."""
    found = Errors(n, scale, seed)
    found.estimated()
    found.projected()
    found.hashed()
    found.windowed()
    return found.rows


def mean_errors(n: int, scale: float, seeds: Sequence[int]) -> list[dict]:
    """Errors of all methods, means over seeds and their ranges."""
    found = []
    for same in zip(*(errors(n, scale, seed) for seed in seeds), strict=True):
        values = [row["error"] for row in same]
        found.append(
            same[0]
            | {
                "cost": round(same[0]["cost"], 4),
                "error": round(statistics.fmean(values), 4),
                "range": [round(min(values), 4), round(max(values), 4)],
            }
        )
    return found


def main(cache: Path) -> None:
    """Train all that the cache does not hold, and write what came of it."""
    torch.set_num_threads(1)
    rows = []
    for task, n, batch, steps, seeds, kinds in PLANS:
        for seed, kind in product(seeds, kinds):
            file = cache / f"{task.replace(' ', '-')}-{n}-{kind}-{seed}.json"
            given = (task, kind, n, batch, steps, seed)
            rows.append(records.cached(file, run, *given))
            print(*rows[-1].values(), flush=True)
    records.write_record(
        "longer",
        rows,
        ("torch",),
        list(SEEDS),
        threads=1,
        d=D,
        chunk=CHUNK,
        summary=summary(rows),
        memory=[
            memory(task, kind, n, batch)
            for task, n, batch, _, _, kinds in PLANS
            for kind in kinds
        ],
        errors=[
            row
            for n, scale in product(LENGTHS, SCALES)
            for row in mean_errors(n, scale, SEEDS)
        ],
    )


def check() -> Iterator[records.Checked]:
    """That the summary follows from the runs, and that errors come again."""
    found = records.load_record("longer")
    again = summary(found["rows"])
    for stored, row in zip(found["summary"], again, strict=True):
        yield f"{row['task']}, {row['n']}, {row['kind']}", stored, row
    for row in found["memory"][: len(KINDS)]:
        task, n, kind, batch, held = row.values()
        again = memory(task, kind, n, batch)["peak_bytes"]
        yield f"memory, {kind}", held, again, 0.05 * held
    n = min(LENGTHS)
    for scale in SCALES:
        kept = [
            row
            for row in found["errors"]
            if (row["n"], row["scale"]) == (n, scale)
        ]
        for old, new in zip(kept, mean_errors(n, scale, SEEDS), strict=True):
            name = f"{n}, {scale}, {old['method']}, {old['size']}"
            yield f"{name}, cost", old["cost"], new["cost"]
            near = 0.02 * max(1.0, old["error"])
            yield f"{name}, error", old["error"], new["error"], near


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path("runs/longer"))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    records.start(lambda: main(options.cache), check)
