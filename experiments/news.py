"""Models for everyday sentences on the news: an honest figure out of domain.

    python -m experiments.news [MODEL ...] | --check

The folder newstest, where TRANSFORMER_ANNOTATED_DATA leads, holds
newstest2013.en and newstest2013.de, the paper's development set.
Scores the outputs in all the ways that people call BLEU. Writes
results/news.json and the outputs, from which --check computes the scores again.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

from experiments import records
from transformer_annotated.evaluation import bleu_variants, evaluate
from transformer_annotated.workshop.files import model_names, read_lines
from transformer_annotated.workshop.parallel import read_pairs
from transformer_annotated.workshop.translator import Translator


def news(language: str) -> Path | None:
    """The file of a language, if it is on this machine."""
    data = records.data_folder()
    file = data / f"newstest/newstest2013.{language}" if data else None
    return file if file and file.exists() else None


def measure(name: str) -> tuple[dict, list[str]]:
    """Translate the news with a model, and score it; also the outputs."""
    translator = Translator.load(name)
    files = news(translator.source), news(translator.target)
    if None in files:
        raise SystemExit("TRANSFORMER_ANNOTATED_DATA leads to no newstest")
    pairs = read_pairs(*files)
    found = evaluate(translator, pairs, n_bootstrap=1000)
    row = {
        "model": name,
        "pairs": len(pairs),
        "interval": [round(found.bleu.low, 2), round(found.bleu.high, 2)],
        "scores": scores(found.outputs, found.references, translator.target),
    }
    return row, found.outputs


def scores(outputs: list[str], references: list[str], language: str) -> dict:
    """Every kind of BLEU, by name."""
    return {
        way.name: {"value": round(way.value, 2), "signature": way.signature}
        for way in bleu_variants(outputs, references, language)
    }


def main() -> None:
    """All models that were asked for, or all that come with the book."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    translators = [name for name in model_names() if "tatoeba" in name]
    parser.add_argument("models", nargs="*", default=translators)
    options = parser.parse_args()
    found = {name: measure(name) for name in options.models}
    records.write_record(
        "news",
        [row for row, _ in found.values()],
        ("torch", "sacrebleu", "sacremoses"),
        seed=None,
        outputs={name: outputs for name, (_, outputs) in found.items()},
    )


def check() -> Iterator[records.Checked]:
    """That every kind of BLEU is that of the stored outputs."""
    found = records.load_record("news")
    yield from records.check_stored(found)
    for row in found["rows"]:
        low, high = row["interval"]
        inside = low < row["scores"]["BLEU"]["value"] < high
        yield f"{row['model']}, BLEU within its interval", inside, True
        target = row["model"].rpartition("-")[2]
        if "outputs" in found and news(target):
            references = list(read_lines(news(target)))
            outputs = records.output(found, row["model"])
            for name, score in scores(outputs, references, target).items():
                stored = row["scores"][name]
                yield f"{row['model']}, {name}", stored, score
        else:
            yield (f"{row['model']}: no outputs stored, or no corpus here",)


if __name__ == "__main__":
    records.start(main, check)
