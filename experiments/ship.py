"""Make a folder of models/ from a run: small weights, and a card with facts.

    python -m experiments.ship RUN NAME [--last 10]

Averages the last checkpoints, writes weights in half precision, tokeniser and
recipe, scores what it wrote on the validation part of the run's corpus, and
fills in the model card. The first 200 of those pairs go along, as a sample for
tests and for the book. Writes models/NAME and results/NAME.json.
"""

import argparse
from pathlib import Path

import altair as alt
import torch

from benchmarks.report import write_result
from transformer_annotated.evaluation import bleu, evaluate
from transformer_annotated.model import parameter_count
from transformer_annotated.workshop.checkpoints import (
    average_checkpoints,
    list_checkpoints,
)
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.recipe import load_corpus, read_recipe
from transformer_annotated.workshop.translator import Translator

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = 200
LANGUAGES = {"de": "German", "en": "English"}
EXAMPLES = {"de": "Ich liebe Bücher.", "en": "I love books."}


def curve(rows: list[dict]) -> alt.Chart:
    """NLL of training and validation against updates."""
    names = {"nll": "training", "valid_nll": "validation"}
    points = [
        {"update": row["step"], "NLL (nats)": row[key], "of": name}
        for row in rows
        for key, name in names.items()
        if key in row
    ]
    chart = alt.Chart(alt.Data(values=points), width=500, height=240)
    return chart.mark_line().encode(
        x=alt.X("update:Q"),
        y=alt.Y("NLL (nats):Q", scale=alt.Scale(zero=False)),
        color=alt.Color("of:N", title=None),
    )


def main() -> None:
    """Average, save, score, and write it all down."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    parser.add_argument("--last", type=int, default=10)
    options = parser.parse_args()
    folder = ROOT / "models" / options.name
    averaged = list_checkpoints(options.run / "checkpoints")[-options.last :]
    average_checkpoints(averaged, options.run / "model.safetensors")
    Translator.load(options.run).save(folder)

    translator = Translator.load(folder)
    recipe = read_recipe(folder / "config.toml")
    config = translator.model.config
    corpus = load_corpus(recipe.corpus)
    pairs = list(corpus.splits["valid"])
    found = evaluate(translator, pairs, n_bootstrap=1000)
    sample = bleu(found.outputs[:SAMPLE], found.references[:SAMPLE])
    (folder / "sample.tsv").write_text(
        "".join(f"{a}\t{b}\n" for a, b in pairs[:SAMPLE]), "utf-8"
    )
    metrics = read_metrics(options.run)
    curve(metrics).save(folder / "curve.svg")
    last = metrics[-1]
    weights = (folder / "model.safetensors").stat().st_size
    facts = {
        "updates": int(averaged[-1].name.removeprefix("step-")),
        "epochs": last["epoch"],
        "hours": round(last["seconds"] / 3600, 2),
        "averaged": [path.name for path in averaged],
        "parameters": parameter_count(config),
        "megabytes": round(weights / 1e6, 2),
        "bleu": round(found.bleu.value, 2),
        "bleu_interval": [round(found.bleu.low, 2), round(found.bleu.high, 2)],
        "bleu_signature": found.bleu.signature,
        "chrf": round(found.chrf.value, 2),
        "chrf_signature": found.chrf.signature,
        "sample_bleu": round(sample.value, 2),
        "sample_pairs": SAMPLE,
        "torch_threads": torch.get_num_threads(),
    }
    write_result(
        options.name, facts, ("torch", "sacrebleu"), seed=recipe.training.seed
    )
    card = (
        (ROOT / "experiments/card.md")
        .read_text("utf-8")
        .format(
            name=options.name,
            source=LANGUAGES[recipe.corpus.source],
            target=LANGUAGES[recipe.corpus.target],
            source_code=recipe.corpus.source,
            target_code=recipe.corpus.target,
            example=EXAMPLES[recipe.corpus.source],
            config=config,
            pairs=len(corpus.splits["train"]),
            valid=len(pairs),
            last=len(averaged),
            **facts,
        )
    )
    (folder / "README.md").write_text(card, "utf-8")


if __name__ == "__main__":
    main()
