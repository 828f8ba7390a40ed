"""The English model that comes with the book: small, and as good as said."""

import pytest
import torch
from safetensors import safe_open

from experiments import english
from tests.site import ROOT
from transformer_annotated.workshop.files import load_result
from transformer_annotated.workshop.parallel import read_pairs
from transformer_annotated.workshop.translator import Translator

FOLDER = ROOT / "models/gpt-english"


@pytest.fixture(scope="module")
def model():
    """The shipped one."""
    return Translator.load("gpt-english", device="cpu")


def test_it_is_small():
    """Matrices in a byte a number, and less than six megabytes in all."""
    assert {path.name for path in FOLDER.iterdir()} == {
        "README.md",
        "config.toml",
        "model.safetensors",
        "sample.tsv",
        "tokenizer.json",
    }
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 6e6
    with safe_open(FOLDER / "model.safetensors", "pt") as weights:
        kinds = {weights.get_slice(k).get_dtype() for k in weights.keys()}  # noqa: SIM118
    assert "I8" in kinds


def test_its_log_probabilities_are_those_that_were_stored(model):
    """Of twenty texts that were held out, computed here and now."""
    rows = list(read_pairs(FOLDER / "sample.tsv"))
    assert len(rows) == english.SAMPLE
    stored = english.records.output(load_result("english"), "likelihoods")
    for found, known in zip(
        english.likelihoods(model, rows), stored, strict=False
    ):
        *counts, nats = found.split("\t")
        *same, value = known.split("\t")
        assert counts == same
        assert abs(float(nats) - float(value)) < 0.02 * abs(float(value))


def test_the_card_says_what_was_measured():
    """Perplexity, data, licence, command and limits."""
    card = (FOLDER / "README.md").read_text("utf-8")
    stated = load_result("english")
    for row in stated["rows"]:
        assert f"{row['perplexity']:.1f}" in card
        assert f"{row['bits a character']:.2f}" in card
    assert f"{stated['updates']:,} updates" in card
    for word in ("CC BY 2.0", "tatoeba.org", "Europarl", "Known limits"):
        assert word in card
    assert "{" not in card


def test_it_goes_on_from_a_prompt(model):
    """Whatever it writes begins with what it was told, and ends in time."""
    prompt = "The old man"
    for kind in english.KINDS:
        found = english.written(model, kind, prompt, 2)
        assert all(text.startswith(prompt) for text in found)
        assert found == english.written(model, kind, prompt, 2)


def test_it_prefers_english_to_shuffled_words(model):
    """By more than a nat a word, for every sample text."""
    rows = list(read_pairs(FOLDER / "sample.tsv"))[:10]
    torch.manual_seed(0)
    shuffled = []
    for kind, text in rows:
        words = text.split()
        order = torch.randperm(len(words)).tolist()
        shuffled.append((kind, " ".join(words[i] for i in order)))
    for (_, text), right, wrong in zip(
        rows,
        english.likelihoods(model, rows),
        english.likelihoods(model, shuffled),
        strict=True,
    ):
        gain = float(right.split("\t")[3]) - float(wrong.split("\t")[3])
        assert gain > len(text.split())


def test_rows_of_sentences():
    """A row ends after a sentence, and no sentence is lost but at the end."""
    lines = [f"{i} a b c ." for i in range(500)]
    rows = list(english.texts(lines))
    joined = " ".join(rows)
    assert " ".join(lines).startswith(joined) and len(rows) > 20
    lengths = [len(row.split()) for row in rows]
    assert min(lengths) >= english.SHORTEST
    assert max(lengths) < english.LONGEST + 5


def test_perplexity_by_hand():
    """Two texts of a kind: sums first, then the ratio."""
    lines = ["everyday\t2\t4\t-2.0", "everyday\t2\t4\t-6.0"]
    lines += ["parliament\t1\t8\t-1.0"]
    everyday, parliament = english.perplexities(lines)
    assert everyday["perplexity"] == 7.39
    assert everyday["bits a character"] == 1.443
    assert parliament["perplexity of a character"] == 1.133
