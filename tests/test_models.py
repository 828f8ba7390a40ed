"""The models that come with the book: small, described, and as good as said."""

import re

import pytest
from safetensors import safe_open

from tests.site import ROOT
from transformer_annotated.evaluation import evaluate
from transformer_annotated.workshop.files import load_result, model_names
from transformer_annotated.workshop.parallel import read_pairs
from transformer_annotated.workshop.recipe import read_recipe
from transformer_annotated.workshop.translator import Translator

TRANSLATORS = [name for name in model_names() if "tatoeba" in name]
EACH = pytest.mark.parametrize("name", TRANSLATORS)


def test_there_are_two_models():
    """One for each direction; others are tested with their chapters."""
    assert TRANSLATORS == ["tatoeba-de-en", "tatoeba-en-de"]
    others = {"grammar-parser", "gpt-english"}
    assert set(model_names()) - set(TRANSLATORS) == others


@EACH
def test_a_model_is_a_small_folder(name):
    """Weights in a byte or two, of at most 16 MB, and all that goes along."""
    folder = ROOT / "models" / name
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "config.toml",
        "curve.svg",
        "model.safetensors",
        "sample.tsv",
        "tokenizer.json",
    }
    file = folder / "model.safetensors"
    assert file.stat().st_size <= 16e6
    with safe_open(file, "pt") as weights:
        for key in weights.keys():  # noqa: SIM118
            kind = weights.get_slice(key).get_dtype()
            assert kind in ("F16", "I8") or key.endswith(".scale")


@EACH
def test_a_model_is_as_good_as_its_card_says(name):
    """BLEU on its sample, translated here and now."""
    stated = load_result(name)["rows"]
    pairs = read_pairs(ROOT / f"models/{name}/sample.tsv")
    assert len(pairs) == stated["sample_pairs"] == 200
    score = evaluate(Translator.load(name), pairs).bleu
    assert abs(score.value - stated["sample_bleu"]) <= 0.1


@EACH
def test_a_card_says_what_was_measured(name):
    """Score, signature, data, licence, command and limits."""
    card = (ROOT / f"models/{name}/README.md").read_text("utf-8")
    stated = load_result(name)["rows"]
    for key in ("bleu", "test_bleu", "test_chrf"):
        assert f"{stated.get(key, stated['bleu']):.2f}" in card
    assert stated["bleu_signature"] in card
    assert f"{stated['updates']:,} updates" in card
    corpus = read_recipe(ROOT / f"models/{name}/config.toml").corpus
    recipe = f"{corpus.name}-{corpus.source}-{corpus.target}"
    assert f"train {recipe} --out DIR" in card
    assert f"--set steps={stated['updates']}" in card
    for word in ("CC BY 2.0", "tatoeba.org", "manythings.org", "limits"):
        assert word in card
    assert not re.search(r"[{}]", card)


def test_the_demo():
    """What the README promises, to the letter."""
    text = (ROOT / "README.md").read_text("utf-8")
    ((name, german, english),) = re.findall(
        r'translate --model (\S+) "(.+)"\n# (.+)\n', text
    )
    assert Translator.load(name).translate(german) == english


@pytest.mark.parametrize(
    ("german", "english"),
    [
        ("Ich liebe Bücher.", "I love books."),
        ("Guten Morgen!", "Good morning."),
        ("guten morgen", "good morning"),
        ("danke", "thanks"),
        ("nein", "no"),
        (
            "Die Regierung hat ein neues Gesetz verabschiedet.",
            "The government adopted a new law.",
        ),
        (
            "Sie hat mir gestern einen langen Brief geschrieben.",
            "She wrote me a long letter yesterday.",
        ),
        (
            "Der Mann, den du gesehen hast, ist mein Bruder.",
            "The man you saw is my brother.",
        ),
        ("Ich weiß nicht. Wo ist Tom?", "I don't know. Where's Tom?"),
    ],
)
def test_everyday_sentences(german, english):
    """What anybody may try first, also typed in haste, or two in a line."""
    assert Translator.load("tatoeba-de-en").translate(german) == english


@EACH
def test_weights_in_bytes_are_as_good_as_before(name):
    """Rounding to a byte a number costs less than 0.2 BLEU."""
    stated = load_result(name)["rows"]
    assert abs(stated["bleu"] - stated["bleu_before_rounding"]) < 0.2


@pytest.mark.parametrize(
    ("english", "german"),
    [
        ("Good morning!", "Guten Morgen!"),
        ("Where is the station?", "Wo ist der Bahnhof?"),
        ("I love books.", "Ich liebe Bücher."),
        ("good morning", "guten morgen"),
        ("thank you", "danke"),
        ("yes", "ja"),
        (
            "The man you saw is my brother.",
            "Der Mann, den du gesehen hast, ist mein Bruder.",
        ),
        ("I don't know. Where is Tom?", "Ich weiß es nicht. Wo ist Tom?"),
    ],
)
def test_everyday_sentences_into_german(english, german):
    """What anybody may try first, also typed in haste, or two in a line."""
    assert Translator.load("tatoeba-en-de").translate(english) == german
