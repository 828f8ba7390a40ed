"""Text in, text out: in order, whole, and with the lid open."""

import os
import re
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from tests.runs import noam
from transformer_annotated.decoding import beam_search
from transformer_annotated.model import Transformer, TransformerConfig
from transformer_annotated.text import BOS, EOS, train_bpe, train_word_tokenizer
from transformer_annotated.workshop.checkpoints import save_checkpoint
from transformer_annotated.workshop.files import model_names, read_toml
from transformer_annotated.workshop.models import record_attention
from transformer_annotated.workshop.recipe import read_recipe
from transformer_annotated.workshop.translator import Translation, Translator

TEXTS = [
    "Ich sehe den Hund.",
    "Wo ist der alte Baum, den du gesehen hast?",
    "Ja!",
    "Der Hund läuft über die Straße zu dem Haus.",
]
SIZES = {"layers": 2, "d_model": 16, "d_ff": 32, "heads": 2}


def a_translator(tokenizer=None, seed=0, **sizes):
    """A model with random weights; what it says is nonsense, but firm."""
    tokenizer = tokenizer or train_bpe(TEXTS, vocab_size=320, min_frequency=1)
    sizes = SIZES | sizes
    tables = read_recipe("tatoeba-de-en").tables() | {"model": sizes}
    torch.manual_seed(seed)
    model = Transformer(TransformerConfig(tokenizer.vocab_size, **sizes))
    return Translator(model.eval(), tokenizer, tables)


@pytest.fixture(scope="module")
def translator():
    """One for tests that change nothing."""
    return a_translator()


def test_a_translation_is_one_line(translator, monkeypatch):
    """Byte pairs can spell the end of a line; a line in is a line out."""
    monkeypatch.setattr(translator.tokenizer, "decode", lambda ids: "a\n b\r")
    assert translator.translate(TEXTS[:2]) == ["a b", "a b"]
    assert translator.n_best(TEXTS[0], 1)[0].text == "a b"


def test_a_sentence_is_what_the_search_finds(translator):
    """Encode, search, decode: nothing else happens to a text."""
    ids = translator.tokenizer.encode(TEXTS[0])
    [[best]] = beam_search(translator.model, torch.tensor([[*ids, EOS]]))
    said = translator.tokenizer.decode(best.tokens)
    assert translator.translate(TEXTS[0]) == said != ""
    assert translator.translate([TEXTS[0]]) == [said]
    assert translator.n_best(TEXTS[0], 1, beam=4) == [
        Translation(said, best.score)
    ]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from([*TEXTS, "", "  ", "\t"]), max_size=9))
def test_lists_come_back_in_order(texts):
    """In any company, in any order; lines without words stay empty."""
    translator = a_translator()
    alone = {text: translator.translate(text, extra_length=1) for text in TEXTS}
    wanted = [alone.get(text, "") for text in texts]
    assert translator.translate(texts, extra_length=1) == wanted
    for size in (2, 100):
        assert [
            *translator.translate_lines(texts, size, extra_length=1)
        ] == wanted


def test_small_batches_change_nothing(translator, monkeypatch):
    """A sentence that exceeds the budget has a batch to itself."""
    wanted = translator.translate(TEXTS, extra_length=5)
    seen = []

    def look(model, src, **search):
        seen.append(tuple(src.shape))
        return beam_search(model, src, **search)

    monkeypatch.setattr(
        "transformer_annotated.workshop.translator.beam_search", look
    )
    assert translator.translate(TEXTS, extra_length=5, max_tokens=12) == wanted
    assert len(seen) > 2
    lengths = [length for _, length in seen]
    assert lengths == sorted(lengths, reverse=True)


def test_blanks_do_not_matter(translator):
    """Lines have line ends, and people type two blanks."""
    wanted = translator.translate("Ich sehe den Hund.")
    assert translator.translate(" Ich  sehe\tden Hund.\r\n") == wanted


def test_sentences_may_come_from_a_generator(translator):
    """What can be read only once is read only once."""
    assert translator.translate(text for text in TEXTS) == (
        translator.translate(TEXTS)
    )


def test_settings_reach_the_search(translator):
    """A beam, a penalty and a limit of length."""
    text = TEXTS[1]
    ids = [*translator.tokenizer.encode(text), EOS]
    for search in (
        {"beam": 1},
        {"beam": 2, "alpha": 2.0},
        {"offset": 0},
        {"extra_length": 0},
    ):
        [[best]] = beam_search(translator.model, torch.tensor([ids]), **search)
        said = translator.tokenizer.decode(best.tokens)
        assert translator.translate(text, **search) == said


