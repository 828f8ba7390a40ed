"""RNN, LSTM, LSTM with attention and Transformer, with equal parameters.

    python -m experiments.recurrent --out runs/recurrent
    python -m experiments.recurrent --out runs/recurrent --seeds 1 --models RNN
    python -m experiments.recurrent --check

Trains each on the made-up language with three seeds, all for as many updates,
and on lines of letters to reverse with one. With some ``--models`` only, it
trains them and writes no result. Measures BLEU against the length
of the sentence and against the updates so far, and processor time of training
and decoding. Runs that are there are not repeated. Writes
results/recurrent.json, and every translation to the folder results/recurrent,
from which ``--check`` computes the scores again.
"""

import argparse
import itertools
import json
import lzma
import random
import string
import time
from pathlib import Path
from statistics import median

import torch

from benchmarks.report import RESULTS, write_result
from experiments.records import cached
from transformer_annotated.batching import collate
from transformer_annotated.decoding import greedy_decode
from transformer_annotated.evaluation import bleu
from transformer_annotated.optimizer import NoamOptimizer
from transformer_annotated.training import (
    ModelWithLoss,
    TrainState,
    train_step,
    training_batches,
)
from transformer_annotated.workshop.checkpoints import (
    list_checkpoints,
    load_weights,
)
from transformer_annotated.workshop.files import load_result
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.memory import count_parameters
from transformer_annotated.workshop.models import kind_of
from transformer_annotated.workshop.recipe import (
    Recipe,
    prepare,
    read_recipe,
    run_recipe,
)
from transformer_annotated.workshop.sampling import sample_sentences
from transformer_annotated.workshop.translator import Translator

SEEDS = (0, 1, 2)
STEPS, EVERY, SENTENCES = 450, 150, 480
LENGTHS = ((1, 8), (9, 12), (13, 16), (17, 20), (21, 24), (25, 40))
SMALL = "layers=2 d_model=64 d_ff=256"
MODELS = {  # a recipe, and sizes for equal parameters
    "RNN": ("rnn-grammar", "d_model=172 factor=0.25"),
    "LSTM": ("lstm-grammar", "d_model=105 factor=1.0"),
    "LSTM + attention": ("lstm-attention-grammar", "d_model=100 factor=1.0"),
    "Transformer": ("grammar", f"{SMALL} factor=1.0"),
}
GRAMMAR = (
    f"depth=1 steps={STEPS} batch_tokens=2000 warmup=200 log_every=50 "
    f"validate_every={EVERY} checkpoint_every={EVERY} keep=100"
)
REVERSE_STEPS, LINES = 600, 100
REVERSE = (
    f"corpus.name=reverse corpus.source= corpus.target= steps={REVERSE_STEPS} "
    "batch_tokens=1000 warmup=100 log_every=100 validate_every=500 "
    "checkpoint_every=1000 keep=1"
)


def recipe_of(name: str, task: str, seed: int, out: Path) -> Recipe:
    """The recipe of a model, made small, with data that all models share."""
    recipe, sizes = MODELS[name]
    data = out / ("reverse" if task == REVERSE else "grammar")
    changes = f"{sizes} {task} training.seed={seed} corpus.prepared={data}"
    return read_recipe(recipe, changes.split())


def train(name: str, task: str, seed: int, folder: Path) -> Translator:
    """A trained model, from what is there of its run."""
    recipe = recipe_of(name, task, seed, folder.parent)
    state = run_recipe(recipe, folder, resume=True, progress_bar=False)
    if not state.finished(recipe.training):
        raise SystemExit(f"{name}: stopped; start again to go on")
    return Translator.load(folder, device="cpu")


def translate(translator: Translator, texts: list[str]) -> list[str]:
    """Greedy translations, in order."""
    tokenizer, found = translator.tokenizer, {}
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), 100):
        some = order[start : start + 100]
        ids = tokenizer.encode_batch(
            [texts[i] for i in some], translator.source
        )
        answers = greedy_decode(translator.model, collate(ids))
        found |= dict(zip(some, answers, strict=True))
    return [tokenizer.decode(found[i]) for i in range(len(texts))]


