"""Table 3 of the paper with small models: every row, on a made-up language.

    python -m experiments.table3 --out runs/table3 [--workers 2]

English to German, by the grammar of this book with clauses two deep, of which
the models see so few sentences that none learns all of it, each about as often
as in the paper. The paper's widths are divided by 4, its layers and heads by 2;
dropout and smoothing stay. Each row has three seeds, the base model six,
because all others are compared with it, and the big model one. A row whose
updates cost less than those of the base goes on until it has cost as much, or
has had twice as many updates, so that rows can be compared at equal updates and
at equal cost; the last seed of the base goes on for as many updates as the big
model. Measured on sentences never seen: likelihood, as the mean of the last
three validations, since a single one goes up and down; and BLEU by the paper's
search, without averaging, as in the paper.

A run that is finished leaves its journal and its translations in
results/table3, and is not repeated. When all are there, results/
table3.json is written from them; --check writes nothing, and compares.
"""

import argparse
import json
import math
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from benchmarks import report
from experiments import records
from transformer_annotated.complexity import training_step_flops
from transformer_annotated.evaluation import bleu, evaluate
from transformer_annotated.layers import TransformerConfig
from transformer_annotated.model import parameter_count
from transformer_annotated.workshop.checkpoints import average_checkpoints
from transformer_annotated.workshop.files import paper_tables
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.recipe import (
    Recipe,
    prepare,
    read_recipe,
    run_recipe,
)
from transformer_annotated.workshop.translator import Translator

MEASURED = ("milliseconds_per_update", "parameters")
SEEDS = {"base": 6, "big": 1}  # all others: 3
STEPS, EVERY, LAST = 3_600, 200, 3  # the last validations are averaged
SENTENCES, WORDS = 1_000, 750  # to translate; about as many make the language
COMMON = {
    "source": "en",
    "target": "de",
    "depth": 2,
    "train_size": 6_600,
    "valid_size": SENTENCES,
    "batch_tokens": 1_024,
    "precision": "bf16",
    "warmup": 400,
    "factor": 0.35,
    "validate_every": EVERY,
    "checkpoint_every": STEPS,
    "log_every": 50,
}


def rows() -> Iterator[tuple[dict, dict]]:
    """Each row of the paper's table, and what it becomes here."""
    for row in paper_tables()["table3"]:
        yield (
            row,
            shrunk(row)
            | {
                "dropout": row["P_drop"],
                "label_smoothing": row["eps_ls"],
                "learned_positions": 200 if row["group"] == "E" else 0,
                "steps": max(updates_of(row), updates_at_cost_of_base(row)),
            },
        )


