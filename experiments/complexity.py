"""Time and memory of the layers of Table 1, over lengths and sizes.

    python -m experiments.complexity [--check]

Measures a forward pass, a forward and backward pass, and the most memory that
the latter holds, for one sentence, on one thread. Times are those of the
processor, not of the clock, and at each size the layers take turns, so that a
machine that is busy with other things matters little, and for all alike. Fits
exponents and finds crossings; ``--check`` does that anew from the stored rows,
and compares. Writes results/complexity.json.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from benchmarks.report import peak_bytes, write_result
from transformer_annotated.attention import MultiHeadAttention, fused_attention
from transformer_annotated.complexity import (
    build_layer,
    fitted_exponent,
    multiply_adds,
)
from transformer_annotated.workshop.files import load_result

LENGTHS = tuple(2**i for i in range(5, 13))
SIZES = (64, 128, 256, 512)
BATCHES = (1, 4, 16, 64)
D, N, LONG = 256, 1024, 512  # of the fits: d for n, n for d, the least n
KERNEL, WINDOW, HEADS = 3, 33, 8
SEED, ROUNDS, SHORTEST = 0, 4, 0.01  # of a timing, seconds
MEASURES = ("multiply_adds", "seconds", "training_seconds", "peak_bytes")
RIVALS = (
    ("self-attention", "recurrent"),
    ("self-attention, fused", "recurrent"),
    ("self-attention, fused", "LSTM"),
    ("multi-head attention", "recurrent"),
    ("multi-head attention", "LSTM"),
)


class FusedAttention(nn.Module):
    """Self-attention in one kernel, without projections."""

    def forward(self, x: Tensor) -> Tensor:
        """Mix ``(B, n, d)``; the kernel wants an axis of heads."""
        x = x[:, None]
        return fused_attention(x, x, x)[:, 0]


class MultiHead(MultiHeadAttention):
    """The paper's self-attention, with projections and eight heads."""

    def forward(self, x: Tensor) -> Tensor:
        """Attend to ``(B, n, d)`` itself."""
        return super().forward(x, x, x)


class LSTM(nn.LSTM):
    """A long short-term memory layer."""

    def forward(self, x: Tensor) -> Tensor:
        """The states ``(B, n, d)``."""
        return super().forward(x)[0]


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "self-attention": lambda d: build_layer("self-attention", d),
    "self-attention, fused": lambda d: FusedAttention(),
    "multi-head attention": lambda d: MultiHead(d, HEADS),
    "recurrent": lambda d: build_layer("recurrent", d),
    "LSTM": lambda d: LSTM(d, d, batch_first=True),
    "convolutional": lambda d: build_layer("convolutional", d, KERNEL),
    "separable convolutional": lambda d: build_layer(
        "separable convolutional", d, KERNEL
    ),
    "restricted self-attention": lambda d: build_layer(
        "restricted self-attention", d, WINDOW
    ),
}


def clock(run: Callable[[], object], calls: int) -> float:
    """Processor time of a run, the mean of some calls."""
    began = time.process_time()
    for _ in range(calls):
        run()
    return (time.process_time() - began) / calls


