"""Recipes: the paper's numbers, clear refusals, data prepared once."""

import os
import tomllib
from dataclasses import fields, replace
from pathlib import Path

import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.runs import NURSERY, at_once
from transformer_annotated.distributed import Worker
from transformer_annotated.model import TransformerConfig, parameter_count
from transformer_annotated.optimizer import noam_rate
from transformer_annotated.text import UNK, load_tokenizer
from transformer_annotated.training import TrainingConfig
from transformer_annotated.workshop import recipe as module
from transformer_annotated.workshop.checkpoints import list_checkpoints
from transformer_annotated.workshop.corpora import Corpus, load_corpus
from transformer_annotated.workshop.files import recipe_names, write_toml
from transformer_annotated.workshop.journal import read_metrics
from transformer_annotated.workshop.recipe import (
    CorpusConfig,
    Recipe,
    TokenizerConfig,
    prepare,
    read_recipe,
    run_recipe,
)

SMALL = [
    "train_size=40",
    "valid_size=8",
    "layers=1",
    "d_model=16",
    "d_ff=16",
    "heads=2",
    "steps=2",
    "batch_tokens=200",
]


def small(*changes, name="copy"):
    """A recipe that is done in a moment."""
    return read_recipe(name, [*SMALL, *changes])


def go(recipe, folder, **options):
    """Carry out a recipe, without a progress bar."""
    return run_recipe(recipe, folder, progress_bar=False, **options)


# --- what comes with the package


def test_names():
    """Every recipe that the chapters speak of, sorted."""
    assert recipe_names() == [
        "copy",
        "everyday-de-en",
        "everyday-en-de",
        "gpt-english",
        "gpt-grammar",
        "grammar",
        "grammar-parsing",
        "gum-parsing",
        "lstm-attention-grammar",
        "lstm-grammar",
        "multi30k-en-de",
        "rnn-grammar",
        "tatoeba-de-en",
        "tatoeba-en-de",
        "wmt14-en-de-base",
        "wmt14-en-de-big",
        "wmt14-en-fr-base",
        "wmt14-en-fr-big",
        "wsj-parsing",
        "wsj-parsing-semi",
        "your-files",
    ]


@pytest.mark.parametrize("name", recipe_names())
def test_packaged_recipes(name):
    """Each says in its first line what it is for, and builds a model."""
    file = Path(module.__file__).parents[1] / "recipes" / f"{name}.toml"
    assert file.read_text().startswith("# ")
    recipe = read_recipe(name)
    assert isinstance(recipe, Recipe)
    assert recipe.training.checkpoint_every == recipe.training.validate_every
    for part in ("source", "target"):
        language = getattr(recipe.corpus, part)
        assert not language or f"-{language}" in f"-{name}" or "grammar" in name


WMT = {
    "wmt14-en-de-base": (TransformerConfig.base(1), 37_000, 100_000, 0.4, 5),
    "wmt14-en-de-big": (TransformerConfig.big(1), 37_000, 300_000, 1.0, 20),
    "wmt14-en-fr-base": (TransformerConfig.base(1), 32_000, 100_000, 0.4, 5),
    "wmt14-en-fr-big": (
        replace(TransformerConfig.big(1), dropout=0.1),
        32_000,
        300_000,
        1.0,
        20,
    ),
}


@pytest.mark.parametrize("name", WMT)
def test_the_papers_runs(name):
    """Sections 5.1 to 5.4 and 6.1, number by number."""
    model, vocabulary, steps, seconds, averaged = WMT[name]
    recipe = read_recipe(name)
    assert recipe.model == model
    sizes = {"base": (6, 512, 2048, 8, 0.1), "big": (6, 1024, 4096, 16, 0.3)}
    wanted = sizes[name.rpartition("-")[2]]
    if name == "wmt14-en-fr-big":
        wanted = (*wanted[:4], 0.1)
    shape = recipe.model
    assert wanted == (
        shape.layers,
        shape.d_model,
        shape.d_ff,
        shape.heads,
        shape.dropout,
    )
    assert not shape.pre_norm and not shape.learned_positions
    assert recipe.tokenizer.kind == "byte-pairs"
    assert recipe.tokenizer.vocab_size == vocabulary
    training = recipe.training
    assert training.steps == steps
    assert training.batch_tokens == 25_000
    assert (training.warmup, training.factor) == (4_000, 1.0)
    assert (training.label_smoothing, training.clip) == (0.1, 0.0)
    assert training.checkpoint_every * seconds == 600  # ten minutes
    assert training.keep == averaged
    assert (recipe.corpus.source, recipe.corpus.target) == (
        "en",
        "fr" if "fr" in name else "de",
    )
    assert name.startswith(recipe.corpus.name)


def test_the_base_recipe_is_the_default_of_the_code():
    """Who writes no recipe trains the paper's base model, too."""
    recipe = read_recipe("wmt14-en-de-base")
    assert replace(recipe.training, workers=0) == TrainingConfig()
    assert recipe.tokenizer == TokenizerConfig()
    assert recipe.model == TransformerConfig(1)


