"""Table 3 of the paper with small models: every row, on a made-up corpus.

    python -m experiments.variations --out runs/variations [--workers 2]

All sizes of the paper's rows are divided by 8, and its numbers of layers by 2;
dropout, smoothing and heads stay. Each row is trained with three seeds, the
big model with one, and measured on sentences never seen: perplexity, and BLEU
by beam search. A few rows are trained once more, four times as long. Runs that
are there already are not repeated, so it can be stopped and started again at
will. Writes results/variations.json and the journal of every run; --check
computes scores from these again.
"""

import argparse
import json
import math
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from experiments import records
from transformer_annotated.evaluation import evaluate
from transformer_annotated.model import parameter_count
from transformer_annotated.workshop.files import paper_tables, write_atomically
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.recipe import (
    prepare,
    read_recipe,
    run_recipe,
)
from transformer_annotated.workshop.translator import Translator

SEEDS = (0, 1, 2)
STEPS, SENTENCES = 600, 500
LONGER = 4
LONG = (0, 1, 7, 8, 9, 14)  # base, one head, N = 2, 4 and 8, no dropout
COMMON = {
    "depth": 1,
    "train_size": 20_000,
    "valid_size": 1_000,
    "batch_tokens": 2_000,
    "warmup": 200,
    "factor": 0.25,
    "validate_every": 300,
    "checkpoint_every": 300,
    "keep": 1,
    "log_every": 50,
}


def rows() -> Iterator[tuple[dict, dict]]:
    """Each row of the paper's table, and what it becomes here."""
    for row in paper_tables()["table3"]:
        small = {
            "layers": row["N"] // 2,
            "d_model": row["d_model"] // 8,
            "d_ff": row["d_ff"] // 8,
            "heads": row["h"],
            "d_k": row["d_k"] // 8,
            "d_v": row["d_v"] // 8,
            "dropout": row["P_drop"],
            "label_smoothing": row["eps_ls"],
            "learned_positions": 200 if row["group"] == "E" else 0,
            "steps": STEPS * row["train_steps"] // 100_000,
        }
        yield row, small


def measure(folder: Path, data: Path, settings: dict) -> dict:
    """Train with these settings and measure, unless it is done."""
    done, asked = folder / "measured.json", settings | {"scored": SENTENCES}
    if done.exists():
        known = json.loads(done.read_text())
        if known["asked"] == asked:
            return known["measured"]
    torch.set_num_threads(1)
    changes = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    changes.append(f"prepared={json.dumps(str(data))}")
    recipe = read_recipe("grammar", changes)
    run_recipe(recipe, folder, resume=True, progress_bar=False)
    train, valid = (
        [row for row in read_metrics(folder) if key in row]
        for key in ("nll", "valid_nll")
    )
    scores = valid[-1]
    corpus = recipe.corpus.load()
    pairs = [corpus.splits["valid"][i] for i in range(SENTENCES)]
    translator = Translator.load(folder)
    score = evaluate(translator, pairs, tokenize="none").bleu  # words as such
    measured = {
        "perplexity": round(scores["valid_perplexity"], 4),
        "nll": round(scores["valid_nll"], 4),
        "train_nll": round(train[-1]["nll"], 4),
        "accuracy": round(scores["valid_accuracy"], 4),
        "bleu": round(score.value, 2),
        "signature": score.signature,
        "parameters": parameter_count(translator.model.config),
        "curve": [[row["step"], round(row["valid_nll"], 4)] for row in valid],
    }
    write_atomically(done, json.dumps({"asked": asked, "measured": measured}))
    return measured


def jobs() -> Iterator[tuple[str, dict, dict, int]]:
    """Name, row of the paper, settings and seed of every run."""
    table = list(rows())
    for number, (row, small) in enumerate(table):
        for seed in SEEDS[:1] if row["group"] == "big" else SEEDS:
            yield f"{number:02}-{row['group']}-{seed}", row, small, seed
    for number in LONG:
        row, small = table[number]
        small = small | {"steps": LONGER * small["steps"]}
        yield f"{number:02}-{row['group']}-long", row, small, SEEDS[0]


def main() -> None:
    """Run what is missing, and write all results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    data = options.out / "data"
    changes = [f"{key}={value}" for key, value in COMMON.items()]
    prepare(read_recipe("grammar", changes), data)
    keys = ("changed", "ppl_dev", "bleu_dev", "params_million")
    results = {False: [], True: []}
    with ProcessPoolExecutor(options.workers, get_context("spawn")) as pool:
        running = [
            (
                name.endswith("long"),
                {
                    "group": row["group"],
                    "paper": {key: row[key] for key in keys},
                    "settings": small,
                    "seed": seed,
                },
                pool.submit(
                    measure,
                    options.out / name,
                    data,
                    COMMON | small | {"training.seed": seed},
                ),
            )
            for name, row, small, seed in jobs()
        ]
        for is_long, about, job in running:
            results[is_long].append(about | job.result())
            print(results[is_long][-1], flush=True)
    records.write_record(
        "variations",
        results[False],
        ("torch", "sacrebleu"),
        seed=SEEDS,
        common=COMMON,
        sentences=SENTENCES,
        longer=results[True],
        runs={name: options.out / name for name, *_ in jobs()},
    )


def check() -> Iterator[records.Checked]:
    """Settings, curves and scores of every run, from what is stored."""
    found = records.load_record("variations")
    yield from records.check_stored(found)
    rows = [*found["rows"], *found["longer"]]
    for (name, _, settings, seed), row in zip(jobs(), rows, strict=True):
        nll = row["curve"][-1][1]
        if name in found.get("logs", {}):
            nll = round(_last(records.journal(found, name), "valid_nll"), 4)
        yield f"{name}, settings", row["settings"], settings
        yield f"{name}, seed", row["seed"], seed
        yield f"{name}, updates", row["curve"][-1][0], settings["steps"]
        yield f"{name}, NLL", row["nll"], nll
        within = 1e-4 * row["perplexity"]
        yield f"{name}, perplexity", row["perplexity"], math.exp(nll), within


def _last(rows: list[dict], key: str) -> float:
    """The last value of a journal under a key."""
    return [row[key] for row in rows if key in row][-1]


if __name__ == "__main__":
    records.start(main, check)
