"""Score runs of the recipe multi30k-en-de on test_2016_flickr.

    python -m experiments.multi30k RUN [RUN ...] | --check

The runs differ in their seeds; what is stored of other seeds stays. Averages
the last 1, 5 and 10 checkpoints, translates with the beam of 5 and the length
penalty of the published figure (mean log-probability) and with the paper's beam
of 4 and penalty 0.6, and scores the tokens as they are, as papers on Multi30k
do, and the detokenised text with sacreBLEU against the raw reference. A last
search has the penalty that is best on the validation part. Some outputs are
compared with each other by a paired test. Writes results/multi30k-en-de.json,
the journals of the runs, and all outputs, from which --check computes the
scores again, if the corpus is there.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from sacremoses import MosesDetokenizer
from scipy import stats

from experiments import records
from transformer_annotated.evaluation import bleu, evaluate
from transformer_annotated.workshop.checkpoints import (
    average_checkpoints,
    list_checkpoints,
)
from transformer_annotated.workshop.corpora import Corpus, load_corpus
from transformer_annotated.workshop.encoded import EncodedPairs
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.translator import Translator

NAME, PUBLISHED = "multi30k-en-de", 41.02
SEARCHES = {
    "as published": {"beam": 5, "alpha": 1.0, "offset": 0},
    "as in the paper": {"beam": 4, "alpha": 0.6},
    "greedy": {"beam": 1},
}
ALPHAS = (0.6, 1.0, 1.4, 2.0)  # as published but for these
PAIRS = (  # what is compared: checkpoints averaged, search
    ("ten checkpoints or one", (10, "as published"), (1, "as published")),
    ("ten checkpoints or five", (10, "as published"), (5, "as published")),
    ("a beam or none", (10, "as published"), (10, "greedy")),
    (
        "published search or paper's",
        (10, "as published"),
        (10, "as in the paper"),
    ),
)


def scores(outputs: list[str], corpora: dict) -> dict:
    """BLEU of the tokens with its interval, and of the detokenised text."""
    tokenised, raw = (
        [target for _, target in corpora[variant].splits["test"]]
        for variant in ("tok", "raw")
    )
    ours = bleu(outputs, tokenised, tokenize="none", n_bootstrap=1000)
    detokenize = MosesDetokenizer("de").detokenize
    plain = [detokenize(line.split()) for line in outputs]
    theirs = bleu(plain, raw, lowercase=True)
    return {
        "tokenised_bleu": round(ours.value, 2),
        "interval": [round(ours.low, 2), round(ours.high, 2)],
        "tokenised_signature": ours.signature,
        "sacrebleu": round(theirs.value, 2),
        "sacrebleu_signature": theirs.signature,
    }


def load_corpora() -> dict[str, Corpus]:
    """The corpus as tokens, and as text."""
    return {
        variant: load_corpus(
            "multi30k", source="en", target="de", variant=variant
        )
        for variant in ("tok", "raw")
    }


def output_name(row: dict) -> str:
    """Under which the outputs of a row are stored."""
    search = row["search"].replace(" ", "-")
    return f"seed-{row['seed']}-average-{row['averaged']}-{search}"


def choose(translator: Translator, corpus: Corpus) -> dict[float, float]:
    """BLEU on the validation part for each of the penalties."""
    scores = {}
    for alpha in ALPHAS:
        search = SEARCHES["as published"] | {"alpha": alpha}
        valid = corpus.splits["valid"]
        found = evaluate(translator, valid, tokenize="none", **search)
        scores[alpha] = round(found.bleu.value, 2)
    return scores


def measure(run: Path, corpora: dict) -> tuple[dict, list[dict], dict]:
    """Facts of a training, its scores, and what it translated."""
    found = list_checkpoints(run / "checkpoints")
    seed = Translator.load(run).tables["training"]["seed"]
    rows, outputs = [], {}

    def translate(translator: Translator, name: str, search: dict) -> None:
        test = corpora["tok"].splits["test"]
        done = evaluate(translator, test, tokenize="none", **search)
        row = {"seed": seed, "averaged": last, "search": name}
        row |= {"settings": search} | scores(done.outputs, corpora)
        rows.append(row | {"words": done.length_ratio})
        outputs[output_name(row)] = done.outputs
        print(rows[-1], flush=True)

    for last in (1, 5, 10):
        average_checkpoints(found[-last:], run / "model.safetensors")
        translator = Translator.load(run)
        for name, search in SEARCHES.items():
            translate(translator, name, search)
    chosen = choose(translator, corpora["tok"])
    best = SEARCHES["as published"] | {"alpha": max(chosen, key=chosen.get)}
    translate(translator, "alpha chosen", best)
    facts = {"seed": seed, "valid_bleu_by_alpha": chosen}
    facts["token_entropy"] = token_entropy(EncodedPairs(run / "data" / "train"))
    return facts | training_facts(read_metrics(run)), rows, outputs


def token_entropy(pairs: EncodedPairs) -> float:
    """NLL of a model that knows how frequent target tokens are, and no more."""
    ids = np.concatenate([pairs.target(i) for i in range(len(pairs))])
    counts = np.append(np.bincount(ids), len(pairs))  # and the ends
    return round(float(stats.entropy(counts)), 3)


def training_facts(metrics: list[dict]) -> dict:
    """How far a training went, and how its likelihood fell."""
    curve = [
        [row["step"], round(row["valid_nll"], 4)]
        for row in metrics
        if "valid_nll" in row
    ]
    return {
        "updates": metrics[-1]["step"],
        "epochs": metrics[-1]["epoch"],
        "hours": round(metrics[-1]["seconds"] / 3600, 2),
        "last_valid_perplexity": round(math.exp(curve[-1][1]), 3),
        "best_valid_perplexity": round(
            math.exp(min(nll for _, nll in curve)), 3
        ),
        "curve": curve,
    }


def compared(seed: int, outputs: dict, corpora: dict) -> Iterator[dict]:
    """What averaging, the beam and the penalty gain, by a paired test."""
    references = [target for _, target in corpora["tok"].splits["test"]]
    for what, first, second in PAIRS:
        names = [
            output_name({"seed": seed, "averaged": n, "search": search})
            for n, search in (first, second)
        ]
        yield {"seed": seed, "what": what} | records.paired_test(
            *(outputs[n] for n in names), references, tokenize="none"
        )


def main() -> None:
    """Score every average of these runs with every search."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    options = parser.parse_args()
    corpora, known = load_corpora(), records.load_record(NAME)
    found = {key: known.get(key, []) for key in ("seeds", "rows", "tests")}
    journals = {n: records.journal(known, n) for n in known.get("logs", {})}
    outputs = {n: records.output(known, n) for n in known.get("outputs", {})}
    for run in options.runs:
        facts, rows, translated = measure(run, corpora)
        seed = facts["seed"]
        journals[f"seed-{seed}"] = read_metrics(run)
        outputs |= translated
        new = {
            "seeds": [facts],
            "rows": rows,
            "tests": list(compared(seed, outputs, corpora)),
        }
        for key, part in new.items():
            others = [row for row in found[key] if row["seed"] != seed]
            found[key] = sorted([*others, *part], key=lambda row: row["seed"])
    records.write_record(
        NAME,
        found.pop("rows"),
        ("torch", "sacrebleu", "sacremoses"),
        seed=[facts["seed"] for facts in found["seeds"]],
        published=PUBLISHED,
        runs=journals,
        outputs=outputs,
        **found,
    )