def test_multi30k_is_transformer_tiny():
    """The set-up of Wu et al. (2021), which gets 41.02 BLEU."""
    recipe = read_recipe("multi30k-en-de")
    model = replace(recipe.model, vocab_size=10_000)
    assert parameter_count(model) == pytest.approx(2.57e6, rel=0.02)
    assert (model.layers, model.d_model, model.d_ff, model.heads) == (
        4,
        128,
        256,
        4,
    )
    training = recipe.training
    peak = noam_rate(2_000, 128, training.warmup, training.factor)
    assert peak == pytest.approx(0.005, rel=0.001)
    assert (training.warmup, training.steps) == (2_000, 8_000)
    assert (training.batch_tokens, training.keep) == (8_192, 10)
    assert (model.dropout, training.label_smoothing) == (0.3, 0.1)
    assert recipe.corpus.variant == "tok"
    assert recipe.tokenizer.vocab_size == 10_000


# --- changes


@pytest.mark.parametrize(
    ("change", "table", "key", "value"),
    [
        ("steps=7", "training", "steps", 7),
        ("steps = 7 ", "training", "steps", 7),
        ("training.steps=7", "training", "steps", 7),
        ("model.dropout=0.25", "model", "dropout", 0.25),
        ("clip=1", "training", "clip", 1),
        ("batch_tokens=1_000", "training", "batch_tokens", 1000),
        ("compile=true", "training", "compile", True),
        ("kind=words", "tokenizer", "kind", "words"),
        ('kind="words"', "tokenizer", "kind", "words"),
        ("corpus.seed=4", "corpus", "seed", 4),
        ("training.seed=4", "training", "seed", 4),
        ("source_file=a=b.txt", "corpus", "source_file", "a=b.txt"),
        ("d_k=8", "model", "d_k", 8),
        ("source_file=", "corpus", "source_file", ""),
    ],
)
def test_changes(change, table, key, value):
    """By key alone or with its table; all else stays."""
    before, after = read_recipe("grammar"), read_recipe("grammar", [change])
    assert getattr(getattr(after, table), key) == value
    part = replace(
        getattr(after, table), **{key: getattr(getattr(before, table), key)}
    )
    assert replace(after, **{table: part}) == before


def test_later_changes_win():
    """In the order in which they are written."""
    recipe = read_recipe("copy", ["steps=3", "training.steps=4"])
    assert recipe.training.steps == 4


def test_changes_leave_the_packaged_recipe_alone():
    """Each reading starts from the file."""
    before = read_recipe("copy")
    assert read_recipe("copy", ["steps=3"]) != before
    assert read_recipe("copy") == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "seed=1",
            r"^--set seed=1: several tables have 'seed'; say "
            r"corpus\.seed or training\.seed$",
        ),
        (
            "stepz=1",
            r"^--set stepz=1: unknown key, 'stepz'; did you mean "
            r"'steps'\?",
        ),
        ("xyzzy=1", r"^--set xyzzy=1: unknown key, 'xyzzy'; known: name, "),
        (
            "training.stepz=1",
            r"^--set: unknown key in \[training\], 'stepz'; "
            r"did you mean 'steps'\?",
        ),
        (
            "train.steps=1",
            r"^--set: unknown table, 'train'; did you mean "
            r"'training'\?",
        ),
        ("a.b.steps=1", r"^--set: unknown table, 'a\.b'"),
        ("steps", r"^--set steps: expected key=value"),
        ("=5", r"^--set =5: expected key=value"),
        ("", r"^--set : expected key=value"),
        ("training.=5", r"^--set training\.=5: expected key=value"),
        ("steps=many", r"^--set: \[training\] steps: 'many', expected an int"),
        ("steps=1.5", r"^--set: \[training\] steps: 1\.5, expected an int"),
        ("steps=", r"^--set: \[training\] steps: '', expected an int"),
        ("steps=[1]", r"^--set: \[training\] steps: \[1\], expected an int"),
        ("steps=0", r"^--set: \[training\] steps: 0, expected at least 1"),
        ("layers=no", r"^--set: \[model\] layers: 'no', expected an int"),
        ("dropout=1.5", r"^--set: \[model\] dropout: 1\.5, expected"),
        ("heads=3", r"^--set: \[model\] .*heads"),
        ("kind=chars", r"^--set: \[tokenizer\] kind: 'chars', expected "),
        ("train_size=-1", r"^--set: \[corpus\] train_size: -1, expected at"),
        ("source=3", r"^--set: \[corpus\] source: 3, expected a str"),
        ("compile=yes", r"^--set: \[training\] compile: 'yes', expected True"),
        ("model.vocab_size=9", r"^--set: unknown key in \[model\], 'vocab_siz"),
        ("pad=1", r"^--set pad=1: unknown key, 'pad'"),
    ],
)
def test_bad_changes(change, message):
    """Each is refused by name, with what would do."""
    with pytest.raises(ValueError, match=message):
        read_recipe("copy", [change])


