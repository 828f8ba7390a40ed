"""Make a folder of models/ from a run: small weights, and a card with facts.

    python -m experiments.ship RUN NAME [--last 10] | --check

Averages the last checkpoints, and writes weights, a byte each, with tokeniser
and recipe. Scores what it wrote on the validation part of the run's corpus, on
which things are chosen (the same weights in full precision beside it), and on
the test part, on which nothing is. Fills in the model card. The first 200
validation pairs go along, as a sample for tests and for the book. Writes
models/NAME and results/NAME.json, with the journal of the run and all outputs,
from which --check computes the facts again.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import altair as alt
import torch

from experiments import records
from transformer_annotated.evaluation import Evaluation, bleu, evaluate
from transformer_annotated.model import parameter_count
from transformer_annotated.workshop.checkpoints import (
    average_checkpoints,
    list_checkpoints,
)
from transformer_annotated.workshop.files import CorpusError, model_names
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.parallel import read_pairs
from transformer_annotated.workshop.recipe import read_recipe
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


def scores(found: Evaluation) -> dict:
    """BLEU and chrF as facts, with their intervals and signatures."""
    facts = {}
    for name, score in (("bleu", found.bleu), ("chrf", found.chrf)):
        facts[name] = round(score.value, 2)
        facts[f"{name}_interval"] = [round(score.low, 2), round(score.high, 2)]
        facts[f"{name}_signature"] = score.signature
    return facts


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
    whole = Translator.load(options.run)
    whole.save(folder, int8=True)

    translator = Translator.load(folder)
    recipe = read_recipe(folder / "config.toml")
    config = translator.model.config
    corpus = recipe.corpus.load()
    pairs = list(corpus.splits["valid"])
    found = evaluate(translator, pairs, n_bootstrap=1000)
    unseen = evaluate(translator, corpus.splits["test"], n_bootstrap=1000)
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
        "bleu_before_rounding": round(evaluate(whole, pairs).bleu.value, 2),
        **scores(found),
        **{f"test_{key}": value for key, value in scores(unseen).items()},
        "sample_bleu": round(sample.value, 2),
        "sample_pairs": SAMPLE,
        "torch_threads": torch.get_num_threads(),
    }
    records.write_record(
        options.name,
        facts,
        ("torch", "sacrebleu"),
        seed=recipe.training.seed,
        runs={"training": options.run},
        outputs={"validation": found.outputs, "test": unseen.outputs},
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
            corpus=recipe.corpus.name,
            precision=recipe.training.precision,
            pairs=len(corpus.splits["train"]),
            valid=len(pairs),
            test=len(unseen.outputs),
            last=len(averaged),
            **facts,
        )
    )
    (folder / "README.md").write_text(card, "utf-8")


def check() -> Iterator[records.Checked]:
    """Sizes from the files, scores from the outputs, of every model."""
    for name in model_names():
        if not (records.report.RESULTS / f"{name}.json").exists():
            continue
        found, folder = records.load_record(name), ROOT / "models" / name
        facts = found["rows"]
        for what, *pair in records.check_stored(found):
            yield f"{name}, {what}", *pair
        size = (folder / "model.safetensors").stat().st_size / 1e6
        yield f"{name}, MB", facts["megabytes"], round(size, 2)
        config = Translator.load(folder).model.config
        count = parameter_count(config)
        yield f"{name}, parameters", facts["parameters"], count
        for key in ("bleu", "test_bleu", "chrf", "test_chrf"):
            if f"{key}_interval" in facts:
                low, high = facts[f"{key}_interval"]
                within = low < facts[key] < high
                yield f"{name}, {key} within interval", within, True
        if "outputs" not in found:
            yield (f"{name}, BLEU: no outputs stored",)
            continue
        for key, part, pairs in known_references(folder):
            references = [target for _, target in pairs]
            outputs = records.output(found, part)[: len(references)]
            score = round(bleu(outputs, references).value, 2)
            yield f"{name}, {key}", facts[key], score


def known_references(folder: Path) -> Iterator[tuple[str, str, Sequence]]:
    """A fact, the outputs it was computed from, and pairs to compare with.

    Those of the sample; and all, if the corpus is there.
    """
    yield "sample_bleu", "validation", read_pairs(folder / "sample.tsv")
    try:
        corpus = read_recipe(folder / "config.toml").corpus.load()
    except (CorpusError, ConnectionError):
        return
    yield "bleu", "validation", corpus.splits["valid"]
    yield "test_bleu", "test", corpus.splits["test"]


if __name__ == "__main__":
    records.start(main, check)
