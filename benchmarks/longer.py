"""Time and memory of attention for long texts, beside the fused kernel.

    python -m benchmarks.longer

Each kind mixes the same queries, keys and values, ``HEADS`` heads of size
``D``, without projections to them. At each length all take turns, and the
least processor time of some rounds counts, so that a machine that is busy
with other things matters little: what counts is the ratio to the fused
kernel, which computes all pairs. Memory is the most that a forward and a
backward pass allocate. Writes results/speed-longer.json.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.report import peak_bytes, write_result
from experiments.complexity import crossing, taking_turns
from transformer_annotated.after.longer import (
    ROUNDS,
    favor_attention,
    linformer_attention,
    lsh_attention,
    lsh_buckets,
    random_features,
    window_attention,
)
from transformer_annotated.attention import attention, fused_attention

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
PLAIN = 4096  # the longest text whose weights are all stored
HEADS, D, SIZE, SEED = 2, 32, 64, 0
MEASURES = ("seconds", "training_seconds", "peak_bytes")
Mix = Callable[[Tensor, Tensor, Tensor], Tensor]


def kinds(n: int) -> dict[str, Mix]:
    """How each kind mixes values ``(1, HEADS, n, D)``."""
    e, f = (torch.randn(SIZE, n) / math.sqrt(n) for _ in "ef")
    w = random_features(SIZE, D)
    half = SIZE // 2  # of the keys to a round of hashing, or of a window
    turns = torch.randn(HEADS, D, ROUNDS, n // half)
    found = {
        "fused": fused_attention,
        "Linformer": lambda q, k, v: linformer_attention(q, k, v, e, f),
        "Performer": lambda q, k, v: favor_attention(q, k, v, w),
        "Performer, causal": lambda q, k, v: favor_attention(
            q, k, v, w, causal=True
        ),
        "Reformer": lambda q, k, v: lsh_attention(
            q, v, lsh_buckets(q, turns), half
        ),
        "window": lambda q, k, v: window_attention(q, k, v, half),
    }
    if n <= PLAIN:
        found["all weights stored"] = lambda q, k, v: attention(q, k, v)[0]
    return found


def passes(mix: Mix, n: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """A forward pass, and one with its backward pass."""
    given = [torch.randn(1, HEADS, n, D, requires_grad=True) for _ in "qkv"]

    def forward() -> None:
        with torch.no_grad():
            mix(*given)

    def both() -> None:
        for x in given:
            x.grad = None
        mix(*given).sum().backward()

    return forward, both


def measure(n: int) -> list[dict]:
    """What each kind costs at one length, and its ratios to the fused."""
    torch.manual_seed(SEED)
    runs = {name: passes(mix, n) for name, mix in kinds(n).items()}
    forward = taking_turns({name: run for name, (run, _) in runs.items()})
    training = taking_turns({name: run for name, (_, run) in runs.items()})
    rows = []
    for name, (_, both) in runs.items():
        costs = (forward[name], training[name], peak_bytes(both))
        row = {"kind": name, "n": n} | dict(zip(MEASURES, costs, strict=True))
        base = rows[0] if rows else row
        ratios = {key: float(f"{row[key] / base[key]:.3g}") for key in MEASURES}
        rows.append(row | {"ratios": ratios})
        print(rows[-1], flush=True)
    return rows


def crossings(rows: list[dict]) -> list[dict]:
    """From which length on the fused kernel costs more; None = not here."""
    keys = MEASURES

    def costs(kind: str, key: str) -> dict[int, float]:
        return {row["n"]: row[key] for row in rows if row["kind"] == kind}

    return [
        {"kind": kind}
        | {key: crossing(costs("fused", key), costs(kind, key)) for key in keys}
        for kind in kinds(min(LENGTHS))
        if kind not in ("fused", "all weights stored")
    ]


def main() -> None:
    """Measure, and write the results."""
    torch.set_num_threads(1)
    rows = [row for n in LENGTHS for row in measure(n)]
    write_result(
        "speed-longer",
        rows,
        ("torch",),
        seed=SEED,
        threads=1,
        heads=HEADS,
        d=D,
        size=SIZE,
        crossings=crossings(rows),
    )


if __name__ == "__main__":
    main()
