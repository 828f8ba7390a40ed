"""What a Transformer learns of parity and of nesting, and what it does not.

    python -m experiments.limits [--cache DIR] [--seeds N …]
        [--translators N] [--check]

Parity: an LSTM and a Transformer read up to 16 random bits and say whether
the number of ones is odd. Each is trained with three learning rates and three
seeds, and asked after several numbers of updates, at lengths up to 48.

Nesting: translators of the made-up language, trained on clauses that nest once
at most, are asked at depths 0 to 3, beside others that are trained up to
depth 3, with as many updates. A run that the folder ``--cache`` holds
is not repeated. Writes results/limits.json, and every translation to the folder
results/limits; ``--check`` computes all means and counts anew.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path

import torch

from experiments import records
from experiments.recurrent import translate
from transformer_annotated.after.limits import (
    KINDS,
    TRAINED,
    parity_accuracy,
    train_parity,
)
from transformer_annotated.training import ModelWithLoss, validate
from transformer_annotated.workshop.encoded import encode_pairs
from transformer_annotated.workshop.recipe import read_recipe, run_recipe
from transformer_annotated.workshop.sampling import sample_sentences
from transformer_annotated.workshop.translator import Translator

SEEDS = (0, 1, 2)
RATES = (3e-4, 1e-3, 3e-3)
UPDATES = (1000, 2000, 4000)
LENGTHS = (2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 24, 32, 48)
STEPS, DEPTHS, EACH = 600, (0, 1, 2, 3), 150
SIMILAR = (17, 24)  # words of a German sentence, at which depths are compared
MODELS = {  # a recipe, and sizes
    "Transformer": ("grammar", "layers=2 d_model=64 d_ff=256"),
    "LSTM + attention": ("lstm-attention-grammar", "d_model=100"),
}
RUNS = tuple(product(MODELS, (1, 3)))  # trained up to these depths
GRAMMAR = (
    f"steps={STEPS} batch_tokens=2000 warmup=200 factor=1.0 log_every=100 "
    f"validate_every={STEPS} checkpoint_every={STEPS} keep=1"
)


# --- parity


def parity_run(kind: str, rate: float, seed: int) -> dict:
    """Train once, and ask after several numbers of updates."""
    began, asked = time.process_time(), {}

    def watch(step: int, model: torch.nn.Module) -> None:
        if step in UPDATES:
            found = parity_accuracy(model.eval(), LENGTHS)
            asked[step] = [round(value, 3) for value in found]
            model.train()

    train_parity(kind, rate, UPDATES[-1], seed, watch)
    return {
        "kind": kind,
        "rate": rate,
        "seed": seed,
        "processor_seconds": round(time.process_time() - began, 1),
        "accuracy": [asked[step] for step in UPDATES],
    }


def parity_summary(rows: Sequence[dict]) -> list[dict]:
    """Over seeds, within and beyond the trained lengths: mean and range."""
    found = []
    for kind, rate, (i, updates) in product(KINDS, RATES, enumerate(UPDATES)):
        runs = [r for r in rows if (r["kind"], r["rate"]) == (kind, rate)]
        row = {"kind": kind, "rate": rate, "updates": updates}
        for name, wanted in (("within", True), ("beyond", False)):
            means = [
                statistics.fmean(
                    value
                    for n, value in zip(LENGTHS, r["accuracy"][i], strict=True)
                    if (n <= TRAINED) == wanted
                )
                for r in runs
            ]
            row[name] = round(statistics.fmean(means), 3)
            row[f"{name}_range"] = [round(f(means), 3) for f in (min, max)]
        found.append(row)
    return found


# --- nesting


@cache
def drawn_pairs(seed: int) -> list:
    """Unseen sentences of all depths."""
    return sample_sentences(6000, seed=seed, depth=3, split="test")


def test_pairs(depth: int) -> list:
    """Unseen sentences of exactly this depth."""
    return [pair for pair in drawn_pairs(1) if pair.depth == depth][:EACH]


def similar_pairs(depth: int) -> list:
    """Unseen sentences of a depth that are neither short nor long."""
    low, high = SIMILAR
    words = [(pair, len(pair.german.split())) for pair in drawn_pairs(2)]
    return [p for p, n in words if p.depth == depth and low <= n <= high][:EACH]


def groups() -> dict[str, list]:
    """What is asked: all depths, then depths 1 and 2 at equal length."""
    found = {f"depth {depth}": test_pairs(depth) for depth in DEPTHS}
    return found | {
        f"depth {depth}, equal length": similar_pairs(depth) for depth in (1, 2)
    }


def nesting_run(model: str, depth: int, seed: int, folder: Path) -> dict:
    """Train a translator up to a depth, and translate all depths with it."""
    recipe, sizes = MODELS[model]
    changes = f"{sizes} {GRAMMAR} depth={depth} training.seed={seed}"
    changes += f" corpus.prepared={folder.parent}/depth-{depth}"
    began = time.process_time()
    settings = read_recipe(recipe, changes.split())
    state = run_recipe(settings, folder, resume=True, progress_bar=False)
    if not state.finished(settings.training):
        raise SystemExit(f"{folder.name}: stopped; start again to go on")
    seconds = round(time.process_time() - began, 1)
    translator = Translator.load(folder, device="cpu")
    texts = [pair.german for pairs in groups().values() for pair in pairs]
    return {
        "model": model,
        "trained_depth": depth,
        "seed": seed,
        "processor_seconds": seconds,
        "outputs": translate(translator, texts),
    }


def likelihoods(folder: Path) -> dict:
    """Nats a token, and tokens right, of the references of each group."""
    translator = Translator.load(folder, device="cpu")
    learner, found = ModelWithLoss(translator.model), {}
    for name, pairs in groups().items():
        texts = [(pair.german, pair.english) for pair in pairs]
        with tempfile.TemporaryDirectory() as place:
            encoded = encode_pairs(
                texts, translator.tokenizer, Path(place) / "x", "de", "en"
            )
            measured = validate(learner, encoded, 4000)
        found[name] = {
            "nll": round(measured["valid_nll"], 4),
            "tokens_right": round(measured["valid_accuracy"], 4),
        }
    return found


def counts(outputs: Sequence[str]) -> dict[str, int]:
    """How many translations of each group are word for word right."""
    rest = iter(outputs)
    return {
        name: sum(next(rest) == pair.english for pair in pairs)
        for name, pairs in groups().items()
    }


def nesting_summary(rows: Sequence[dict]) -> list[dict]:
    """Over seeds: nats a token of each group, mean and range."""
    found = []
    for model, depth in RUNS:
        runs = [
            r["likelihoods"]
            for r in rows
            if (r["model"], r["trained_depth"]) == (model, depth)
        ]
        for group in runs[0]:
            values = [run[group]["nll"] for run in runs]
            found.append(
                {
                    "model": model,
                    "trained_depth": depth,
                    "group": group,
                    "nll": round(statistics.fmean(values), 3),
                    "range": [round(f(values), 3) for f in (min, max)],
                }
            )
    return found


def examples(outputs: Mapping[str, Sequence[str]], seed: int) -> list[dict]:
    """The shortest sentences of depth 2, by models trained to depth 1."""
    places = [
        (pair, i)
        for i, pair in enumerate(p for ps in groups().values() for p in ps)
        if 2 * EACH <= i < 3 * EACH  # the group of depth 2
    ]
    places.sort(key=lambda place: len(place[0].german))
    return [
        {"German": pair.german, "reference": pair.english}
        | {m: outputs[output_name(m, 1, seed)][i] for m in MODELS}
        for pair, i in places[:2]
    ]


def output_name(model: str, depth: int, seed: int) -> str:
    """The file of a run's translations."""
    short = model.replace(" + ", "-").lower()
    return f"{short}-depth-{depth}-seed-{seed}"