def test_n_best(translator):
    """Different ones, the best first, and none for an empty line."""
    found = translator.n_best(TEXTS[0], 3)
    assert len(found) == 3
    scores = [one.score for one in found]
    assert scores == sorted(scores, reverse=True)
    assert translator.n_best("  ", 3) == []
    wide = translator.n_best(TEXTS[0], 1, beam=8)
    assert wide[0].score >= found[0].score - 1e-6


def test_words_are_cut_by_the_language_of_the_source():
    """A vocabulary of words needs to know whose."""
    words = train_word_tokenizer({"de": TEXTS, "en": ["I see the dog."]}, 1)
    translator = a_translator(words)
    said = translator.translate(TEXTS[0], extra_length=2)
    assert set(said.split()) <= set(words.vocab.itos[4:])
    assert translator.explain(TEXTS[0]).source_tokens[-2:] == [".", "</s>"]


@pytest.mark.parametrize("texts", [3, [3], [None], b"Hund"])
def test_what_is_no_text_is_refused(translator, texts):
    """Not taken for a list of letters or numbers."""
    with pytest.raises((ValueError, TypeError)):
        translator.translate(texts)


# --- Streams


def test_a_stream_loses_nothing_before_an_error(translator):
    """What came before a line that cannot be read is translated."""

    def lines():
        yield from TEXTS[:3]
        raise ValueError("line 4: no text")

    said = []
    with pytest.raises(ValueError, match="line 4"):
        for text in translator.translate_lines(lines(), 2, extra_length=5):
            said.append(text)
    assert said == translator.translate(TEXTS[:3], extra_length=5)


def test_a_stream_must_read_something(translator):
    """To read no line at a time would end it before it begins."""
    with pytest.raises(ValueError, match="buffer_size: 0, expected at least 1"):
        next(translator.translate_lines(TEXTS, buffer_size=0))


def test_a_stream_reads_no_further_than_it_must(translator):
    """Two lines ahead, and not the whole of an endless input."""
    seen = []

    def endless():
        while True:
            seen.append(1)
            yield "Ja!"

    stream = translator.translate_lines(endless(), 2, extra_length=2)
    assert next(stream) == translator.translate("Ja!", extra_length=2)
    assert len(seen) == 2


# --- Folders


def test_what_is_saved_can_be_loaded(tmp_path, translator):
    """In half precision; the same text comes out."""
    translator.save(tmp_path / "model")
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"config.toml", "model.safetensors", "tokenizer.json"}
    again = Translator.load(tmp_path / "model")
    assert not again.model.training
    assert again.tables == translator.tables
    assert (again.source, again.target) == ("de", "en")
    assert again.model.config == translator.model.config
    for ours, theirs in zip(
        translator.model.state_dict().values(),
        again.model.state_dict().values(),
        strict=True,
    ):
        assert theirs.dtype == torch.float32
        assert_close(ours, theirs, rtol=1e-3, atol=1e-6)
    assert again.translate(TEXTS, extra_length=5) == translator.translate(
        TEXTS, extra_length=5
    )


def test_a_byte_a_number_can_be_loaded(tmp_path, translator):
    """It is smaller, and no weight is off by more than half a step."""
    translator.save(tmp_path / "half")
    translator.save(tmp_path / "byte", int8=True)
    half, byte = (
        (tmp_path / name / "model.safetensors").stat().st_size
        for name in ("half", "byte")
    )
    assert byte < 0.8 * half  # headers and scales of so small a model weigh
    again = Translator.load(tmp_path / "byte").model.state_dict()
    for name, ours in translator.model.state_dict().items():
        rows = ours.abs().amax(-1, keepdim=True) if ours.dim() == 2 else ours
        step = rows.abs() / (127 if ours.dim() == 2 else 1000)
        assert again[name].dtype == torch.float32
        assert ((again[name] - ours).abs() <= 0.51 * step + 1e-7).all()


def test_a_run_without_an_average_has_its_last_checkpoint(tmp_path):
    """And with one, the average."""
    folder, last = tmp_path / "run", a_translator(seed=2)
    last.save(folder)
    average = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").unlink()
    for step, seed in ((1, 1), (2, 3)):
        model = a_translator(seed=seed).model
        progress = {"step": step}
        save_checkpoint(
            folder / "checkpoints", model, noam(model), progress, {}
        )
    found = Translator.load(folder).model.state_dict()
    assert_close(found, model.state_dict())
    (folder / "model.safetensors").write_bytes(average)
    found = Translator.load(folder).model.embeddings.weight
    assert_close(found, last.model.embeddings.weight, rtol=1e-3, atol=1e-6)


def test_models_can_be_named(tmp_path, translator, monkeypatch):
    """From either place; a folder of the same name comes first."""
    places = [tmp_path / "one", tmp_path / "two"]
    monkeypatch.setattr(
        "transformer_annotated.workshop.files.data_folders", lambda _: places
    )
    monkeypatch.chdir(tmp_path)
    assert model_names() == []
    translator.save(places[1] / "german")
    translator.save(places[0] / "english")
    (places[0] / "no-model").mkdir()
    assert model_names() == ["english", "german"]
    assert Translator.load("german").translate(TEXTS[2], extra_length=3)
    with pytest.raises(ValueError, match="did you mean 'german'"):
        Translator.load("germn")


