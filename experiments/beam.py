"""Beam size and length penalty: what they do to BLEU, length and score.

    python -m experiments.beam [--model NAME] [--pairs 2000] | --check

Translates validation pairs of the model's corpus with beams from 1 to 16, each
with penalties from none to too much. Writes results/beam.json and the outputs,
from which --check computes the scores again, if the corpus is there.
"""

import argparse
from collections.abc import Iterator
from itertools import islice, product

from experiments import records
from transformer_annotated.evaluation import bleu, evaluate
from transformer_annotated.workshop.files import find_model
from transformer_annotated.workshop.recipe import read_recipe
from transformer_annotated.workshop.translator import Translator

BEAMS = (1, 2, 4, 8, 16)
ALPHAS = (0.0, 0.6, 1.0, 2.0)


def validation(model: str) -> Iterator[tuple[str, str]]:
    """The validation pairs of a model's corpus."""
    recipe = read_recipe(find_model(model) / "config.toml")
    return iter(recipe.corpus.load().splits["valid"])


def main() -> None:
    """Every beam with every penalty."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default="tatoeba-de-en")
    parser.add_argument("--pairs", type=int, default=2000)
    options = parser.parse_args()
    translator = Translator.load(options.model)
    pairs = list(islice(validation(options.model), options.pairs))
    rows, outputs = [], {}
    for beam, alpha in product(BEAMS, ALPHAS):
        found = evaluate(translator, pairs, beam=beam, alpha=alpha)
        row = {
            "beam": beam,
            "alpha": alpha,
            "bleu": round(found.bleu.value, 2),
            "length": round(found.length_ratio, 4),
        }
        rows.append(row)
        outputs[f"beam-{beam}-alpha-{alpha}"] = found.outputs
        print(row, flush=True)
    records.write_record(
        "beam",
        rows,
        ("torch", "sacrebleu"),
        seed=None,
        model=options.model,
        pairs=len(pairs),
        outputs=outputs,
    )


def check() -> Iterator[records.Checked]:
    """That the grid is whole, and each score that of its outputs."""
    found = records.load_record("beam")
    yield from records.check_stored(found)
    cells = [(row["beam"], row["alpha"]) for row in found["rows"]]
    yield "grid", cells, list(product(BEAMS, ALPHAS))
    if "outputs" not in found or not records.data_folder():
        yield ("BLEU: no outputs stored, or no corpus here",)
        return
    pairs = islice(validation(found["model"]), found["pairs"])
    references = [target for _, target in pairs]
    for row in found["rows"]:
        name = f"beam-{row['beam']}-alpha-{row['alpha']}"
        score = bleu(records.output(found, name), references)
        yield f"{name}, BLEU", row["bleu"], round(score.value, 2)


if __name__ == "__main__":
    records.start(main, check)
