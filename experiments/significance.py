"""Which rows of our Table 3 differ from the base model by more than chance?

    python -m experiments.significance [--check]

Reads results/variations.json, trains nothing. Every row is compared with the
same runs of the base model, so the comparisons are not independent: Dunnett's
test takes that into account, and the number of rows. Its p-values are found by
simulation. Writes results/significance.json.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from experiments import records
from transformer_annotated.workshop.files import load_result

DRAWS, SEED = 200_000, 0
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
            "error": round(error, 4),
            "p": round(float((largest >= abs(step) / error).mean()), 4),
        }
    return found


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
        for (group, *changed), found in dunnett(values, base).items():
            about = {"group": group, "changed": dict(changed)}
            rows.append({"measure": measure} | about | found)
    return rows


def check() -> Iterator[records.Checked]:
    """That all follows from the runs that are stored."""
    stored = records.load_record("significance")["rows"]
    for old, new in zip(stored, tested(), strict=True):
        what = f"{old['measure']}, {old['group']} {old['changed']}"
        for key, value in new.items():
            within = 0.002 if key == "p" else 1e-9  # of a simulation
            yield f"{what}, {key}", old[key], value, within


if __name__ == "__main__":
    records.start(main, check)