def test_folders_that_hold_no_model(tmp_path, translator):
    """Each with what is missing."""
    with pytest.raises(ValueError, match=r"no config.toml"):
        Translator.load(tmp_path)
    translator.save(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="nor a checkpoint"):
        Translator.load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    with pytest.raises(ValueError, match="cannot be read"):
        Translator.load(tmp_path)


def test_another_vocabulary_is_refused(tmp_path, translator):
    """Rather than translated into nonsense."""
    translator.save(tmp_path)
    train_bpe(TEXTS, vocab_size=300).save(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match=r"embeddings.weight is \("):
        Translator.load(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model", r"config.toml: not a TOML file"),
        ("model = 3", "config.toml: model is a value, expected a table"),
        ("[model]\nd_modl = 16", r"unknown key in \[model\], 'd_modl'; did"),
        ("[model]\nvocab_size = 9", r"unknown key in \[model\], 'vocab_size'"),
        ("[model]\nheads = 3", r"config.toml: \[model\] .*heads"),
    ],
)
def test_a_damaged_configuration(tmp_path, translator, text, message):
    """One line, with the file and what is wrong in it."""
    translator.save(tmp_path)
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ValueError, match=message):
        Translator.load(tmp_path)


def test_saving_keeps_what_stands_in_other_tables(tmp_path, translator):
    """Whoever gets the model also gets to know how it was trained."""
    translator.save(tmp_path)
    assert read_toml(tmp_path / "config.toml") == translator.tables


def test_a_translator_needs_no_trainer():
    """Translating loads neither the trainer nor what only training needs."""
    code = """if True:
        import sys
        from transformer_annotated import Translator
        Translator.load("tatoeba-de-en").translate("Ja!", beam=1)
        print(*sys.modules)"""
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True)
    package = "transformer_annotated"
    trainer = {
        f"{package}.{name}"
        for name in (
            *("training", "optimizer", "loss", "distributed", "evaluation"),
            *("workshop.recipe", "workshop.corpora", "workshop.grammar"),
        )
    } | {"altair", "datasets", "sacrebleu", "spacy", "torchtext"}
    assert not trainer & set(loaded.split())


# --- Explanations


@pytest.mark.parametrize("pre_norm", [False, True])
def test_explanations_are_what_the_model_attends_to(pre_norm):
    """Rows sum to 1, nobody sees the future, and each head is its own."""
    translator = a_translator(pre_norm=pre_norm)
    found = translator.explain(TEXTS[0])
    source, length = len(found.source_tokens), len(found.output_tokens)
    assert found.encoder_attentions.shape == (2, 2, source, source)
    assert found.decoder_attentions.shape == (2, 2, length, length)
    assert found.cross_attentions.shape == (2, 2, length, source)
    for weights in (
        found.encoder_attentions,
        found.decoder_attentions,
        found.cross_attentions,
    ):
        assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        heads = weights.flatten(0, 1)
        for one in range(4):
            for other in range(one):
                assert not torch.allclose(heads[one], heads[other])
    assert found.decoder_attentions.triu(1).eq(0).all()
    assert found.decoder_attentions[..., 0, 0].eq(1).all()


def test_the_first_layer_by_hand(translator):
    """The weights of the first head, from the embedded words."""
    model, ids = translator.model, translator.tokenizer.encode(TEXTS[2])
    src = torch.tensor([[*ids, EOS]])
    with torch.no_grad():
        x = model.source_positions(model.embeddings(src))[0]
        attention = model.encoder.layers[0].self_attention
        q, k = (f(x)[:, :8] for f in (attention.w_q, attention.w_k))
        wanted = (q @ k.T / 8**0.5).softmax(-1)
    assert_close(translator.explain(TEXTS[2]).encoder_attentions[0, 0], wanted)


def test_the_words_of_an_explanation(translator):
    """What is read stands one place to the right of what is said."""
    tokenizer, found = translator.tokenizer, translator.explain(TEXTS[0])
    assert found.source_tokens == [*tokenizer.tokenize(TEXTS[0]), "</s>"]
    assert found.input_tokens[0] == "<s>"
    assert found.output_tokens[-1] == "</s>"
    assert found.input_tokens[1:] == found.output_tokens[:-1]
    ids = [*tokenizer.encode(TEXTS[0]), EOS]
    [[best]] = beam_search(translator.model, torch.tensor([ids]))
    assert found.output_tokens == tokenizer.to_tokens([*best.tokens, EOS])