def taking_turns(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Processor time of each run, the least of some rounds.

    All run in each round, so that a machine that is busier for a while is so
    for all of them. Short ones are called more often.
    """
    calls = {}
    for name, run in runs.items():
        run()
        calls[name] = max(1, round(SHORTEST / max(clock(run, 1), 1e-6)))
    rounds = [
        {name: clock(run, calls[name]) for name, run in runs.items()}
        for _ in range(ROUNDS)
    ]
    return {
        name: float(f"{min(times[name] for times in rounds):.4g}")
        for name in runs
    }


def passes(
    layer: nn.Module, shape: tuple[int, int, int]
) -> tuple[Callable[[], None], Callable[[], None]]:
    """A forward pass, and one with its backward pass."""
    x = torch.randn(shape, requires_grad=True)

    def forward() -> None:
        with torch.no_grad():
            layer(x)

    def both() -> None:
        x.grad = None
        layer.zero_grad(set_to_none=True)
        layer(x).sum().backward()

    return forward, both


def measure(n: int, d: int) -> list[dict]:
    """What each layer costs at one size."""
    torch.manual_seed(SEED)
    layers = {name: build(d) for name, build in LAYERS.items()}
    runs = {name: passes(layer, (1, n, d)) for name, layer in layers.items()}
    forward = taking_turns({name: run for name, (run, _) in runs.items()})
    training = taking_turns({name: run for name, (_, run) in runs.items()})
    rows = []
    for name, layer in layers.items():
        layer.zero_grad(set_to_none=True)
        _, both = passes(layer, (1, n, d))  # without gradients of earlier runs
        row = {
            "layer": name,
            "n": n,
            "d": d,
            "multiply_adds": multiply_adds(layer, n, d),
            "seconds": forward[name],
            "training_seconds": training[name],
            "peak_bytes": peak_bytes(both),
        }
        rows.append(row)
        print(row, flush=True)
    return rows


def in_batches(n: int = 128, d: int = D) -> list[dict]:
    """Time of a forward pass for each sentence of a batch."""
    torch.manual_seed(SEED)
    layers = {name: build(d) for name, build in LAYERS.items()}
    runs = {
        (name, batch): passes(layer, (batch, n, d))[0]
        for name, layer in layers.items()
        for batch in BATCHES
    }
    return [
        {"layer": name, "n": n, "d": d, "batch": batch}
        | {"seconds": float(f"{total / batch:.4g}")}
        for (name, batch), total in taking_turns(runs).items()
    ]


def exponents(rows: Sequence[dict]) -> list[dict]:
    """How each cost of each layer grows with the length, and with the size."""
    found = []
    for name in LAYERS:
        mine = [row for row in rows if row["layer"] == name]
        by_n = [row for row in mine if row["d"] == D and row["n"] >= LONG]
        by_d = [row for row in mine if row["n"] == N]
        for measured in MEASURES:
            fits = {
                of: round(
                    fitted_exponent(
                        [row[of] for row in chosen],
                        [row[measured] for row in chosen],
                    ),
                    2,
                )
                for of, chosen in (("n", by_n), ("d", by_d))
            }
            found.append({"layer": name, "measure": measured} | fits)
    return found


def crossing(ours: dict[int, float], theirs: dict[int, float]) -> float | None:
    """The length from which on ours costs more; None = never, here.

    Found between two lengths on a straight line in logarithms. Ours may cost
    more for the shortest lengths, too: the last crossing counts.
    """
    gaps = [(n, math.log(ours[n] / theirs[n])) for n in sorted(ours)]
    for (n, gap), (m, next_gap) in reversed([*pairwise(gaps)]):
        if gap <= 0 < next_gap:
            return round(n * (m / n) ** (gap / (gap - next_gap)))
    return None


def crossings(rows: Sequence[dict]) -> list[dict]:
    """Where attention begins to cost more than recurrence."""
    found = []
    for ours, theirs in RIVALS:
        for d in SIZES:
            row = {"attention": ours, "recurrence": theirs, "d": d}
            for measured in MEASURES:
                costs = [
                    {
                        row["n"]: row[measured]
                        for row in rows
                        if (row["layer"], row["d"]) == (name, d)
                    }
                    for name in (ours, theirs)
                ]
                row[measured] = crossing(*costs)
                row[f"{measured}_always_more"] = all(
                    costs[0][n] > costs[1][n] for n in LENGTHS
                )
            found.append(row)
    return found


def conclusions(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """What follows from the rows alone."""
    return {"exponents": exponents(rows), "crossings": crossings(rows)}


def main() -> None:
    """Measure, or check what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    if parser.parse_args().check:
        stored = load_result("complexity")
        for name, found in conclusions(stored["rows"]).items():
            if stored[name] != found:
                raise SystemExit(f"{name}: not what the rows say")
        print("the conclusions follow from the rows")
        return
    torch.set_num_threads(1)
    began = time.process_time()
    rows = [row for d in SIZES for n in LENGTHS for row in measure(n, d)]
    batches = in_batches()
    write_result(
        "complexity",
        rows,
        ("torch",),
        seed=SEED,
        threads=1,
        rounds=ROUNDS,
        processor_minutes=round((time.process_time() - began) / 60, 1),
        kernel=KERNEL,
        window=WINDOW,
        heads=HEADS,
        fits={"d": D, "n": N, "least_n": LONG},
        batches=batches,
        **conclusions(rows),
    )


if __name__ == "__main__":
    main()