def test_values_nested_beyond_reason():
    """Five thousand brackets are a bad value like any other."""
    with pytest.raises(ValueError, match="steps"):
        read_recipe("copy", ["steps=" + "[" * 5000])


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
def test_any_change_is_carried_out_or_refused(key, value):
    """Nothing but a recipe or a ValueError comes back."""
    try:
        recipe = read_recipe("copy", [f"{key}={value}"])
    except ValueError as problem:
        assert "--set" in str(problem)
    else:
        assert isinstance(recipe, Recipe)


@given(
    name=st.sampled_from([f.name for f in fields(TrainingConfig)]),
    value=st.text("0123456789.-+einfatrusl[]'\" ", max_size=8),
)
def test_any_value_is_taken_or_refused(name, value):
    """What is taken is of the type that the field declares."""
    try:
        recipe = read_recipe("copy", [f"training.{name}={value}"])
    except ValueError as problem:
        assert str(problem).startswith(f"--set: [training] {name}: ")
    else:
        taken = getattr(recipe.training, name)
        wanted = type(getattr(TrainingConfig(), name))
        assert isinstance(taken, (wanted, int) if wanted is float else wanted)


# --- files


def test_a_recipe_of_ones_own(tmp_path):
    """A file; what it leaves out is as in the paper."""
    file = tmp_path / "mine.toml"
    file.write_text('[corpus]\nname = "copy"\n[training]\nsteps = 5\n')
    for name in (file, str(file)):
        recipe = read_recipe(name, ["warmup=7"])
        assert recipe.training == TrainingConfig(steps=5, warmup=7)
        assert recipe.model == TransformerConfig(1)
        assert recipe.tokenizer == TokenizerConfig()
        assert recipe.corpus == CorpusConfig(name="copy")


def test_unknown_names():
    """The nearest name, or all of them."""
    with pytest.raises(ValueError, match=r"'cpoy'; did you mean 'copy'\?"):
        read_recipe("cpoy")
    with pytest.raises(ValueError, match="'zzz'; known: copy, everyday"):
        read_recipe("zzz")
    with pytest.raises(ValueError, match="unknown recipe, ''"):
        read_recipe("")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[corpus\n", "not a TOML file: .*line 1"),
        (b"\xff\xfe", "not a TOML file"),
        (b"steps = 5\n", "unknown table, 'steps'"),
        (b"training = 5\n", "training is a value, expected a table"),
        (b"[trainig]\n", r"unknown table, 'trainig'; did you mean 'training'"),
        (b"[training]\nsteps = '5'\n", r"\[training\] steps: '5', expected"),
        (b"[training]\nstep = 5\n", r"unknown key in \[training\], 'step'; "),
        (b"[training.steps]\na = 1\n", r"\[training\] steps: {'a': 1}, exp"),
        (b"[model]\nvocab_size = 5\n", r"unknown key in \[model\], 'vocab_s"),
        (b"[model]\npad = 5\n", r"unknown key in \[model\], 'pad'"),
        (b"[model]\nd_model = 7\n", r"\[model\] .*d_model"),
        (b"[[model]]\n", "model is a value, expected a table"),
    ],
)
def test_bad_files(tmp_path, content, message):
    """The file's name, and what is wrong with it; no --set is blamed."""
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    for changes in ([], ["training.warmup=5"]):
        with pytest.raises(ValueError, match=f"bad.toml: .*{message}"):
            read_recipe(file, changes)


def test_files_that_cannot_be_read(tmp_path):
    """Missing, or a folder."""
    with pytest.raises(ValueError, match=r"no\.toml: no such file"):
        read_recipe(tmp_path / "no.toml")
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(ValueError, match=r"folder\.toml: a folder, expe"):
        read_recipe(tmp_path / "folder.toml")


@given(st.binary(max_size=80))
def test_any_bytes_are_a_recipe_or_refused(tmp_path_factory, content):
    """A ValueError that names the file, whatever is in it."""
    file = tmp_path_factory.mktemp("bytes") / "any.toml"
    file.write_bytes(content)
    try:
        read_recipe(file)
    except ValueError as problem:
        assert "any.toml: " in str(problem)


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@given(
    st.builds(
        CorpusConfig,
        name=names,
        source_file=names,
        train_size=st.integers(0, 10**9),
        seed=st.integers(0, 2**60),
    ),
    st.builds(
        TokenizerConfig,
        kind=st.sampled_from(["words", "byte-pairs"]),
        max_length=st.integers(1, 999),
    ),
    st.builds(
        TransformerConfig,
        vocab_size=st.just(1),
        d_model=st.integers(1, 50).map(lambda n: 4 * n),
        heads=st.sampled_from([1, 2, 4]),
        d_k=st.none() | st.integers(1, 64),
        dropout=st.floats(0, 0.99),
        pre_norm=st.booleans(),
    ),
    st.builds(
        TrainingConfig,
        steps=st.integers(1, 10**9),
        factor=st.floats(1e-9, 1e9),
        precision=st.sampled_from(["auto", "bf16", "float32"]),
        compile=st.booleans(),
    ),
)
def test_tables_make_the_same_recipe(
    tmp_path_factory, corpus, tokenizer, model, training
):
    """A recipe, written as TOML and read again, is the same recipe."""
    recipe = Recipe(corpus, tokenizer, model, training)
    file = tmp_path_factory.mktemp("toml") / "config.toml"
    write_toml(file, recipe.tables())
    assert read_recipe(file) == recipe
    assert (
        Recipe.from_tables(tomllib.loads(file.read_text("utf-8")), "") == recipe
    )


