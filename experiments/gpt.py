"""A language model whose distance to perfection is known, and its uses.

    python -m experiments.gpt --out runs/gpt
    python -m experiments.gpt --out runs/gpt --only scaling
    python -m experiments.gpt --check

Trains GPTs of four widths on English sentences of the made-up language, whose
entropy is known, and measures how far they are from it after 125 to 1,000
updates; one with routed experts beside its dense sister; a GPT and an
encoder-decoder of equal size on translation; and the four tasks of GPT-1, from
scratch and after pre-training. Three seeds each. Runs that are there are not
repeated. Writes results/gpt.json, from which ``--check`` computes all means
and exponents again.
"""

import argparse
import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from experiments.finetune import TASKS, examples, finetune, is_sentence
from experiments.records import (
    Checked,
    cached,
    check_stored,
    load_record,
    output,
    start,
    write_record,
)
from transformer_annotated.after.generation import sample
from transformer_annotated.after.gpt import GPT, GPTConfig, log_likelihood
from transformer_annotated.after.switch import SwitchFeedForward
from transformer_annotated.batching import collate
from transformer_annotated.decoding import greedy_decode
from transformer_annotated.evaluation import bleu
from transformer_annotated.loss import LossSums
from transformer_annotated.text import EOS, WordTokenizer, train_word_tokenizer
from transformer_annotated.training import ModelWithLoss, TrainingConfig, train
from transformer_annotated.workshop.checkpoints import load_weights
from transformer_annotated.workshop.grammar import surface
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.lexicon import lexicon
from transformer_annotated.workshop.likelihood import log_probability
from transformer_annotated.workshop.memory import count_parameters
from transformer_annotated.workshop.recipe import read_recipe, run_recipe
from transformer_annotated.workshop.sampling import (
    all_sentences,
    all_words,
    sample_sentences,
)
from transformer_annotated.workshop.translator import Translator

SEEDS = (0, 1, 2)
WIDTHS, UPDATES = (12, 24, 48, 96), (125, 250, 500, 1000)
TRAIN, TEST, SHOWN, SAMPLES = 170_000, 1000, 250, 500
EXPERTS, BALANCE = 4, 0.01
SAMPLING = {
    "temperature 0.5": {"temperature": 0.5},
    "temperature 0.8": {"temperature": 0.8},
    "as it is": {},
    "temperature 1.3": {"temperature": 1.3},
    "top-k 5": {"top_k": 5},
    "top-p 0.9": {"top_p": 0.9},
}
TRANSLATION = (
    "depth=1 steps=600 batch_tokens=2000 warmup=200 factor=1.0 log_every=50 "
    "validate_every=300 checkpoint_every=300 keep=1"
)
PARTS = (
    "pre_norm=true attention_bias=true activation=gelu_tanh norm_eps=1e-5 "
    "learned_positions=128 dropout=0.0"
)
TRANSLATORS = {  # a recipe, and sizes for equal parameters
    "decoder alone": ("gpt-grammar", "layers=4 d_model=64 d_ff=337 heads=4"),
    "encoder and decoder": ("grammar", "layers=2 d_model=64 d_ff=256 heads=4"),
}


class Texts:
    """Encoded texts in memory: pairs whose sources are empty."""

    def __init__(self, texts: list[list[int]]) -> None:
        """Take the ids of texts."""
        self.texts = texts
        self.target_lengths = np.array([len(ids) for ids in texts])
        self.source_lengths = np.zeros_like(self.target_lengths)

    def source(self, i: int) -> list[int]:
        """Nothing."""
        return []

    def target(self, i: int) -> list[int]:
        """Ids of a text."""
        return self.texts[i]


class SwitchLoss(ModelWithLoss):
    """The loss of a model, and a little for experts that few tokens visit."""

    def forward(
        self, src: Tensor, tgt: Tensor, with_correct: bool = False
    ) -> LossSums:
        """Loss on sources ``(B, S)`` and whole targets ``(B, T + 1)``."""
        sums = super().forward(src, tgt, with_correct)
        uneven = sum(
            part.balance
            for part in self.model.modules()
            if isinstance(part, SwitchFeedForward)
        )
        more = BALANCE * uneven * sums.tokens
        return LossSums(sums.smoothed + more, sums.nll, sums.tokens)


def draw(count: int, seed: int) -> list[str]:
    """English sentences without relative clauses, as the grammar draws them."""
    numbers, language = random.Random(seed), all_sentences(lexicon(), 0)
    return [
        surface(language.draw(lambda n: int(numbers.random() * n)).english())
        for _ in range(count)
    ]


def english() -> WordTokenizer:
    """A token for each English word."""
    return train_word_tokenizer({"": [" ".join(all_words()["en"])]}, 1)


