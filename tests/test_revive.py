"""A shipped model can be trained further, from what the repository holds."""

import pytest
import torch

from benchmarks import report
from experiments import records, revive
from transformer_annotated.workshop import files
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.recipe import read_recipe, run_recipe
from transformer_annotated.workshop.translator import Translator

SMALL = ["train_size=60", "valid_size=10", "batch_tokens=200", "layers=1"]
SMALL += ["d_model=16", "d_ff=16", "heads=2", "log_every=1"]
SMALL += ["validate_every=2", "checkpoint_every=2"]


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """The folder of a model, and a record of its training."""
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results")
    (tmp_path / "results").mkdir()
    run, folder = tmp_path / "run", tmp_path / "models" / "small"
    recipe = read_recipe("copy", [*SMALL, "steps=4"])
    run_recipe(recipe, run, progress_bar=False)
    Translator.load(run).save(folder, int8=True)
    monkeypatch.setattr(revive, "find_model", lambda name: folder.parent / name)
    records.write_record("small", {}, (), 0, runs={"training": run})
    return folder


def test_training_goes_on_where_the_model_was_shipped(shipped, tmp_path):
    """Its weights, its journal, its rate; and then the next updates."""
    again = tmp_path / "again"
    revive.revive("small", again)
    before = Translator.load(shipped, device="cpu").model.state_dict()
    begun = Translator.load(again, device="cpu").model.state_dict()
    for name, tensor in before.items():
        assert torch.equal(begun[name], tensor)
    run_recipe(read_recipe(again / "config.toml", ["steps=6"]), again, True)
    rows = read_metrics(again)
    steps = [row["step"] for row in rows if "rate" in row]
    assert steps == [1, 2, 3, 4, 5, 6]
    rates = {row["step"]: row["rate"] for row in rows if "rate" in row}
    assert rates[6] == pytest.approx(1.5 * rates[4])  # warm-up goes on
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)
    assert next(row["epoch"] for row in rows if row["step"] == 5) > 0


def test_another_text_has_other_tokens(shipped, tmp_path):
    """A vocabulary that does not fit the weights is refused."""
    (shipped / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(SystemExit, match="small: made with other text"):
        revive.revive("small", tmp_path / "again")


def test_nothing_is_overwritten(tmp_path):
    """A folder that is there stays as it is."""
    with pytest.raises(SystemExit, match="is there already"):
        revive.revive("tatoeba-en-de", tmp_path)


def test_the_model_is_looked_for_where_models_are():
    """The function that the fixture replaces."""
    assert revive.find_model is files.find_model