@pytest.mark.parametrize("name", recipe_names())
def test_tables_say_everything(name):
    """Every value is written, also those that a recipe left out."""
    recipe = read_recipe(name)
    tables = recipe.tables()
    assert list(tables) == ["corpus", "tokenizer", "model", "training"]
    for table, kind in (("corpus", CorpusConfig), ("training", TrainingConfig)):
        assert list(tables[table]) == [field.name for field in fields(kind)]
    assert tables["model"].keys() - {"kind"} == {
        field.name for field in fields(recipe.model)
    } - {"vocab_size", "pad", "d_k", "d_v"}
    text = tomli_w.dumps(tables)
    assert Recipe.from_tables(tomllib.loads(text), "") == recipe


def test_write_toml_is_all_or_nothing(tmp_path, monkeypatch):
    """What is there stays until the new file is whole."""
    file = tmp_path / "a.toml"
    write_toml(file, {"a": {"b": 1}})

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_toml(file, {"a": {"b": 2}})
    assert tomllib.loads(file.read_text()) == {"a": {"b": 1}}
    monkeypatch.undo()
    write_toml(file, {"a": {"b": 3}})
    assert os.listdir(tmp_path) == ["a.toml"]


# --- the corpus


def files(folder, source, target, stem="train"):
    """Two parallel files."""
    paths = [folder / f"{stem}.en", folder / f"{stem}.de"]
    for path, lines in zip(paths, (source, target), strict=True):
        path.write_text("".join(line + "\n" for line in lines), "utf-8")
    return [str(path) for path in paths]


def test_a_corpus_by_name():
    """Sizes, seed and direction reach the corpus; zeros mean as usual."""
    corpus = CorpusConfig("copy", train_size=7, valid_size=3).load()
    same = load_corpus("copy", train_size=7, valid_size=3)
    assert corpus.splits["train"] == same.splits["train"]
    assert len(corpus.splits["valid"]) == 3
    other = CorpusConfig("copy", train_size=7, seed=1).load()
    assert other.splits["train"] != same.splits["train"]
    assert len(other.splits["valid"]) == 1000
    german = CorpusConfig("grammar", "de", "en", train_size=5, depth=1).load()
    assert (german.source, german.target) == ("de", "en")
    known = load_corpus("grammar", "de", "en", train_size=5, depth=1)
    assert german.splits["train"] == known.splits["train"]


def test_a_corpus_from_files(tmp_path):
    """Names of files, languages, and what is held out or given."""
    words = [f"word{i}" for i in range(50)]
    a, b = files(tmp_path, words, words[::-1])
    corpus = CorpusConfig(source_file=a, target_file=b).load()
    assert (corpus.source, corpus.target) == ("en", "de")
    assert (len(corpus.splits["train"]), len(corpus.splits["valid"])) == (45, 5)
    corpus = CorpusConfig(
        source_file=a, target_file=b, source="fr", valid_size=2
    ).load()
    assert (corpus.source, len(corpus.splits["valid"])) == ("fr", 2)
    held = CorpusConfig(
        source_file=a, target_file=b, valid_size=2, seed=1
    ).load()
    assert list(held.splits["valid"]) != list(corpus.splits["valid"])
    c, d = files(tmp_path, ["one"], ["two"], "valid")
    given = CorpusConfig(
        source_file=a,
        target_file=b,
        valid_source_file=c,
        valid_target_file=d,
        train_size=9,
    ).load()
    assert list(given.splits["valid"]) == [("one", "two")]
    assert next(iter(given.splits["train"])) == ("word0", "word49")
    assert len(given.splits["train"]) == 9


