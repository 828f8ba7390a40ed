"""Beam size and length penalty: what they do to BLEU, length and score.

    python -m experiments.beam MODEL [--pairs 500]

Translates validation pairs of the model's corpus with beams from 1 to 16, each
with penalties from none to too much. Writes results/beam.json.
"""

import argparse
from itertools import islice, product
from pathlib import Path

from benchmarks.report import write
from transformer_annotated.evaluation import bleu
from transformer_annotated.workshop.recipe import load_corpus
from transformer_annotated.workshop.translator import Translator

ROOT = Path(__file__).resolve().parent.parent
BEAMS = (1, 2, 4, 8, 16)
ALPHAS = (0.0, 0.6, 1.0, 2.0)


def main() -> None:
    """Every beam with every penalty."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--pairs", type=int, default=500)
    options = parser.parse_args()
    translator = Translator.load(options.model)
    corpus = load_corpus(translator.recipe.corpus)
    pairs = list(islice(iter(corpus.splits["valid"]), options.pairs))
    sources, references = map(list, zip(*pairs, strict=True))
    words = sum(len(line.split()) for line in references)
    rows = []
    for beam, alpha in product(BEAMS, ALPHAS):
        said = translator.translate(sources, beam=beam, alpha=alpha)
        rows.append(
            {
                "beam": beam,
                "alpha": alpha,
                "bleu": round(bleu(said, references).value, 2),
                "length": round(
                    sum(len(line.split()) for line in said) / words, 4
                ),
            }
        )
        print(rows[-1], flush=True)
    write(
        ROOT / "results/beam.json",
        rows,
        ("torch", "sacrebleu"),
        model=options.model,
        pairs=len(pairs),
    )


if __name__ == "__main__":
    main()