def run(name: str, seed: int, folder: Path) -> dict:
    """Train, and translate with every checkpoint and with the last."""
    translator = train(name, GRAMMAR, seed, folder)
    texts = [pair.german for pair in test_pairs()]
    few = valid_pairs()
    along = {}
    for path in list_checkpoints(folder / "checkpoints"):
        step = int(path.name.removeprefix("step-"))
        if step > STEPS or step % EVERY:  # of a run that was longer
            continue
        load_weights(translator.model, path)
        along[step] = translate(translator, [pair.german for pair in few])
    return {
        "model": name,
        "seed": seed,
        "parameters": count_parameters(translator.model.config),
        "along": along,
        "outputs": translate(translator, texts),
    }


def test_pairs() -> list:
    """Sentences never trained on, most of which are not short."""
    drawn = sample_sentences(2000, seed=1, depth=1, split="test")
    found = []
    for low, high in LENGTHS:
        fit = [p for p in drawn if low <= len(p.german.split()) <= high]
        found += fit[: SENTENCES // len(LENGTHS)]
    return found


def valid_pairs() -> list:
    """Other sentences, to watch the training with."""
    return sample_sentences(150, seed=2, depth=1, split="valid")


def reverse(name: str, folder: Path) -> dict:
    """How many lines of each length are reversed without a mistake."""
    translator = train(name, REVERSE, 0, folder)
    draw, right = random.Random(1), {}
    for length in range(3, 17):
        lines = [
            draw.choices(string.ascii_lowercase, k=length) for _ in range(LINES)
        ]
        said = translate(translator, [" ".join(line) for line in lines])
        right[length] = sum(
            text == " ".join(line[::-1])
            for text, line in zip(said, lines, strict=True)
        )
    return {"model": name, "lines": LINES, "right": right}


def speed(out: Path) -> list[dict]:
    """Processor seconds of an update and of decoding, models in turn."""
    torch.set_num_threads(1)
    rows = {}
    for name in MODELS:
        recipe = recipe_of(name, GRAMMAR, 0, out)
        translator = Translator.load(out / f"{name}-0", device="cpu")
        last = out / f"{name}-0/checkpoints/step-{STEPS}"
        load_weights(translator.model, last)
        data = prepare(recipe, Path(recipe.corpus.prepared))
        model = kind_of(recipe.model).model(translator.model.config)
        learner = ModelWithLoss(model.train())
        optimizer = NoamOptimizer(model.parameters(), model.config.d_model, 200)
        batches = training_batches(data.train, recipe.training, TrainState())
        rows[name] = (learner, optimizer, batches, translator, [], [], [])
    ids = None
    for _ in range(12):
        for learner, optimizer, batches, translator, *times in rows.values():
            parts = next(batches)
            start = time.process_time()
            train_step(learner, optimizer, parts)
            took = time.process_time() - start
            times[0].append(took / parts[0].update_tokens)
            if ids is None:
                texts = [pair.german for pair in valid_pairs()]
                ids = translator.tokenizer.encode_batch(texts, "de")
            for many, place in ((64, 1), (1, 2)):
                src = collate(ids[:many])
                start = time.process_time()
                answers = greedy_decode(translator.model, src)
                took = time.process_time() - start
                tokens = sum(len(answer) + 1 for answer in answers)
                times[place].append(took / tokens)
    keys = ("training", "decoding, 64 at once", "decoding, one by one")
    return [
        {"model": name}
        | {
            f"tokens/s, {key}": round(1 / median(times[2:]))
            for key, times in zip(keys, row[4:], strict=True)
        }
        for name, row in rows.items()
    ]


NOUNS = "König Arzt, Lehrer Koch, Bruder Sohn, Hund Esel, Vogel Wolf, Koch Hund"
VERBS = "besucht liebt fragt rettet sucht sieht".split()


def context_map(out: Path) -> tuple[list[dict], dict]:
    """Context vectors of the LSTM for paraphrases, and who lies next."""
    translator = Translator.load(out / "LSTM-0", device="cpu")
    model, rows = translator.model, []
    load_weights(model, out / f"LSTM-0/checkpoints/step-{STEPS}")
    for nouns, verb in zip(NOUNS.split(", "), VERBS, strict=True):
        for roles, (who, whom) in enumerate(
            (nouns.split(), nouns.split()[::-1])
        ):
            for text in (
                f"der {who} {verb} heute den {whom} .",
                f"heute {verb} der {who} den {whom} .",
            ):
                rows.append(
                    {
                        "situation": f"{nouns.replace(' ', ', ')}: {verb}",
                        "roles": ("as named", "exchanged")[roles],
                        "meaning": f"{who} {verb} {whom}",
                        "sentence": text,
                    }
                )
    ids = [translator.tokenizer.encode(row["sentence"], "de") for row in rows]
    src = collate(ids)
    with torch.no_grad():
        vectors = model.context(model.encode(src), src)
    centred = vectors - vectors.mean(0)
    plane = centred @ torch.linalg.svd(centred, full_matrices=False)[2][:2].T
    distance = torch.cdist(vectors, vectors).fill_diagonal_(float("inf"))
    found = {"sentences": len(rows), "paraphrase": 0, "swapped": 0}
    for row, (x, y), near in zip(
        rows, plane.tolist(), distance.argmin(1).tolist(), strict=True
    ):
        row |= {"x": round(x, 3), "y": round(y, 3)}
        same = rows[near]["meaning"] == row["meaning"]
        other = rows[near]["situation"] == row["situation"] and not same
        found["paraphrase"] += same
        found["swapped"] += other
    return rows, found


def scores(runs: list[dict]) -> list[dict]:
    """BLEU of each run: of all, by length, and along the training."""
    pairs, few = test_pairs(), valid_pairs()
    sizes = [len(pair.german.split()) for pair in pairs]

    def score(outputs: list[str], references: list[str]) -> float:
        return round(bleu(outputs, references, tokenize="none").value, 2)

    rows = []
    for found in runs:
        by_length = {}
        for low, high in LENGTHS:
            rows_in = [i for i, n in enumerate(sizes) if low <= n <= high]
            by_length[f"{low}–{high}"] = score(
                [found["outputs"][i] for i in rows_in],
                [pairs[i].english for i in rows_in],
            )
        rows.append(
            {key: found[key] for key in ("model", "seed", "parameters")}
            | {
                "bleu": score(found["outputs"], [p.english for p in pairs]),
                "by_length": by_length,
                "along": {
                    step: score(said, [p.english for p in few])
                    for step, said in found["along"].items()
                },
            }
        )
    return rows


def main() -> None:
    """Train what is missing, measure, and write it down; or check."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/recurrent"))
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    outputs = RESULTS / "recurrent" / "translations.json.xz"
    if options.check:
        runs = json.loads(lzma.decompress(outputs.read_bytes()))
        assert scores(runs) == load_result("recurrent")["rows"]
        return
    torch.set_num_threads(1)
    out = options.out
    out.mkdir(parents=True, exist_ok=True)
    runs = [
        cached(
            out / f"{name}-{seed}.json",
            lambda n=name, s=seed: run(n, s, out / f"{n}-{s}"),
        )
        for seed, name in itertools.product(options.seeds, options.models)
    ]
    letters = [
        cached(
            out / f"{name}-reverse.json",
            lambda n=name: reverse(n, out / f"{n}-reverse"),
        )
        for name in options.models
    ]
    if set(options.models) != set(MODELS):  # the others are done elsewhere
        return
    outputs.write_bytes(lzma.compress(json.dumps(runs).encode()))
    rows, nearest = context_map(out)
    tokens = max(
        row["tokens"]
        for row in read_metrics(out / "RNN-0")
        if row["step"] <= STEPS
    )
    write_result(
        "recurrent",
        scores(runs),
        ("torch", "sacrebleu"),
        seed=list(options.seeds),
        updates=STEPS,
        sentences=len(test_pairs()),
        tokens_per_update=round(tokens / STEPS),
        reverse=letters,
        map=rows,
        nearest=nearest,
        speed=cached(out / "speed.json", lambda: speed(out)),
    )


if __name__ == "__main__":
    main()