def test_a_corpus_from_a_table(tmp_path):
    """One file with tabs, for training and for validation."""
    table = tmp_path / "a.tsv"
    table.write_text("".join(f"a{i}\tb{i}\n" for i in range(20)))
    other = tmp_path / "b.tsv"
    other.write_text("c\td\n")
    corpus = CorpusConfig(
        source_file=str(table), valid_source_file=str(other)
    ).load()
    assert list(corpus.splits["valid"]) == [("c", "d")]
    assert len(corpus.splits["train"]) == 20


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({}, "source_file"),
        ({"source": "en"}, "source_file"),
        ({"target_file": "b"}, "source_file"),
        ({"name": "copy", "source_file": "a"}, "source_file"),
        ({"name": "copy", "target_file": "a"}, "target_file"),
        ({"name": "copy", "valid_source_file": "a"}, "valid_source_file"),
        ({"source_file": "a", "depth": 2}, "depth"),
        ({"source_file": "a", "variant": "tok"}, "variant"),
        ({"source_file": "a", "folder": "x"}, "folder"),
        ({"source_file": "a", "valid_target_file": "x"}, "valid_target_file"),
    ],
)
def test_corpora_that_cannot_be_meant(config, name):
    """Neither a name nor files, or something of both."""
    with pytest.raises(ValueError, match=f"corpus.*{name}"):
        CorpusConfig(**config).load()


# --- the vocabulary


def corpus_of(train, valid, source="", target=""):
    """A corpus in memory."""
    return Corpus("mine", source, target, {"train": train, "valid": valid})


@pytest.mark.parametrize("kind", ["words", "byte-pairs"])
def test_the_vocabulary_is_of_the_training_part_alone(kind):
    """A word of the validation part is unknown, or in pieces."""
    train = [("apple tree", "apfel baum")] * 5
    corpus = corpus_of(train, [("zebra crossing", "zebra streifen")] * 9)
    config = TokenizerConfig(kind, vocab_size=300)
    tokenizer = config.train(corpus)
    if kind == "words":
        assert tokenizer.encode("zebra", "") == [UNK]
        assert UNK not in tokenizer.encode("apple tree apfel baum", "")
    else:
        assert len(tokenizer.encode("zebra")) == 5
        assert len(tokenizer.encode("apple")) == 1


@pytest.mark.parametrize("kind", ["words", "byte-pairs"])
def test_lines_that_are_no_text_are_not_learned(kind):
    """A line that no limit would let pass teaches nothing, on either side."""
    good = ("word word", "wort wort")
    config = TokenizerConfig(kind, max_length=3)
    known = config.train(corpus_of([good], []))
    for bad in (("bad " * 76, "x"), ("x", "bad " * 76)):
        found = config.train(corpus_of([good, bad], []))
        assert found.vocab_size == known.vocab_size
    limit = ("bad " * 75, "x")  # 300 letters
    found = config.train(corpus_of([good, limit], []))
    assert found.vocab_size > known.vocab_size


def test_words_are_cut_by_the_rules_of_their_language():
    """Two languages, one vocabulary; one language for both sides, too."""
    pairs = [("don't go", "geh nicht z.B.")] * 2
    two = TokenizerConfig("words").train(corpus_of(pairs, [], "en", "de"))
    assert two.decode(two.encode("don't", "en")) == "do n't"
    assert two.decode(two.encode("z.B. geh", "de")) == "z.B. geh"
    one = TokenizerConfig("words").train(corpus_of(pairs, []))
    assert one.decode(one.encode("don't z.B.", "")) == "don't z.B."


def test_rare_words_and_sizes():
    """Minimum frequency and size are those of the recipe."""
    corpus = corpus_of([("a a b", "a c c")], [])
    words = TokenizerConfig("words", min_frequency=2).train(corpus)
    assert words.decode(words.encode("a b c", "")) == "a c"
    corpus = corpus_of([("banana " * 9, "bandana " * 9)], [])
    for size in (262, 265):
        pairs = TokenizerConfig(vocab_size=size).train(corpus)
        assert pairs.vocab_size == size
    rare = TokenizerConfig(min_frequency=1000).train(corpus)
    assert rare.vocab_size == 260


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"kind": "chars"}, "kind: 'chars', expected 'byte-pairs' or 'words'"),
        ({"kind": 3}, "kind: 3, expected a str"),
        ({"vocab_size": 1.5}, "vocab_size: 1.5, expected an int"),
        ({"max_length": -1}, "max_length: -1, expected at least 1"),
        ({"max_length": 0}, "max_length: 0, expected at least 1"),
        ({"bpe_dropout": 1.0, "bpe_dropout_copies": 1}, "bpe_dropout: 1.0, "),
        ({"bpe_dropout": 0.1}, "bpe_dropout, bpe_dropout_copies: one is 0"),
        ({"bpe_dropout_copies": 1}, "bpe_dropout, bpe_dropout_copies: one"),
        (
            {"kind": "words", "bpe_dropout": 0.1, "bpe_dropout_copies": 1},
            "bpe_dropout: only for byte-pairs",
        ),
    ],
)
def test_bad_tokenizers(config, message):
    """Refused by name."""
    with pytest.raises(ValueError, match=f"^{message}"):
        TokenizerConfig(**config)