def build(width: int, seed: int, experts: int = 0) -> GPT:
    """A GPT of two layers, perhaps with experts."""
    torch.manual_seed(seed)
    config = GPTConfig(
        english().vocab_size,
        layers=2,
        d_model=width,
        d_ff=4 * width,
        heads=max(1, width // 16),
        dropout=0.0,
        learned_positions=64,
    )
    model = GPT(config)
    for layer in model.decoder.layers if experts else ():
        layer.feed_forward = SwitchFeedForward(
            width, 4 * width, experts, activation=config.activation
        )
    return model


def trained(
    width: int, seed: int, folder: Path, experts: int = 0
) -> Iterator[tuple[int, GPT]]:
    """A model after each number of updates, trained if it is not there."""
    model = build(width, seed, experts)
    steps = max(UPDATES)
    last = folder / f"checkpoints/step-{steps}"
    if not last.exists():
        tokenizer = english()
        texts = tokenizer.encode_batch(draw(TRAIN, 100 + seed), "")
        config = TrainingConfig(
            steps,
            1800,
            warmup=200,
            label_smoothing=0.0,
            seed=seed,
            log_every=25,
            checkpoint_every=min(UPDATES),
            keep=100,
        )
        learner = SwitchLoss if experts else ModelWithLoss
        state = train(
            model,
            Texts(texts),
            None,
            config,
            folder,
            resume=True,
            progress_bar=False,
            learner=learner,
        )
        if not state.finished(config):
            raise SystemExit(f"{folder}: stopped; start again to go on")
    for updates in UPDATES:
        load_weights(model, folder / f"checkpoints/step-{updates}")
        yield updates, model.eval()


@torch.no_grad()
def log_probs(model: GPT, texts: list[str]) -> Tensor:
    """The model's log-probability ``(n,)`` of each text."""
    ids = english().encode_batch(texts, "")
    found = []
    for begin in range(0, len(ids), 250):
        tgt = collate(ids[begin : begin + 250], start=True)
        src = torch.full((len(tgt), 1), EOS)
        found.append(log_likelihood(model, src, tgt))
    return torch.cat(found)


def gaps(width: int, seed: int, folder: Path, experts: int = 0) -> list[dict]:
    """How many nats a sentence a model pays more than a perfect one."""
    texts = draw(TEST, 1)
    true = torch.tensor([log_probability(text) for text in texts])
    tokens = sum(len(text.split()) + 1 for text in texts) / len(texts)
    rows = []
    for updates, model in trained(width, seed, folder, experts):
        found = log_probs(model, texts).double()
        gap = true.double() - found
        rows.append(
            {
                "width": width,
                "experts": experts,
                "seed": seed,
                "parameters": sum(p.numel() for p in model.parameters()),
                "in layers": sum(p.numel() for p in model.decoder.parameters()),
                "updates": updates,
                "gap": round(gap.mean().item(), 4),
                "error": round((gap.std() / len(gap) ** 0.5).item(), 4),
                "correlation": round(
                    torch.corrcoef(torch.stack([true.double(), found]))[
                        0, 1
                    ].item(),
                    5,
                ),
                "tokens a sentence": round(tokens, 3),
                "log-probabilities": [round(x, 2) for x in found.tolist()],
            }
        )
    return rows


def last_model(width: int, seed: int, out: Path) -> GPT:
    """The model of a width after the last update."""
    *_, (_, model) = trained(width, seed, out / f"width-{width}-{seed}")
    return model


def samples(seed: int, out: Path) -> dict[str, list[str]]:
    """What the widest model writes, for each way of drawing."""
    model, tokenizer = last_model(max(WIDTHS), seed, out), english()
    src = torch.full((SAMPLES, 1), EOS)
    return {
        name: [
            tokenizer.decode(ids)
            for ids in sample(model, src, **way, seed=seed)
        ]
        for name, way in SAMPLING.items()
    }


def judged(name: str, seed: int, texts: list[str]) -> dict:
    """How many samples are sentences, and how probable these are."""
    found = [log_probability(text) for text in texts]
    right = [p for p in found if p > -math.inf]
    return {
        "drawn": name,
        "seed": seed,
        "accepted": round(len(right) / len(texts), 4),
        "different": round(len({*texts}) / len(texts), 4),
        "nats": round(-sum(right) / len(right), 3),
    }


def zero_shot(seed: int, out: Path) -> dict:
    """How often the right verb is more probable than one that disagrees."""
    model, texts = last_model(max(WIDTHS), seed, out), draw(20_000, 5)
    rows = examples("classification", 1000, texts, 0)
    right = [text for [text], label in rows if label]
    wrong = [text for [text], label in rows if not label]
    told = log_probs(model, right), log_probs(model, wrong)
    limit = torch.cat(told).median()
    guessed = (told[0] > limit).sum() + (told[1] <= limit).sum()
    pairs = minimal_pairs(draw(4000, 6))
    better = log_probs(model, [a for a, _ in pairs]) > log_probs(
        model, [b for _, b in pairs]
    )
    return {
        "seed": seed,
        "pairs": len(pairs),
        "right": int(better.sum()),
        "alone": round(int(guessed) / len(rows), 4),
    }


def minimal_pairs(texts: list[str]) -> list[tuple[str, str]]:
    """Sentences, each with one whose verb does not agree."""
    other = {"has": "have", "does": "do"}
    other |= {v.english_third: v.english for v in lexicon().verbs}
    other |= {b: a for a, b in other.items()}
    found = []
    for text in texts:
        words = text.split()
        for i, word in enumerate(words):
            wrong = " ".join(
                [*words[:i], other.get(word, word), *words[i + 1 :]]
            )
            if word in other and not is_sentence(wrong):
                found.append((text, wrong))
                break
    return found[:1000]


def translation(name: str, seed: int, out: Path) -> dict:
    """Train on pairs, and translate sentences never trained on."""
    recipe, sizes = TRANSLATORS[name]
    folder = out / f"translation-{name.replace(' ', '-')}-{seed}"
    changes = (
        f"{sizes} {PARTS} {TRANSLATION} training.seed={seed} "
        f"corpus.prepared={out / 'pairs'}"
    )
    changed = read_recipe(recipe, changes.split())
    state = run_recipe(changed, folder, resume=True, progress_bar=False)
    if not state.finished(changed.training):
        raise SystemExit(f"{folder}: stopped; start again to go on")
    translator = Translator.load(folder, device="cpu")
    pairs = test_pairs()
    ids = translator.tokenizer.encode_batch([p.german for p in pairs], "de")
    said = []
    for begin in range(0, len(ids), 100):
        said += greedy_decode(
            translator.model, collate(ids[begin : begin + 100])
        )
    return {
        "model": name,
        "seed": seed,
        "parameters": count_parameters(translator.model.config),
        "seconds": round(state.seconds, 1),
        "outputs": [translator.tokenizer.decode(ids) for ids in said],
    }


def test_pairs() -> list:
    """Sentences never trained on."""
    return sample_sentences(400, seed=1, depth=1, split="test")


def translated(run: dict) -> dict:
    """The scores of a model's translations."""
    references = [pair.english for pair in test_pairs()]
    exact = [a == b for a, b in zip(run["outputs"], references, strict=True)]
    return {key: run[key] for key in ("model", "seed", "parameters")} | {
        "BLEU": round(bleu(run["outputs"], references).value, 2),
        "exact": round(sum(exact) / len(exact), 4),
    }


def finetuned(task: str, start_: str, seed: int, out: Path) -> dict:
    """Accuracy on a task of GPT-1."""
    width = WIDTHS[-2]
    model = (
        build(width, seed)
        if start_ == "from scratch"
        else last_model(width, seed, out)
    )
    texts = draw(60_000, 200 + seed)
    return {
        "task": task,
        "start": start_,
        "seed": seed,
        "accuracy": finetune(model, task, texts, seed, english()),
    }


def slope(x: list[float], y: list[float]) -> dict:
    """The slope of log y against log x, and its interval of 95 %."""
    x, y = np.log(x), np.log(y)
    centred = x - x.mean()
    found = (centred * y).sum() / (centred**2).sum()
    left = y - y.mean() - found * centred
    spread = math.sqrt((left**2).sum() / (len(x) - 2) / (centred**2).sum())
    wide = T_95[len(x) - 2] * spread
    return {
        "exponent": round(float(-found), 3),
        "low": round(float(-found - wide), 3),
        "high": round(float(-found + wide), 3),
        "residual": round(float(left.std()), 3),
    }


T_95 = {10: 2.228}  # Student's t of 97.5 % for 12 points


def exponents(rows: list[dict], tokens: float) -> dict:
    """How the gap falls with parameters, and with updates."""
    dense = [row for row in rows if not row["experts"]]
    long = [row for row in dense if row["updates"] == max(UPDATES)]
    wide = [row for row in dense if row["width"] == max(WIDTHS)]
    return {
        "parameters": slope(
            [row["in layers"] for row in long], [row["gap"] for row in long]
        ),
        "tokens": slope(
            [row["updates"] * tokens for row in wide],
            [row["gap"] for row in wide],
        ),
    }


def scaling(out: Path) -> list[dict]:
    """All widths and seeds, and the experts beside the second widest."""
    runs = [(width, 0) for width in WIDTHS] + [(WIDTHS[-2], EXPERTS)]
    found = []
    for seed, (width, experts) in itertools.product(SEEDS, runs):
        name = f"{'switch' if experts else 'width'}-{width}-{seed}"
        found += cached(
            out / f"{name}.json",
            lambda w=width, s=seed, n=name, e=experts: gaps(w, s, out / n, e),
        )
    return found


def main() -> None:
    """Train what is not there yet, measure, and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/gpt"))
    parser.add_argument(
        "--only", choices=("scaling", "translation", "tasks"), default=None
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    out = given.out
    out.mkdir(parents=True, exist_ok=True)
    if given.only in (None, "scaling"):
        found = scaling(out)
    if given.only in (None, "translation"):
        runs = [
            cached(
                out / f"{name.replace(' ', '-')}-{seed}.json",
                lambda n=name, s=seed: translation(n, s, out),
            )
            for seed, name in itertools.product(SEEDS, TRANSLATORS)
        ]
    if given.only in (None, "tasks"):
        tasks = [
            cached(
                out / f"{task}-{start_.replace(' ', '-')}-{seed}.json",
                lambda t=task, b=start_, s=seed: finetuned(t, b, s, out),
            )
            for seed, task, start_ in itertools.product(
                SEEDS, TASKS, ("from scratch", "pre-trained")
            )
        ]
    if given.only is None:
        write(out, found, runs, tasks)


def write(
    out: Path, found: list[dict], runs: list[dict], tasks: list[dict]
) -> None:
    """Put everything into the record."""
    drawn = [
        cached(out / f"samples-{s}.json", lambda s=s: samples(s, out))
        for s in SEEDS
    ]
    last = read_metrics(out / f"width-{max(WIDTHS)}-0")[-1]
    tokens = last["tokens"] / last["step"]
    shown = {
        row["updates"]: row["log-probabilities"][:SHOWN]
        for row in found
        if (row["width"], row["seed"], row["experts"]) == (max(WIDTHS), 0, 0)
    }
    texts = draw(TEST, 1)[:SHOWN]
    for row in found:
        row.pop("log-probabilities")
    write_record(
        "gpt",
        found,
        ("torch", "sacrebleu"),
        list(SEEDS),
        {
            f"width-{w}-{s}": out / f"width-{w}-{s}"
            for w in WIDTHS
            for s in SEEDS
        }
        | {
            f"switch-{WIDTHS[-2]}-{s}": out / f"switch-{WIDTHS[-2]}-{s}"
            for s in SEEDS
        },
        {
            f"samples-{s}": [t for way in SAMPLING for t in drawn[s][way]]
            for s in SEEDS
        }
        | {
            f"{run['model'].replace(' ', '-')}-{run['seed']}": run["outputs"]
            for run in runs
        },
        entropy=round(all_sentences(lexicon(), 0).entropy, 6),
        tokens_an_update=round(tokens, 1),
        exponents=exponents(found, tokens),
        shown={"texts": texts, "model": shown},
        samples=[
            judged(way, s, drawn[s][way]) for s in SEEDS for way in SAMPLING
        ],
        zero_shot=[
            cached(out / f"zero-shot-{s}.json", lambda s=s: zero_shot(s, out))
            for s in SEEDS
        ],
        translation=[translated(run) for run in runs],
        tasks=tasks,
    )


def check() -> Iterator[Checked]:
    """Compute again what follows from the record."""
    found = load_record("gpt")
    yield from check_stored(found)
    entropy = all_sentences(lexicon(), 0).entropy
    yield "entropy", found["entropy"], round(entropy, 6)
    again = exponents(found["rows"], found["tokens_an_update"])
    for name, stored in found["exponents"].items():
        for key, value in stored.items():
            yield f"{name}, {key}", value, again[name][key], 1e-3
    ways = list(SAMPLING)
    for row in found["samples"]:
        lines = output(found, f"samples-{row['seed']}")
        begin = ways.index(row["drawn"]) * SAMPLES
        texts = lines[begin : begin + SAMPLES]
        computed = judged(row["drawn"], row["seed"], texts)
        for key, value in computed.items():
            yield f"{row['drawn']}, {row['seed']}, {key}", row[key], value, 1e-3
    for row in found["translation"]:
        name = f"{row['model'].replace(' ', '-')}-{row['seed']}"
        computed = translated(row | {"outputs": output(found, name)})
        for key, value in computed.items():
            yield f"{name}, {key}", row[key], value
    texts = draw(TEST, 1)[:SHOWN]
    yield "sentences shown", found["shown"]["texts"], texts


if __name__ == "__main__":
    start(main, check)
