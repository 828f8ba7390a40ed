"""Score a run of the recipe multi30k-en-de on test_2016_flickr.

    python -m experiments.multi30k RUN | --check

Averages the last 1, 5 and 10 checkpoints, translates with the beam of 5 and the
length penalty of the published figure (mean log-probability) and with the
paper's beam of 4 and penalty 0.6, and scores the tokens as they are, as papers
on Multi30k do, and the detokenised text with sacreBLEU against the raw
reference. A last search has the penalty that is best on the validation part.
Writes results/multi30k-en-de.json, the journal of the run, and all outputs,
from which --check computes the scores again, if the corpus is there.
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

from sacremoses import MosesDetokenizer

from experiments import records
from transformer_annotated.evaluation import bleu, evaluate
from transformer_annotated.workshop.checkpoints import (
    average_checkpoints,
    list_checkpoints,
)
from transformer_annotated.workshop.corpora import Corpus, load_corpus
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.translator import Translator

PUBLISHED = 41.02
SEARCHES = {
    "as published": {"beam": 5, "alpha": 1.0, "offset": 0},
    "as in the paper": {"beam": 4, "alpha": 0.6},
    "greedy": {"beam": 1},
}
ALPHAS = (0.6, 1.0, 1.4, 2.0)  # as published but for these


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
    return f"average-{row['averaged']}-{row['search'].replace(' ', '-')}"


def choose(translator: Translator, corpus: Corpus) -> dict[float, float]:
    """BLEU on the validation part for each of the penalties."""
    scores = {}
    for alpha in ALPHAS:
        search = SEARCHES["as published"] | {"alpha": alpha}
        valid = corpus.splits["valid"]
        found = evaluate(translator, valid, tokenize="none", **search)
        scores[alpha] = round(found.bleu.value, 2)
    return scores


def main() -> None:
    """Score every average with every search."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    options = parser.parse_args()
    found = list_checkpoints(options.run / "checkpoints")
    corpora, rows, outputs = load_corpora(), [], {}

    def translate(translator: Translator, name: str, search: dict) -> None:
        test = corpora["tok"].splits["test"]
        done = evaluate(translator, test, tokenize="none", **search)
        row = {"averaged": last, "search": name, "settings": search}
        row |= scores(done.outputs, corpora) | {"words": done.length_ratio}
        rows.append(row)
        outputs[output_name(row)] = done.outputs
        print(row, flush=True)

    for last in (1, 5, 10):
        average_checkpoints(found[-last:], options.run / "model.safetensors")
        translator = Translator.load(options.run)
        for name, search in SEARCHES.items():
            translate(translator, name, search)
    chosen = choose(translator, corpora["tok"])
    best = SEARCHES["as published"] | {"alpha": max(chosen, key=chosen.get)}
    translate(translator, "alpha chosen", best)
    metrics = read_metrics(options.run)
    valid = [row for row in metrics if "valid_nll" in row]
    records.write_record(
        "multi30k-en-de",
        rows,
        ("torch", "sacrebleu", "sacremoses"),
        seed=translator.tables["training"]["seed"],
        published=PUBLISHED,
        updates=metrics[-1]["step"],
        epochs=metrics[-1]["epoch"],
        hours=round(metrics[-1]["seconds"] / 3600, 2),
        valid_bleu_by_alpha=chosen,
        last_valid_perplexity=round(valid[-1]["valid_perplexity"], 3),
        best_valid_perplexity=round(
            min(row["valid_perplexity"] for row in valid), 3
        ),
        curve=curve_of(metrics),
        runs={"training": options.run},
        outputs=outputs,
    )


def curve_of(metrics: list[dict]) -> list[list]:
    """Update and likelihood of every validation."""
    return [
        [row["step"], round(row["valid_nll"], 4)]
        for row in metrics
        if "valid_nll" in row
    ]


def check() -> Iterator[records.Checked]:
    """Perplexities from the curve, scores from the outputs."""
    found = records.load_record("multi30k-en-de")
    yield from records.check_stored(found)
    if "logs" in found:
        metrics = records.journal(found, "training")
        yield "curve", found["curve"], curve_of(metrics)
    curve = [math.exp(nll) for _, nll in found["curve"]]
    for name, value in (("last", curve[-1]), ("best", min(curve))):
        stored = found[f"{name}_valid_perplexity"]
        within = 0.001 + 1e-4 * stored  # the curve is rounded
        yield f"{name} perplexity", stored, value, within
    chosen = found["valid_bleu_by_alpha"]
    alpha = float(max(chosen, key=chosen.get))
    yield "penalty", found["rows"][-1]["settings"]["alpha"], alpha
    if "outputs" in found and records.data_folder():
        corpora = load_corpora()
        for row in found["rows"]:
            name = output_name(row)
            new = scores(records.output(found, name), corpora)
            yield name, {key: row[key] for key in new}, new
    else:
        yield ("BLEU: no outputs stored, or no corpus here",)


if __name__ == "__main__":
    records.start(main, check)
