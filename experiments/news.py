"""Models for everyday sentences on the news: an honest figure out of domain.

    python -m experiments.news FOLDER [MODEL ...]

FOLDER holds newstest2013.en and newstest2013.de, the paper's development set.
Scores the outputs in all the ways that people call BLEU. Writes
results/news.json.
"""

import argparse
from pathlib import Path

from benchmarks.report import write_result
from transformer_annotated.evaluation import bleu_variants, evaluate
from transformer_annotated.workshop.files import model_names
from transformer_annotated.workshop.parallel import read_pairs
from transformer_annotated.workshop.translator import Translator


def measure(folder: Path, name: str) -> dict:
    """Translate the news with a model, and score it."""
    translator = Translator.load(name)
    languages = translator.source, translator.target
    pairs = read_pairs(*(folder / f"newstest2013.{code}" for code in languages))
    found = evaluate(translator, pairs, n_bootstrap=1000)
    variants = bleu_variants(found.outputs, found.references, translator.target)
    return {
        "model": name,
        "pairs": len(pairs),
        "interval": [round(found.bleu.low, 2), round(found.bleu.high, 2)],
        "scores": {
            way.name: {"value": round(way.value, 2), "signature": way.signature}
            for way in variants
        },
    }


def main() -> None:
    """All models that were asked for, or all that come with the book."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="*", default=model_names())
    options = parser.parse_args()
    rows = [measure(options.folder, name) for name in options.models]
    write_result("news", rows, ("torch", "sacrebleu", "sacremoses"), seed=None)


if __name__ == "__main__":
    main()