def test_bad_corpora():
    """Refused by name."""
    with pytest.raises(ValueError, match=r"^name: None, expected a str"):
        CorpusConfig(None)
    with pytest.raises(ValueError, match=r"^valid_size: -2, expected at"):
        CorpusConfig("copy", valid_size=-2)


# --- preparing


def stamps(folder):
    """When each file below a folder was written, and which it is."""
    return {
        path: (path.stat().st_mtime_ns, path.stat().st_ino)
        for path in sorted(folder.rglob("*"))
        if path.name != ".lock" and path.is_file()
    }


def test_prepare_leaves_what_training_needs(tmp_path):
    """A tokenizer, two folders of ids, and a note of what was asked."""
    ready = prepare(small(), tmp_path / "deep" / "data")
    assert (len(ready.train), len(ready.valid)) == (40, 8)
    assert ready.train.vocab_size == ready.tokenizer.vocab_size
    folder = tmp_path / "deep" / "data"
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {"tokenizer.json", "train", "valid", "prepared.toml"}
    (pair,) = load_corpus("copy", train_size=40).splits["train"][:1]
    ids = ready.tokenizer.encode(pair[0], "")
    assert ready.train.source(0).tolist() == ids
    note = tomllib.loads((folder / "prepared.toml").read_text())
    assert note.keys() == {"corpus", "tokenizer", "files"}


def test_prepare_does_nothing_the_second_time(tmp_path, monkeypatch):
    """Nothing is loaded, learned or written."""
    first = prepare(small(), tmp_path)
    before = stamps(tmp_path)
    for name in ("load_corpus", "train_word_tokenizer", "encode_pairs"):
        monkeypatch.setattr(module, name, None)
    again = prepare(small("steps=99", "dropout=0.3"), tmp_path)
    assert stamps(tmp_path) == before
    assert len(again.train) == len(first.train)
    assert again.tokenizer.vocab_size == first.tokenizer.vocab_size


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train_size=41", "corpus.train_size is 40 there, and 41 here"),
        ("max_length=9", "tokenizer.max_length is 256 there, and 9 here"),
        ("name=reverse", "corpus.name is 'copy' there, and 'reverse' here"),
    ],
)
def test_data_of_another_recipe_is_refused(tmp_path, change, message):
    """With the folder, and what differs; nothing is overwritten."""
    prepare(small(), tmp_path)
    before = stamps(tmp_path)
    with pytest.raises(ValueError, match=f"{tmp_path}: .*another.* {message}"):
        prepare(small(change), tmp_path)
    assert stamps(tmp_path) == before


@pytest.mark.parametrize("note", ["", "[corpus]\n", "+"])
def test_data_of_another_version_is_refused(tmp_path, note):
    """A note with other keys than ours is no reason to fall over."""
    prepare(small(), tmp_path)
    file = tmp_path / "prepared.toml"
    if note == "+":
        note = file.read_text() + "\n[new]\nkey = 1\n"
    file.write_text(note)
    with pytest.raises(ValueError, match="holds data of another recipe"):
        prepare(small(), tmp_path)


def test_files_that_have_changed_are_noticed(tmp_path):
    """In a line that names the file; the same text at another time passes."""
    words = [f"word{i}" for i in range(50)]
    paths = files(tmp_path, words, words[::-1])
    recipe = small(
        *map("{}={}".format, ("source_file", "target_file"), paths),
        "train_size=0",
        name="your-files",
    )
    folder = tmp_path / "data"
    first = prepare(recipe, folder)
    Path(paths[0]).touch()
    before = stamps(folder)
    assert len(prepare(recipe, folder).train) == len(first.train)
    for change in ("wort0", "wo"):  # as long as it was, and shorter
        files(tmp_path, [change, *words[1:]], words[::-1])
        os.utime(paths[0], ns=(1, 1))
        with pytest.raises(ValueError, match=r"train\.en, which has changed"):
            prepare(recipe, folder)
    assert stamps(folder) == before
    Path(paths[0]).unlink()
    assert len(prepare(recipe, folder).train) == len(first.train)


@pytest.mark.parametrize("part", ["train", "dev"])
def test_trees_that_have_changed_are_noticed(tmp_path, part):
    """Those to train on as well as those to validate on."""
    paths = {name: tmp_path / f"{name}.ptb.tsv" for name in ("train", "dev")}
    for path in paths.values():
        path.write_text("x\t(ROOT (NP (NN word)))\n" * 5)
    recipe = read_recipe(
        "gum-parsing", [f"corpus.folder={tmp_path}", "vocab_size=280"]
    )
    folder = tmp_path / "data"
    prepare(recipe, folder)
    paths[part].touch()
    assert len(prepare(recipe, folder).train) == 5
    for tree in ("(ROOT (NP (NN wort)))", "(ROOT (NN word))"):
        paths[part].write_text(f"x\t{tree}\n" * 5)
        os.utime(paths[part], ns=(1, 1))
        name = rf"{part}\.ptb\.tsv, which has changed"
        with pytest.raises(ValueError, match=name):
            prepare(recipe, folder)


