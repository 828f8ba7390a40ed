"""Kinds of models: one table, which recipes, checkpoints and searches read."""

import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

from transformer_annotated import Transformer, TransformerConfig
from transformer_annotated.decoding import greedy_decode
from transformer_annotated.recurrent import RecurrentConfig, RecurrentModel
from transformer_annotated.workshop.files import read_toml, write_toml
from transformer_annotated.workshop.memory import build_model, count_parameters
from transformer_annotated.workshop.models import (
    MODELS,
    config_from_table,
    config_table,
    find_kind,
    kind_names,
    kind_of,
    start_decoding,
)
from transformer_annotated.workshop.recipe import (
    Recipe,
    read_recipe,
    run_recipe,
)
from transformer_annotated.workshop.translator import Translator

TINY = ["train_size=20", "valid_size=5", "depth=0", "d_model=8", "steps=1"]


def test_what_has_no_kind_is_a_transformer():
    """Folders written before there were kinds go on loading."""
    table = config_table(TransformerConfig(1, layers=2))
    assert "kind" not in table
    assert config_from_table(table, "x", 9) == TransformerConfig(9, layers=2)
    assert isinstance(read_recipe("grammar").model, TransformerConfig)


def test_a_kind_goes_through_a_file(tmp_path):
    """The recipe that is read is the recipe that was written."""
    recipe = read_recipe("lstm-attention-grammar", ["model.dropout=0.2"])
    write_toml(tmp_path / "x.toml", recipe.tables())
    assert read_toml(tmp_path / "x.toml")["model"]["kind"] == "recurrent"
    assert read_recipe(tmp_path / "x.toml") == recipe


@pytest.mark.parametrize("kind", kind_names())
def test_each_kind_is_built_counted_and_decoded(kind):
    """Every row of the table is whole."""
    row = find_kind(kind)
    config = row.config(20, layers=1, d_model=32)
    model = build_model(config)
    assert kind_of(model.config) is row
    real = sum(p.numel() for p in model.parameters())
    assert count_parameters(config) == real
    if row.decoder is None:
        return
    src = torch.tensor([[4, 5, 2], [6, 2, 0]])
    decoder = start_decoding(model.eval(), src)
    first = decoder.next_logits(torch.ones(2, dtype=torch.long))
    decoder.reorder(torch.tensor([1]))
    assert first.shape == (2, 20)
    assert decoder.next_logits(torch.tensor([7])).shape == (1, 20)


@pytest.mark.parametrize("score", ["none", "additive"])
@pytest.mark.parametrize("same_sources", [False, True])
def test_a_recurrent_decoder_goes_on_with_the_rows_that_are_chosen(
    score, same_sources
):
    """What follows is what these rows would have had from the start."""
    torch.manual_seed(0)
    model = RecurrentModel(RecurrentConfig(20, "lstm", score, 2, 8)).eval()
    src = torch.randint(4, 20, (2, 5)).repeat_interleave(2, 0)
    tgt = torch.randint(4, 20, (4, 7))
    rows = torch.tensor([1, 0, 3, 3] if same_sources else [2, 0, 2, 1, 3])
    decoder = start_decoding(model, src)
    for t in range(4):
        decoder.hidden(tgt[:, t])
    decoder.reorder(rows, same_sources)
    rest = torch.stack([decoder.hidden(tgt[rows, t]) for t in (4, 5, 6)], 1)
    with torch.no_grad():
        whole = model.decode(tgt[rows], model.encode(src[rows]), src[rows])
    assert_close(rest, whole[:, 4:])
    with pytest.raises(ValueError, match=r"^tokens: shape \(9,\), expected"):
        decoder.next_logits(torch.ones(9, dtype=torch.long))


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "recurent"}, r"\[model\] unknown kind, 'recurent'; did you"),
        ({"kind": 3}, r"\[model\] unknown kind, '3'; known: transformer, rec"),
        ({"kind": "recurrent", "heads": 2}, r"unknown key in \[model\], 'head"),
        ({"cell": "lstm"}, r"unknown key in \[model\], 'cell'; known: layers"),
        ({"kind": "recurrent", "cel": "x"}, r"unknown key .*mean 'cell'"),
        ({"kind": "recurrent", "cell": "x"}, r"\[model\] unknown cell, 'x'"),
    ],
)
def test_a_table_that_describes_no_model(table, message):
    """One line, with the file, in a recipe and in a run's folder alike."""
    with pytest.raises(ValueError, match=f"^x: {message}"):
        config_from_table(table, "x")
    with pytest.raises(ValueError, match=f"^x: {message}"):
        Recipe.from_tables({"model": table}, "x")


def test_a_checkpoint_of_another_kind_is_refused(tmp_path):
    """By the first parameter that is not there, in one line."""
    run_recipe(read_recipe("lstm-grammar", TINY), tmp_path, progress_bar=False)
    config = tmp_path / "config.toml"
    tables = read_toml(config)
    tables["model"] = {"layers": 1, "d_model": 8, "d_ff": 8, "heads": 2}
    write_toml(config, tables)
    with pytest.raises(ValueError, match="model") as problem:
        Translator.load(tmp_path)
    assert "\n" not in str(problem.value)
    with pytest.raises(ValueError, match="step-1"):
        run_recipe(
            read_recipe(config), tmp_path, resume=True, progress_bar=False
        )
    assert isinstance(build_model(TransformerConfig.tiny(9)), Transformer)


def test_recipes_of_the_made_up_language_have_equal_parameters():
    """With its 765 words, to within two per cent."""
    counts = []
    for name in ("grammar", "rnn", "lstm", "lstm-attention"):
        recipe = read_recipe(name if name == "grammar" else f"{name}-grammar")
        table = config_table(recipe.model)
        counts.append(count_parameters(config_from_table(table, "x", 765)))
    assert max(counts) < 1.02 * min(counts)


def test_a_kind_of_part_five_is_imported_when_it_is_named():
    """And not before: a Transformer comes without what came after it."""
    program = (
        "import sys\n"
        "from transformer_annotated.workshop.models import config_from_table\n"
        "after = lambda: [m for m in sys.modules if '.after.' in m]\n"
        "config_from_table({}, 'x', 9)\n"
        "assert not after()\n"
        "config = config_from_table({'kind': 'relative'}, 'x', 9)\n"
        "print(type(config).__name__)\n"
        "assert after() == ['transformer_annotated.after.rotary']\n"
    )
    said = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert said == "RelativeConfig\n"


def test_what_is_no_configuration_has_no_kind():
    """One line, with the kinds that there are."""
    with pytest.raises(ValueError, match=r"^config: int, expected one of .*:"):
        kind_of(3)


def test_a_model_that_only_reads_is_not_asked_to_write(monkeypatch):
    """One line, before any search."""
    row = MODELS["transformer"]._replace(decoder=None)
    monkeypatch.setitem(MODELS, "transformer", row)
    model = build_model(TransformerConfig.tiny(9))
    with pytest.raises(ValueError, match=r"^model: transformer has no dec"):
        greedy_decode(model, torch.tensor([[4, 2]]))
