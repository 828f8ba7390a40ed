"""Make a run of a shipped model, so that its training can go on.

    python -m experiments.revive NAME RUN
    transformer-annotated train --out RUN --resume --set steps=60000

A checkpoint is several times as large as a shipped model, most of it what Adam
remembers of gradients, and is not kept. So the new run begins with the shipped
weights, the journal of their training and its learning rate, at the next pass
over the corpus; Adam has to learn its moments anew, within some hundred
updates. Needs the corpus that the model was trained on.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from experiments import records
from transformer_annotated.optimizer import NoamOptimizer
from transformer_annotated.training import TrainState
from transformer_annotated.workshop.checkpoints import save_checkpoint
from transformer_annotated.workshop.files import find_model, write_atomically
from transformer_annotated.workshop.recipe import prepare, read_recipe
from transformer_annotated.workshop.translator import Translator


def revive(name: str, run: Path) -> None:
    """Write the folder of a run that stands where a model was shipped."""
    if run.exists():
        raise SystemExit(f"{run}: is there already; choose another folder")
    shipped = find_model(name)
    recipe = read_recipe(shipped / "config.toml")
    journal = records.journal(records.load_record(name), "training")
    prepared = prepare(recipe, run / "data")
    prepared.tokenizer.save(run / "tokenizer.json")
    vocabularies = {
        (folder / "tokenizer.json").read_text("utf-8")
        for folder in (run, shipped)
    }
    if len(vocabularies) > 1:
        raise SystemExit(
            f"{name}: made with other text, from which follow other tokens; "
            "its training cannot go on with this text"
        )
    model = Translator.load(shipped, device="cpu").model
    last, training = journal[-1], recipe.training
    optimizer = NoamOptimizer(
        model.parameters(),
        model.config.d_model,
        training.warmup,
        training.factor,
    )
    optimizer.steps = last["step"]
    state = TrainState(
        step=last["step"],
        epoch=last["epoch"] + 1,
        tokens=last["tokens"],
        seconds=last["seconds"],
        best_nll=min(r["valid_nll"] for r in journal if "valid_nll" in r),
    )
    save_checkpoint(run / "checkpoints", model, optimizer, asdict(state), {})
    lines = "".join(f"{json.dumps(row)}\n" for row in journal)
    write_atomically(run / "metrics.jsonl", lines)
    settings = (shipped / "config.toml").read_text("utf-8")
    write_atomically(run / "config.toml", settings)


def main() -> None:
    """Revive one model."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name")
    parser.add_argument("run", type=Path)
    options = parser.parse_args()
    revive(options.name, options.run)
    print(f"transformer-annotated train --out {options.run} --resume")


def check() -> Iterator[records.Checked]:
    """It makes a run, and no result."""
    yield ("a revived run is not a result",)


if __name__ == "__main__":
    records.start(main, check)