def test_the_training_part_alone_is_encoded_with_dropout(tmp_path):
    """So many more times; none without byte pairs."""
    changes = "kind=byte-pairs", "bpe_dropout=0.5", "bpe_dropout_copies=2"
    ready = prepare(small("vocab_size=300", *changes), tmp_path)
    assert (len(ready.train), len(ready.valid)) == (120, 8)
    plain, once = ready.train.source(0).tolist(), ready.train.source(40)
    assert ready.tokenizer.decode(once) == ready.tokenizer.decode(plain)
    assert ready.train.source_lengths[40:].sum() > (
        2 * ready.train.source_lengths[:40].sum()
    )


def test_a_preparation_that_failed_is_done_again(tmp_path, monkeypatch):
    """Without the note, nothing counts as prepared."""
    real = module.encode_pairs

    def stop(pairs, tokenizer, folder, *rest, **more):
        if folder.name == "valid":
            raise KeyboardInterrupt
        return real(pairs, tokenizer, folder, *rest, **more)

    monkeypatch.setattr(module, "encode_pairs", stop)
    with pytest.raises(KeyboardInterrupt):
        prepare(small(), tmp_path)
    assert not (tmp_path / "prepared.toml").exists()
    monkeypatch.undo()
    assert len(prepare(small(), tmp_path).valid) == 8


def test_long_sentences_are_left_out(tmp_path):
    """As the recipe says."""
    ready = prepare(small("max_length=9"), tmp_path)
    assert ready.train.skipped > 0
    assert len(ready.train) + ready.train.skipped == 40
    assert ready.train.source_lengths.max() == 9


def test_a_corpus_without_validation(tmp_path, monkeypatch):
    """Nothing to validate on is not an error."""
    pairs = [("a b", "b a")] * 9
    corpus = Corpus("mine", "", "", {"train": pairs})
    monkeypatch.setattr(CorpusConfig, "load", lambda config: corpus)
    ready = prepare(small(), tmp_path)
    assert ready.valid is None and len(ready.train) == 9
    assert go(small(), tmp_path / "run").step == 2
    assert not any("valid_nll" in r for r in read_metrics(tmp_path / "run"))


def prepare_there(folder, meeting, report):
    """Prepare, and report what there is and how often it was made."""
    torch.set_num_threads(1)
    made, real, mkdir = [], module._prepare, Path.mkdir

    def counting(recipe, folder):
        made.append(folder)
        return real(recipe, folder)

    def together(path, *args, **options):
        Path.mkdir = mkdir
        meeting.wait()  # both have found nothing yet
        mkdir(path, *args, **options)

    module._prepare = counting
    Path.mkdir = together
    ready = prepare(small(), folder)
    report.send((len(made), len(ready.train), ready.tokenizer.vocab_size))


def test_two_processes_prepare_once(tmp_path):
    """One does the work, the other waits for it."""
    meeting = NURSERY.Barrier(2)
    pipes = [NURSERY.Pipe(duplex=False) for _ in range(2)]
    processes = [
        NURSERY.Process(
            target=prepare_there, args=(tmp_path / "data", meeting, theirs)
        )
        for _, theirs in pipes
    ]
    for process in processes:
        process.start()
    for _, theirs in pipes:  # so that a process that dies ends the waiting
        theirs.close()
    answers = [ours.recv() for ours, _ in pipes]
    for process in processes:
        process.join()
        assert process.exitcode == 0
        process.close()
    for ours, _ in pipes:
        ours.close()
    assert sorted(made for made, *_ in answers) == [0, 1]
    assert answers[0][1:] == answers[1][1:] == (40, answers[0][2])


# --- the run


def test_run_leaves_all_that_belongs_to_it(tmp_path):
    """The recipe, the tokenizer, the metrics, checkpoints, a lock."""
    progress = go(small(), tmp_path)
    assert progress.step == 2
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "config.toml",
        "tokenizer.json",
        "metrics.jsonl",
        "checkpoints",
        "data",
        ".lock",
    }
    assert read_recipe(tmp_path / "config.toml") == small()
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    (path,) = list_checkpoints(tmp_path / "checkpoints")
    assert path.name == "step-2"
    weights = torch.load(path / "training.pt", weights_only=True)
    assert weights["settings"]["vocab_size"] == tokenizer.vocab_size


def test_the_seed_decides_the_first_values(tmp_path):
    """Two runs with one seed agree; dice in between change nothing."""
    losses = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        torch.rand(3)
        folder = tmp_path / name
        go(small(f"training.seed={seed}", "log_every=1"), folder)
        losses.append([row["loss"] for row in read_metrics(folder)])
    assert losses[0] == losses[1] != losses[2]


