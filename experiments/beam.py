"""Beam size and length penalty: what they do to BLEU, length and score.

    python -m experiments.beam [--model NAME] [--pairs 2000]

Translates validation pairs of the model's corpus with beams from 1 to 16, each
with penalties from none to too much. Writes results/beam.json.
"""

import argparse
from itertools import islice, product

from benchmarks.report import write_result
from transformer_annotated.evaluation import evaluate
from transformer_annotated.workshop.files import find_model
from transformer_annotated.workshop.recipe import load_corpus, read_recipe
from transformer_annotated.workshop.translator import Translator

BEAMS = (1, 2, 4, 8, 16)
ALPHAS = (0.0, 0.6, 1.0, 2.0)


def main() -> None:
    """Every beam with every penalty."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tatoeba-de-en")
    parser.add_argument("--pairs", type=int, default=2000)
    options = parser.parse_args()
    translator = Translator.load(options.model)
    recipe = read_recipe(find_model(options.model) / "config.toml")
    valid = load_corpus(recipe.corpus).splits["valid"]
    pairs = list(islice(iter(valid), options.pairs))
    rows = []
    for beam, alpha in product(BEAMS, ALPHAS):
        found = evaluate(translator, pairs, beam=beam, alpha=alpha)
        row = {
            "beam": beam,
            "alpha": alpha,
            "bleu": round(found.bleu.value, 2),
            "length": round(found.length_ratio, 4),
        }
        rows.append(row)
        print(row, flush=True)
    write_result(
        "beam",
        rows,
        ("torch", "sacrebleu"),
        seed=None,
        model=options.model,
        pairs=len(pairs),
    )


if __name__ == "__main__":
    main()