def check() -> Iterator[records.Checked]:
    """Perplexities from the journals, scores from the outputs."""
    found = records.load_record(NAME)
    yield from records.check_stored(found)
    corpora = load_corpora() if records.data_folder() else None
    for facts in found["seeds"]:
        seed, name = facts["seed"], f"seed-{facts['seed']}"
        chosen = facts["valid_bleu_by_alpha"]
        rows = [row for row in found["rows"] if row["seed"] == seed]
        alpha = float(max(chosen, key=chosen.get))
        yield f"{name}, penalty", rows[-1]["settings"]["alpha"], alpha
        if name not in found.get("logs", {}):
            yield (f"{name}: neither journal nor outputs are stored",)
            continue
        new = training_facts(records.journal(found, name))
        yield name, {key: facts[key] for key in new}, new
        if not corpora:
            yield (f"{name}, BLEU: the corpus is not here",)
            continue
        outputs = {}
        for row in rows:
            name = output_name(row)
            outputs[name] = records.output(found, name)
            new = scores(outputs[name], corpora)
            yield name, {key: row[key] for key in new}, new
        stored = [test for test in found["tests"] if test["seed"] == seed]
        yield (
            f"seed {seed}, tests",
            stored,
            list(compared(seed, outputs, corpora)),
        )


if __name__ == "__main__":
    records.start(main, check)