def test_run_with_data_prepared_elsewhere(tmp_path):
    """Data is neither made again nor moved; the run's folder is made."""
    prepare(small(), tmp_path / "data")
    before = stamps(tmp_path / "data")
    recipe = small(f"prepared={tmp_path / 'data'}")
    go(recipe, tmp_path / "deep" / "run")
    assert stamps(tmp_path / "data") == before
    assert read_recipe(tmp_path / "deep" / "run" / "config.toml") == recipe
    assert not (tmp_path / "deep" / "run" / "data").exists()
    assert (tmp_path / "deep" / "run" / "checkpoints" / "step-2").exists()


def test_a_run_that_is_refused_leaves_the_other_alone(tmp_path):
    """Neither its recipe nor its tokenizer is overwritten."""
    go(small(), tmp_path)
    before = stamps(tmp_path)
    with pytest.raises(ValueError, match="holds a run already"):
        go(small("d_ff=32"), tmp_path)
    with pytest.raises(ValueError, match="warmup: 9"):
        go(small("warmup=9", "steps=3"), tmp_path, resume=True)
    assert stamps(tmp_path) == before
    assert (
        go(read_recipe(tmp_path / "config.toml"), tmp_path, resume=True).step
        == 2
    )


def test_a_resume_notes_what_changed(tmp_path):
    """The recipe in the folder is that of the last run."""
    go(small(), tmp_path)
    assert go(small("steps=3"), tmp_path, resume=True).step == 3
    assert read_recipe(tmp_path / "config.toml").training.steps == 3


def test_other_workers_write_nothing(tmp_path, monkeypatch):
    """Only the first writes recipe and tokenizer."""
    seen = {}

    def look(
        model,
        train,
        valid,
        config,
        folder,
        resume,
        worker,
        progress_bar,
        on_start,
        learner,
    ):
        seen.update(model=model, worker=worker, valid=valid, resume=resume)

    monkeypatch.setattr(module, "train", look)
    worker, folder = Worker(1, 2), tmp_path / "run"
    go(small(f"prepared={tmp_path}"), folder, resume=True, worker=worker)
    assert not folder.exists()
    assert seen["worker"] is worker and seen["resume"] is True
    assert len(seen["valid"]) == 8
    assert seen["model"].config.d_model == 16


def crash_here(folder, moment):
    """Prepare, but die at the n-th rename."""
    real, count = os.rename, 0

    def rename(*args):
        nonlocal count
        count += 1
        if count == moment:
            os._exit(9)
        real(*args)

    os.rename = rename
    prepare(small(), folder)


@pytest.mark.parametrize("moment", [1, 2])
def test_a_preparation_that_was_killed_is_done_again(tmp_path, moment):
    """The lock of the dead is no obstacle, and half of it does not count."""
    assert at_once(crash_here, tmp_path, moment) == 9
    assert not (tmp_path / "prepared.toml").exists()
    ready = prepare(small(), tmp_path)
    assert (len(ready.train), len(ready.valid)) == (40, 8)


@pytest.mark.parametrize(
    "change",
    [
        {"corpus": ["a"]},
        {"corpus": {"source": ["en"]}},
        {"corpus": {"target": 3}},
        {"tokenizer": "x"},
        {"files": ["a"]},
        {"files": {"a": "b"}},
        {"files": {"/dev/null": {"size": [1], "modified": 0, "digest": ""}}},
        {"files": {"/dev/null": {}}},
    ],
)
def test_a_note_with_values_of_other_types_is_named(tmp_path, change):
    """Lists where strings belong; what to do is said, and nothing changed."""
    prepare(small(), tmp_path)
    note = tmp_path / "prepared.toml"
    tables = tomllib.loads(note.read_text())
    for table, value in change.items():
        if isinstance(value, dict):
            value = tables.get(table, {}) | value
        tables[table] = value
    note.write_text(tomli_w.dumps(tables))
    before = stamps(tmp_path)
    with pytest.raises(ValueError, match=rf"^{note}: damaged; delete "):
        prepare(small(), tmp_path)
    assert stamps(tmp_path) == before


def test_a_note_that_is_no_toml_is_named(tmp_path):
    """And so is one that is no file."""
    prepare(small(), tmp_path)
    note = tmp_path / "prepared.toml"
    for content in (b"a = ", b"\xff", b"a = " + b"9" * 5000, b"[" * 5000):
        note.write_bytes(content)
        with pytest.raises(ValueError, match=f"^{note}: not a TOML file"):
            prepare(small(), tmp_path)
    note.write_bytes(b"#" * 10**6 + b"#")
    with pytest.raises(ValueError, match=f"^{note}: 1,000,001 bytes, expected"):
        prepare(small(), tmp_path)
    note.unlink()
    os.mkfifo(note)
    with pytest.raises(ValueError, match=f"^{note}: expected a regular file"):
        prepare(small(), tmp_path)


def test_a_drawn_corpus_has_an_end():
    """It is in memory, all of it."""
    for name in ("copy", "grammar"):
        with pytest.raises(ValueError, match=r"^train_size: .* most 1,000,000"):
            small("train_size=1000000000", name=name).corpus.load()
