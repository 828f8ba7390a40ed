"""Models for everyday sentences on the news: an honest figure out of domain.

    python -m experiments.news FOLDER MODEL [MODEL ...]

FOLDER holds newstest2013.en and newstest2013.de, the paper's development set.
Writes results/news.json.
"""

import argparse
from pathlib import Path

from benchmarks.report import write
from transformer_annotated.corpora import read_files
from transformer_annotated.evaluation import bleu, chrf, paper_bleu
from transformer_annotated.translator import Translator

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
        sources, references = map(list, zip(*read_files(*files), strict=True))
        said = translator.translate(sources)
        scores = {
            "sacrebleu": bleu(said, references, bootstrap=1000),
            "paper_bleu": paper_bleu(said, references, corpus.target),
            "chrf": chrf(said, references),
        }
        rows.append(
            {"model": name, "pairs": len(said)}
            | {key: round(score.value, 2) for key, score in scores.items()}
            | {f"{key}_is": score.signature for key, score in scores.items()}
        )
    libraries = ("torch", "sacrebleu", "sacremoses")
    write(ROOT / "results/news.json", rows, libraries)


if __name__ == "__main__":
    main()