def test_a_target_can_be_given(translator):
    """Then the weights are those of reading it."""
    found = translator.explain(TEXTS[0], " Ja!\n")
    assert found.output_tokens == [
        *translator.tokenizer.tokenize("Ja!"),
        "</s>",
    ]
    own = translator.explain(TEXTS[0])
    assert_close(found.encoder_attentions, own.encoder_attentions)
    assert found.cross_attentions.size(2) == len(found.output_tokens)


def test_explaining_leaves_no_trace(translator):
    """No hook stays, whatever happens; the mode is what it was."""
    model = translator.model
    model.train()
    translator.explain(TEXTS[0])
    assert model.training
    model.eval()
    with pytest.raises(ZeroDivisionError), record_attention(model):
        raise ZeroDivisionError
    assert not any(module._forward_hooks for module in model.modules())


def test_nothing_cannot_be_explained(translator):
    """An empty text has no words to look at."""
    with pytest.raises(ValueError, match="text: empty"):
        translator.explain(" ")


def test_ids_are_shown_by_name(translator):
    """Pieces and special symbols."""
    ids = [BOS, *translator.tokenizer.encode("den Hund"), EOS, 0, 3]
    shown = translator.tokenizer.to_tokens(ids)
    assert shown[0] == "<s>" and shown[-3:] == ["</s>", "<pad>", "<unk>"]
    assert "".join(shown[1:-3]).replace("▁", " ") == "den Hund"


def test_a_text_beyond_reason_is_refused_at_once(translator):
    """Before the model sees it; from a list, its place is named."""
    for text in ("word " * 2000, "x" * 100_000, "ä" * 10_000_000):
        with pytest.raises(ValueError, match=r"^text 0: more than 1,000 tok"):
            translator.translate(text)
        with pytest.raises(ValueError, match="text 0: more than"):
            translator.n_best(text)
        with pytest.raises(ValueError, match="text 0: more than"):
            translator.explain(text)
    with pytest.raises(ValueError, match="text 1: more than 1,000 tokens; tr"):
        translator.translate(["Hallo", "x" * 100_000])


def test_lines_beyond_reason_are_cut_and_counted():
    """What is left is translated as if nothing had come after it."""
    translator = a_translator(learned_positions=9)
    assert translator.max_length == 8
    text = "01234567"  # a token each
    wanted = translator.translate(text, extra_length=1)
    lines = [text, text + "8", text + "8" * 100_000, "9"]
    found = [*translator.translate_lines(lines, extra_length=1)]
    assert found[:3] == 3 * [wanted] and translator.truncated == 2
    assert a_translator().max_length == 1000


def test_a_wide_beam_has_small_batches(translator, monkeypatch):
    """Rows of a batch are hypotheses, and memory is for rows."""
    seen = []

    def look(model, src, beam, **search):
        seen.append(src.numel() * beam)
        return beam_search(model, src, beam, **search)

    monkeypatch.setattr(
        "transformer_annotated.workshop.translator.beam_search", look
    )
    translator.translate(TEXTS * 20, beam=50, extra_length=0, max_tokens=200)
    longest = max(map(len, translator._encode(TEXTS, ""))) + 1
    assert max(seen) <= max(4 * 200, 50 * longest)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("d_ff = 999999999999", r"\[model\] d_ff: 999999999999, expected at m"),
        ("d_ff = 1048576", r"\[model\]: no memory for [\d,]+ parameters; to"),
        ("layers = 10000", r"\[model\] layers: 10000, expected at most 1,000"),
    ],
)
def test_a_model_that_no_machine_holds(tmp_path, change, message, monkeypatch):
    """Refused by its configuration, before anything is built."""
    a_translator().save(tmp_path)
    monkeypatch.setattr("transformer_annotated.workshop.memory.kind_of", None)
    config = tmp_path / "config.toml"
    key = change.partition(" ")[0]
    text = re.sub(rf"(?m)^{key} = .*$", change, config.read_text())
    if "memory" in message:
        text = text.replace("[model]", "[model]\nd_k = 131072\nd_v = 131072")
        text = re.sub(r"(?m)^(d_model|layers) = .*$", "", text).replace(
            "[model]", "[model]\nd_model = 131072\nlayers = 1000"
        )
    config.write_text(text)
    with pytest.raises(ValueError, match=rf"^{config}: {message}"):
        Translator.load(tmp_path)


@pytest.mark.parametrize(
    "name", ["config.toml", "tokenizer.json", "model.safetensors"]
)
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "loop"])
def test_what_is_no_file_is_refused_at_once(tmp_path, name, kind):
    """Nobody waits for a pipe, or reads zeros without end."""
    a_translator().save(tmp_path)
    path = tmp_path / name
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    with pytest.raises(ValueError, match=str(tmp_path)):
        Translator.load(tmp_path)
