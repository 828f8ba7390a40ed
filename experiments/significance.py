"""Which rows of our Table 3 differ from the base model by more than chance?

    python -m experiments.significance [--check]

Reads results/table3.json, trains nothing. Every row is compared with the same
runs of the base model, in two ways. Dunnett's test takes the shared base and
the number of rows into account, and assumes that all rows scatter alike.
Welch's test takes the spread of each row by itself, and Holm's correction the
number of rows. Writes results/significance.json.
"""

import statistics
from collections import defaultdict
from collections.abc import Iterator

from scipy import stats

from experiments import records
from transformer_annotated.workshop.files import load_result

SEED = 0
MEASURES = ("nll", "nll_at_cost_of_base", "bleu")


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Holm's correction: the smallest p times their number, and so on."""
    corrected, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=p_values.get)):
        largest = max(largest, (len(p_values) - rank) * p_values[name])
        corrected[name] = min(1.0, largest)
    return corrected


def compared(
    rows: dict[tuple, list[float]], base: list[float]
) -> Iterator[tuple[tuple, dict]]:
    """Difference from the base and p-values of each row, by its key."""
    together = stats.dunnett(*rows.values(), control=base, rng=SEED).pvalue
    alone = {
        key: float(stats.ttest_ind(row, base, equal_var=False).pvalue)
        for key, row in rows.items()
    }
    corrected = holm(alone)
    for (key, row), p in zip(rows.items(), together, strict=True):
        step = statistics.mean(row) - statistics.mean(base)
        found = {
            "difference": step,
            "p_dunnett": float(p),
            "p_welch": alone[key],
            "p_holm": corrected[key],
        }
        rounded = {name: round(value, 4) for name, value in found.items()}
        yield key, {"runs": len(row)} | rounded


def tested() -> Iterator[dict]:
    """All rows of several runs, in every measure."""
    runs = defaultdict(list)
    for run in load_result("table3")["rows"]:
        runs[run["group"], *run["paper"]["changed"].items()].append(run)
    for measure in MEASURES:
        values = {
            key: [run[measure] for run in group]
            for key, group in runs.items()
            if len(group) > 1
        }
        base = values.pop(("base",))
        for (group, *changed), found in compared(values, base):
            about = {"group": group, "changed": dict(changed)}
            yield {"measure": measure} | about | found


def main() -> None:
    """Test all rows of several runs, and write it down."""
    records.write_record("significance", list(tested()), ("scipy",), seed=SEED)


def check() -> Iterator[records.Checked]:
    """That all follows from the runs that are stored."""
    stored = records.load_record("significance")["rows"]
    for old, new in zip(stored, tested(), strict=True):
        what = f"{old['measure']}, {old['group']} {old['changed']}"
        for key, value in new.items():
            within = 0.002 if key == "p_dunnett" else 1e-9  # it integrates
            yield f"{what}, {key}", old[key], value, within


if __name__ == "__main__":
    records.start(main, check)
