"""Beam size and length penalty: what they do to BLEU, length and score.

    python -m experiments.beam [--model NAME] [--pairs 2000] | --check

Translates validation pairs of the model's corpus with beams from 1 to 16, each
with penalties from none to too much. Paired tests say what the paper's choice
gains over others. Writes results/beam.json and the outputs, from which --check
computes scores and tests again, if the corpus is there.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, product

from experiments import records
from transformer_annotated.evaluation import bleu, evaluate
from transformer_annotated.workshop.files import find_model
from transformer_annotated.workshop.recipe import read_recipe
from transformer_annotated.workshop.translator import Translator

BEAMS = (1, 2, 4, 8, 16)
ALPHAS = (0.0, 0.6, 1.0, 2.0)
PAPER = (4, 0.6)
OTHERS = ((1, 0.6), (2, 0.6), (4, 0.0), (4, 1.0), (16, 0.6))


def validation(model: str) -> Iterator[tuple[str, str]]:
    """The validation pairs of a model's corpus."""
    recipe = read_recipe(find_model(model) / "config.toml")
    return iter(recipe.corpus.load().splits["valid"])


def name(beam: int, alpha: float) -> str:
    """Under which the outputs of a search are stored."""
    return f"beam-{beam}-alpha-{alpha}"


def compared(
    outputs: Mapping[str, Sequence[str]], references: Sequence[str]
) -> Iterator[dict]:
    """The paper's choice against some of the others, by paired tests."""
    for other in OTHERS:
        test = records.paired_test(
            outputs[name(*PAPER)], outputs[name(*other)], references
        )
        yield {"beam": other[0], "alpha": other[1]} | test


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
        outputs[name(beam, alpha)] = found.outputs
        print(row, flush=True)
    records.write_record(
        "beam",
        rows,
        ("torch", "sacrebleu"),
        seed=None,
        model=options.model,
        pairs=len(pairs),
        tests=list(compared(outputs, found.references)),
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
    outputs = {key: records.output(found, key) for key in found["outputs"]}
    for row in found["rows"]:
        key = name(row["beam"], row["alpha"])
        score = round(bleu(outputs[key], references).value, 2)
        yield f"{key}, BLEU", row["bleu"], score
    yield "tests", found["tests"], list(compared(outputs, references))


if __name__ == "__main__":
    records.start(main, check)
