"""Models for everyday sentences on the news: an honest figure out of domain.

    python -m experiments.news FOLDER MODEL [MODEL ...]

FOLDER holds newstest2013.en and newstest2013.de, the paper's development set.
Scores the outputs in all the ways that people call BLEU. Writes
results/news.json.
"""

import argparse
from pathlib import Path

from benchmarks.report import write
from transformer_annotated.evaluation import bleu, bleu_variants
from transformer_annotated.workshop.corpora import read_pairs
from transformer_annotated.workshop.translator import Translator

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Translate the news with each model, and score it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()
    rows = []
    for name in options.models:
        translator = Translator.load(name)
        corpus = translator.recipe.corpus
        files = (
            options.folder / f"newstest2013.{language}"
            for language in (corpus.source, corpus.target)
        )
        sources, references = map(list, zip(*read_pairs(*files), strict=True))
        said = translator.translate(sources)
        score = bleu(said, references, bootstrap=1000)
        rows.append(
            {
                "model": name,
                "pairs": len(said),
                "interval": [round(score.low, 2), round(score.high, 2)],
                "scores": {
                    way.name: {
                        "value": round(way.value, 2),
                        "signature": way.signature,
                    }
                    for way in bleu_variants(said, references, corpus.target)
                },
            }
        )
    libraries = ("torch", "sacrebleu", "sacremoses")
    write(ROOT / "results/news.json", rows, libraries)


if __name__ == "__main__":
    main()
