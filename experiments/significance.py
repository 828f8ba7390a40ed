"""Which rows of our Table 3 differ from the base model by more than chance?

    python -m experiments.significance [--check]

Reads results/variations.json, trains nothing. Every row is compared with the
same runs of the base model, in two ways. Dunnett's test takes the shared base
and the number of rows into account, and assumes that all rows scatter alike;
its p-values are found by simulation. Welch's test takes the spread of each row
by itself, and Holm's correction the number of rows. Writes
results/significance.json.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from experiments import records
from transformer_annotated.workshop.files import load_result

DRAWS, SEED, SLICES = 200_000, 0, 100_000
MEASURES: dict[str, Callable[[dict], float]] = {
    "log-perplexity": lambda run: math.log(run["perplexity"]),
    "BLEU": lambda run: run["bleu"],
}


def largest_ratios(
    runs: Sequence[int], base_runs: int, freedom: int
) -> np.ndarray:
    """The largest t, up to its sign, of all rows, if none differs at all.

    Args:
        runs: How many runs each row has.
        base_runs: How many the base has.
        freedom: Degrees of freedom of the pooled standard deviation.
    """
    chance = np.random.default_rng(SEED)
    base = chance.standard_normal(DRAWS) / math.sqrt(base_runs)
    spread = np.sqrt(chance.chisquare(freedom, DRAWS) / freedom)
    largest = np.zeros(DRAWS)
    for n in runs:
        mean = chance.standard_normal(DRAWS) / math.sqrt(n)
        ratio = (mean - base) / math.sqrt(1 / n + 1 / base_runs) / spread
        np.maximum(largest, np.abs(ratio), out=largest)
    return largest


def dunnett(rows: dict[str, list[float]], base: list[float]) -> dict[str, dict]:
    """Difference from the base, standard error and p-value of each row."""
    groups = [base, *rows.values()]
    freedom = sum(len(group) - 1 for group in groups)
    squares = sum(
        statistics.variance(group) * (len(group) - 1) for group in groups
    )
    pooled = math.sqrt(squares / freedom)
    largest = largest_ratios(
        [len(group) for group in rows.values()], len(base), freedom
    )
    found = {}
    for name, group in rows.items():
        step = statistics.mean(group) - statistics.mean(base)
        error = pooled * math.sqrt(1 / len(group) + 1 / len(base))
        found[name] = {
            "runs": len(group),
            "difference": round(step, 4),
            "pooled_error": round(error, 4),
            "p_dunnett": round(float((largest >= abs(step) / error).mean()), 4),
        }
    return found


def t_test_p(t: float, freedom: float) -> float:
    """How often chance alone makes a Student's t at least as large.

    With ``t = sqrt(freedom) * tan(angle)`` the density of t is proportional
    to ``cos(angle) ** (freedom - 1)``, which is summed up in slices.
    """

    def beyond(start: float) -> float:
        width = (math.pi / 2 - start) / SLICES
        angles = start + (np.arange(SLICES) + 0.5) * width
        return float((np.cos(angles) ** (freedom - 1)).sum()) * width

    return beyond(math.atan(abs(t) / math.sqrt(freedom))) / beyond(0.0)


def welch(row: list[float], base: list[float]) -> dict[str, float]:
    """Standard error and p-value of a row's difference from the base."""
    own, bases = (
        statistics.variance(group) / len(group) for group in (row, base)
    )
    error = math.sqrt(own + bases)
    freedom = (own + bases) ** 2 / (
        own**2 / (len(row) - 1) + bases**2 / (len(base) - 1)
    )
    t = (statistics.mean(row) - statistics.mean(base)) / error
    return {"error": error, "p_welch": t_test_p(t, freedom)}


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Holm's correction: the smallest p times their number, and so on."""
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.get)):
        largest = max(largest, (len(p_values) - rank) * p_values[name])
        corrected[name] = min(1.0, largest)
    return corrected


def main() -> None:
    """Test all rows of several runs, and write it down."""
    records.write_record(
        "significance", tested(), ("numpy",), seed=SEED, draws=DRAWS
    )


def tested() -> list[dict]:
    """All rows of several runs, in both measures."""
    runs = defaultdict(list)
    for run in load_result("variations")["rows"]:
        runs[run["group"], *run["paper"]["changed"].items()].append(run)
    rows = []
    for measure, value in MEASURES.items():
        values = {
            key: [value(run) for run in group]
            for key, group in runs.items()
            if len(group) > 1
        }
        base = values.pop(("base",))
        alone = {key: welch(row, base) for key, row in values.items()}
        corrected = holm({key: test["p_welch"] for key, test in alone.items()})
        for key, found in dunnett(values, base).items():
            own = alone[key] | {"p_holm": corrected[key]}
            rows.append(
                {"measure": measure, "group": key[0], "changed": dict(key[1:])}
                | found
                | {name: round(value, 4) for name, value in own.items()}
            )
    return rows


def check() -> Iterator[records.Checked]:
    """That all follows from the runs that are stored."""
    stored = records.load_record("significance")["rows"]
    for old, new in zip(stored, tested(), strict=True):
        what = f"{old['measure']}, {old['group']} {old['changed']}"
        for key, value in new.items():
            within = 0.002 if key == "p_dunnett" else 1e-9  # of a simulation
            yield f"{what}, {key}", old[key], value, within


if __name__ == "__main__":
    records.start(main, check)