def shrunk(row: dict) -> dict[str, int]:
    """The sizes of a row of the paper, here."""
    heads = max(1, row["h"] // 2)
    return {
        "layers": row["N"] // 2,
        "d_model": row["d_model"] // 4,
        "d_ff": row["d_ff"] // 4,
        "heads": heads,
        "d_k": row["h"] * row["d_k"] // 4 // heads,
        "d_v": row["h"] * row["d_v"] // 4 // heads,
    }


def cost(sizes: dict[str, int]) -> float:
    """Operations of an update."""
    config = TransformerConfig(WORDS, **sizes)
    return training_step_flops(config, COMMON["batch_tokens"], length=10)


def updates_of(row: dict) -> int:
    """After how many updates a row of the paper is measured."""
    return STEPS * row["train_steps"] // 100_000


def updates_at_cost_of_base(row: dict) -> int:
    """After how many it has cost as much as the base, or twice as many."""
    base = paper_tables()["table3"][0]
    times = min(2, cost(shrunk(base)) / cost(shrunk(row)))
    return math.ceil(times * STEPS / EVERY) * EVERY


def jobs() -> Iterator[tuple[str, dict, dict, int]]:
    """Name, row of the paper, settings and seed of every run.

    One seed of every row before the next, and the longest last.
    """
    table = list(enumerate(rows()))
    _, (big_row, big) = table[-1]
    for seed in range(max(SEEDS.values())):
        for number, (row, small) in table:
            group = row["group"]
            if seed < SEEDS.get(group, 3) and group != "big":
                is_last = (group, seed) == ("base", SEEDS["base"] - 1)
                longer = {"steps": big["steps"]} if is_last else {}
                yield f"{number:02}-{group}-{seed}", row, small | longer, seed
    yield f"{number:02}-big-0", big_row, big, 0


def recipe_of(settings: dict, seed: int, data: Path) -> Recipe:
    """The recipe of a run."""
    changes = COMMON | settings | {"training.seed": seed, "prepared": str(data)}
    return read_recipe(
        "grammar",
        [f"{key}={json.dumps(value)}" for key, value in changes.items()],
    )


def pairs(recipe: Recipe) -> list[tuple[str, str]]:
    """What is translated."""
    valid = recipe.corpus.load().splits["valid"]
    return [valid[i] for i in range(SENTENCES)]


def run(name: str, row: dict, settings: dict, seed: int, out: Path) -> str:
    """Train, translate, and store both, unless that is done."""
    if is_stored(name):
        return name
    torch.set_num_threads(1)
    recipe, folder = recipe_of(settings, seed, out / "data"), out / name
    before = read_metrics(folder)[-1]["step"] if folder.exists() else 0
    start = time.process_time()
    state = run_recipe(recipe, folder, resume=True, progress_bar=False)
    if not state.finished(recipe.training):
        raise SystemExit(f"{name}: stopped; start again to go on")
    metrics = read_metrics(folder)
    spent = (time.process_time() - start) / (metrics[-1]["step"] - before)
    checkpoint = folder / "checkpoints" / f"step-{updates_of(row)}"
    average_checkpoints([checkpoint], folder / "model.safetensors")
    translator = Translator.load(folder, device="cpu")
    found = evaluate(translator, pairs(recipe), tokenize="none")
    metrics[-1] |= {
        "milliseconds_per_update": round(1000 * spent, 1),
        "parameters": parameter_count(translator.model.config),
    }
    for file, lines in zip(
        stored_files(name),
        (map(json.dumps, metrics), found.outputs),
        strict=True,
    ):
        records.store(file, list(lines))
    return name


def stored_files(name: str) -> tuple[Path, Path]:
    """Where the journal and the translations of a run are kept."""
    folder = report.RESULTS / "table3"
    return folder / f"{name}.jsonl.gz", folder / f"{name}.txt.xz"


def is_stored(name: str) -> bool:
    """Whether a run is finished."""
    return all(file.exists() for file in stored_files(name))


def measured(row: dict, settings: dict, seed: int, metrics: list[dict]) -> dict:
    """What a journal says of a run."""
    updates = updates_of(row)
    curve = [
        [r["step"], round(r["valid_nll"], 4)]
        for r in metrics
        if "valid_nll" in r
    ]
    train = [r["nll"] for r in metrics if "nll" in r and r["step"] <= updates]
    keys = ("changed", "ppl_dev", "bleu_dev", "params_million")
    nll = likelihood(curve, updates)
    equal = updates_at_cost_of_base(row)
    return {
        "group": row["group"],
        "paper": {key: row[key] for key in keys},
        "settings": settings,
        "seed": seed,
        "updates": updates,
        "nll": nll,
        "operations_per_update": round(cost(shrunk(row))),
        "updates_at_cost_of_base": equal,
        "nll_at_cost_of_base": likelihood(curve, equal),
        "train_nll": round(train[-1], 4),
        **{key: metrics[-1][key] for key in MEASURED},
        "curve": curve,
    }


def likelihood(curve: list[list], updates: int) -> float:
    """The mean of the last validations up to an update."""
    last = [nll for step, nll in curve if step <= updates][-LAST:]
    return round(statistics.mean(last), 4)


def result() -> tuple[list[dict], dict, dict]:
    """Rows, journals and translations of all runs, from what is stored."""
    rows, journals, outputs = [], {}, {}
    references = [target for _, target in pairs(recipe_of({}, 0, Path("data")))]
    for name, row, settings, seed in jobs():
        lines, outputs[name] = map(records.unpack, stored_files(name))
        journals[name] = [json.loads(line) for line in lines]
        score = bleu(outputs[name], references, tokenize="none")
        rows.append(
            measured(row, settings, seed, journals[name])
            | {"bleu": round(score.value, 2), "signature": score.signature}
        )
    return rows, journals, outputs


def main() -> None:
    """Run what is missing; write the result when nothing is."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/table3"))
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    data = options.out / "data"
    prepare(recipe_of({}, 0, data), data)
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        for done in [pool.submit(run, *job, options.out) for job in jobs()]:
            print(f"{done.result()}: done", flush=True)
    rows, journals, outputs = result()
    records.write_record(
        "table3",
        rows,
        ("torch", "sacrebleu"),
        seed=[*range(max(SEEDS.values()))],
        runs=journals,
        outputs=outputs,
        common=COMMON,
        sentences=SENTENCES,
    )


def check() -> Iterator[records.Checked]:
    """Settings and likelihoods from the journals, BLEU from translations."""
    if missing := [name for name, *_ in jobs() if not is_stored(name)]:
        yield (f"Table 3: {len(missing)} runs are not there yet",)
        return
    found = records.load_record("table3")
    yield from records.check_stored(found)
    for old, new in zip(found["rows"], result()[0], strict=True):
        for key, value in new.items():
            yield f"{old['group']}-{old['seed']}, {key}", old[key], value


if __name__ == "__main__":
    records.start(main, check)