# --- both


def all_parity(cache: Path, seeds: Sequence[int]) -> list[dict]:
    """Each kind with each rate and seed."""
    rows = []
    for seed, kind, rate in product(seeds, KINDS, RATES):
        file = cache / f"parity-{KINDS.index(kind)}-{rate}-{seed}.json"
        rows.append(records.cached(file, parity_run, kind, rate, seed))
        print(rows[-1], flush=True)
    return rows


def all_nesting(
    folder: Path, seeds: Sequence[int]
) -> tuple[list[dict], dict[str, list[str]]]:
    """Each translator with each seed, and all that they wrote."""
    rows, outputs = [], {}
    for seed, (model, depth) in product(seeds, RUNS):
        name = output_name(model, depth, seed)
        run, file = folder / name, folder / f"{name}.json"
        row = records.cached(file, nesting_run, model, depth, seed, run)
        outputs[name] = row.pop("outputs")
        row["right"] = counts(outputs[name])
        file = folder / f"{name}-likelihoods.json"
        row["likelihoods"] = records.cached(file, likelihoods, run)
        rows.append(row)
        print(row, flush=True)
    return rows, outputs


def main(folder: Path, seeds: Sequence[int], translators: int) -> None:
    """Train all that the folder does not hold, and write what came of it."""
    torch.set_num_threads(1)
    parity = all_parity(folder, seeds)
    nesting, outputs = all_nesting(folder, seeds[:translators])
    records.write_record(
        "limits",
        nesting,
        ("torch",),
        list(seeds),
        outputs=outputs,
        threads=1,
        trained=TRAINED,
        lengths=list(LENGTHS),
        updates=list(UPDATES),
        parity=parity,
        parity_summary=parity_summary(parity),
        nesting_updates=STEPS,
        nesting_seeds=list(seeds[:translators]),
        nesting_summary=nesting_summary(nesting),
        sentences={name: len(pairs) for name, pairs in groups().items()},
        similar_words=list(SIMILAR),
        examples=examples(outputs, seeds[0]),
    )


def check() -> Iterator[records.Checked]:
    """That means follow from runs, and counts from translations."""
    found = records.load_record("limits")
    yield from records.check_stored(found)
    for key, make, rows in (
        ("parity_summary", parity_summary, found["parity"]),
        ("nesting_summary", nesting_summary, found["rows"]),
    ):
        for stored, row in zip(found[key], make(rows), strict=True):
            yield key, stored, row
    outputs = {name: records.output(found, name) for name in found["outputs"]}
    yield "examples", found["examples"], examples(outputs, found["seed"][0])
    for row in found["rows"]:
        name = output_name(row["model"], row["trained_depth"], row["seed"])
        yield name, row["right"], counts(outputs[name])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cache", type=Path, default=Path("runs/limits"))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument(
        "--translators", type=int, default=3, help="seeds of the nesting"
    )
    parser.add_argument("--check", action="store_true")
    given = parser.parse_args()
    records.start(
        lambda: main(given.cache, given.seeds, given.translators), check
    )
