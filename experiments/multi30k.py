"""Score a run of the recipe multi30k-en-de on test_2016_flickr.

    python -m experiments.multi30k RUN

Averages the last 1, 5 and 10 checkpoints, translates with the beam of 5 and the
length penalty of the published figure (mean log-probability) and with the
paper's beam of 4 and penalty 0.6, and scores the tokens as they are, as papers
on Multi30k do, and the detokenised text with sacreBLEU against the raw
reference. A last search has the penalty that is best on the validation part.
Writes results/multi30k-en-de.json.
"""

import argparse
from pathlib import Path

from sacremoses import MosesDetokenizer

from benchmarks.report import write_result
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


def score(translator: Translator, search: dict, corpora: dict) -> dict:
    """Translate the test set with a search, and score it both ways."""
    tokenised, raw = (corpora[variant].splits["test"] for variant in corpora)
    found = evaluate(
        translator, tokenised, tokenize="none", n_bootstrap=1000, **search
    )
    detokenize = MosesDetokenizer("de").detokenize
    plain = [detokenize(line.split()) for line in found.outputs]
    ours = found.bleu
    theirs = bleu(plain, [target for _, target in raw], lowercase=True)
    return {
        "settings": search,
        "tokenised_bleu": round(ours.value, 2),
        "interval": [round(ours.low, 2), round(ours.high, 2)],
        "tokenised_signature": ours.signature,
        "sacrebleu": round(theirs.value, 2),
        "sacrebleu_signature": theirs.signature,
        "words": found.length_ratio,
    }


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
    corpora = {
        variant: load_corpus(
            "multi30k", source="en", target="de", variant=variant
        )
        for variant in ("tok", "raw")
    }
    rows = []
    for last in (1, 5, 10):
        average_checkpoints(found[-last:], options.run / "model.safetensors")
        translator = Translator.load(options.run)
        for name, search in SEARCHES.items():
            about = {"averaged": last, "search": name}
            rows.append(about | score(translator, search, corpora))
            print(rows[-1], flush=True)
    chosen = choose(translator, corpora["tok"])
    best = SEARCHES["as published"] | {"alpha": max(chosen, key=chosen.get)}
    about = {"averaged": last, "search": "alpha chosen"}
    rows.append(about | score(translator, best, corpora))
    metrics = read_metrics(options.run)
    valid = [row for row in metrics if "valid_nll" in row]
    write_result(
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
        curve=[[row["step"], round(row["valid_nll"], 4)] for row in valid],
    )


if __name__ == "__main__":
    main()
