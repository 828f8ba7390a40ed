"""Corpora are what their names say, from files, folders or the Hub."""

import os
import re
from pathlib import Path

import pytest
from datasets import Dataset, Features, Translation, Value

from tests.helpers import write
from transformer_annotated.workshop.corpora import (
    CATALOGUE,
    ArrowPairs,
    Corpus,
    CorpusNotFound,
    corpus_from_files,
    load_corpus,
)
from transformer_annotated.workshop.files import CorpusError
from transformer_annotated.workshop.parallel import read_pairs
from transformer_annotated.workshop.sampling import sample_sentences

SHARED = Path(
    os.environ.get("TRANSFORMER_ANNOTATED_DATA")
    or Path(__file__).parents[2] / "shared" / "data"
)


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    """Corpora are where a test puts them, and nowhere else."""
    monkeypatch.delenv("TRANSFORMER_ANNOTATED_DATA", raising=False)


def sentence_sets(corpus):
    """For each split, its sources and its targets."""
    return {
        split: [set(side) for side in zip(*pairs, strict=True)]
        for split, pairs in corpus.splits.items()
    }


def check_disjoint(corpus):
    """No sentence of either side is in two splits."""
    sets = list(sentence_sets(corpus).values())
    assert len(sets) > 1
    for i, ours in enumerate(sets):
        for theirs in sets[:i]:
            assert not ours[0] & theirs[0]
            assert not ours[1] & theirs[1]


def test_your_own_files_become_a_corpus(tmp_path):
    """Languages by the names, and a validation part that was held out."""
    a = write(tmp_path / "my.en.gz", [f"one {i}" for i in range(40)], "gz")
    b = write(tmp_path / "my.de", [f"eins {i}" for i in range(40)])
    corpus = corpus_from_files(a, b)
    assert (corpus.source, corpus.target) == ("en", "de")
    assert [len(p) for p in corpus.splits.values()] == [36, 4]
    check_disjoint(corpus)
    again = corpus_from_files(a, b)
    assert list(again.splits["valid"]) == list(corpus.splits["valid"])
    assert repr(corpus) == "Corpus('my.en.gz', en → de, train 36, valid 4)"
    corpus = corpus_from_files(a, b, valid=[a, b], test=[a, b], train_size=7)
    assert list(corpus.splits["train"]) == list(read_pairs(a, b))[:7]
    assert [len(p) for p in corpus.splits.values()] == [7, 40, 40]


def test_languages_of_your_own_files(tmp_path):
    """Names that say nothing mean no language; arguments come first."""
    lines = [f"a {i}\tb {i}" for i in range(20)]
    named = write(tmp_path / "x.en-de.tsv", lines)
    plain = write(tmp_path / "x.tsv", lines)
    assert (
        corpus_from_files(named).source + corpus_from_files(named).target
        == "ende"
    )
    assert (
        corpus_from_files(plain).source == corpus_from_files(plain).target == ""
    )
    corpus = corpus_from_files(named, source="fr", target="it", valid=plain)
    assert (corpus.source, corpus.target) == ("fr", "it")
    assert corpus_from_files(plain, named, valid=plain).source == ""
    with pytest.raises(ValueError, match="valid: 3 files"):
        corpus_from_files(plain, valid=[plain] * 3)
    with pytest.raises(ValueError, match="train_size: 21, but there are 20"):
        corpus_from_files(plain, valid=plain, train_size=21)
    with pytest.raises(ValueError, match="train_size: 0"):
        corpus_from_files(plain, valid=plain, train_size=0)


# Names


@pytest.mark.parametrize("name", ["copy", "reverse"])
def test_letters_to_copy_or_reverse(name):
    """Blank-separated letters, the same for a seed, each line once."""
    corpus = load_corpus(
        name, train_size=300, valid_size=20, test_size=10, seed=3
    )
    assert [len(p) for p in corpus.splits.values()] == [300, 20, 10]
    check_disjoint(corpus)
    lengths = set()
    for source, target in corpus.splits["train"]:
        letters = source.split(" ")
        lengths.add(len(letters))
        assert all(re.fullmatch("[a-z]", letter) for letter in letters)
        step = 1 if name == "copy" else -1
        assert target.split(" ") == letters[::step]
    assert lengths == set(range(3, 13))
    again = load_corpus(
        name, train_size=300, valid_size=20, test_size=10, seed=3
    )
    assert again == corpus
    assert (
        load_corpus(name, train_size=300).splits["train"]
        != corpus.splits["train"]
    )
    assert len(load_corpus(name).splits["train"]) == 20_000


def test_grammar_in_both_directions():
    """The same sentences, the sides swapped; splits without overlap."""
    sizes = {"train_size": 400, "valid_size": 50, "test_size": 50}
    there = load_corpus("grammar", seed=1, **sizes)
    back = load_corpus("grammar", source="de", seed=1, **sizes)
    assert (there.source, there.target) == ("en", "de")
    assert (back.source, back.target) == ("de", "en")
    assert [p[::-1] for p in there.splits["test"]] == back.splits["test"]
    check_disjoint(there)
    drawn = sample_sentences(50, seed=1, depth=2, split="test")
    assert [p.english for p in drawn] == [a for a, _ in there.splits["test"]]
    deep = load_corpus("grammar", depth=0, seed=1, **sizes)
    assert deep.splits["train"] != there.splits["train"]


def test_wrong_arguments_are_named():
    """Names, variants, directions and sizes."""
    with pytest.raises(CorpusError, match="did you mean 'multi30k'"):
        load_corpus("multi3k")
    with pytest.raises(CorpusError, match="known: copy, reverse"):
        load_corpus("zzz")
    with pytest.raises(ValueError, match="variant: 'low'"):
        load_corpus("multi30k", variant="low")
    with pytest.raises(ValueError, match="variant: 'tok'"):
        load_corpus("tatoeba", variant="tok")
    with pytest.raises(ValueError, match="source, target: 'fr', None"):
        load_corpus("grammar", source="fr")
    with pytest.raises(ValueError, match="source, target: 'de', 'de'"):
        load_corpus("grammar", source="de", target="de")
    with pytest.raises(ValueError, match="valid_size: 0"):
        load_corpus("copy", valid_size=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Stand-ins with the names, and numbers of lines, of real corpora."""
    folder = tmp_path_factory.mktemp("data")
    sizes = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}
    for stem, size in sizes.items():
        packed = "gz" if stem == "train" else None
        for kind, middle in (("raw", ""), ("tok", ".lc.norm.tok")):
            for language in ("en", "de"):
                name = f"{stem}{middle}.{language}" + (".gz" if packed else "")
                lines = [f"{kind} {stem} {language} {i}" for i in range(size)]
                write(folder / "multi30k" / kind / name, lines, packed)
    for stem, size in (("train", 500), ("val", 20)):
        lines = [f"{stem} {i}\t{stem.upper()} de {i}" for i in range(size)]
        write(folder / "tatoeba" / f"{stem}.en-de.tsv.gz", lines, "gz")
    for language in ("en", "de"):
        lines = [f"news {language} {i}" for i in range(3000)]
        write(folder / "newstest" / f"newstest2013.{language}", lines)
    return folder


def folders(folder, name):
    """The stand-ins, and the real corpus where it is."""
    return [folder, *([SHARED] if (SHARED / name).is_dir() else [])]


def test_multi30k_from_a_folder(folder):
    """Raw and tokenised, in both directions, with the published sizes."""
    for place in folders(folder, "multi30k"):
        raw = load_corpus("multi30k", folder=place)
        sizes = {split: len(pairs) for split, pairs in raw.splits.items()}
        assert sizes == {"train": 29_000, "valid": 1_014, "test": 1_000}
        assert (raw.source, raw.target) == ("en", "de")
        back = load_corpus("multi30k", source="de", folder=place)
        assert back.splits["valid"][7] == raw.splits["valid"][7][::-1]
        tok = load_corpus("multi30k", variant="tok", folder=place)
        assert [len(p) for p in tok.splits.values()] == list(sizes.values())
        assert tok.splits["train"][0] != raw.splits["train"][0]
        lower = [a == a.lower() for a, _ in tok.splits["valid"]]
        assert all(lower)
    assert raw.name == "multi30k"
    if place == SHARED:
        english, german = raw.splits["valid"][0]
        assert english.startswith("A group of men are loading cotton")
        assert german.startswith("Eine Gruppe von Männern lädt")


def test_tatoeba_from_a_folder(folder):
    """One table, English first, whichever side is the source."""
    for place in folders(folder, "tatoeba"):
        corpus = load_corpus("tatoeba", folder=place)
        back = load_corpus("tatoeba", target="en", folder=place)
        assert (back.source, back.target) == ("de", "en")
        assert back.splits["valid"][3] == corpus.splits["valid"][3][::-1]
        check_disjoint(corpus)
        few = load_corpus("tatoeba", folder=place, train_size=9, valid_size=4)
        assert [len(p) for p in few.splits.values()] == [9, 4]
        first = [corpus.splits["train"][i] for i in range(9)]
        assert list(few.splits["train"]) == first
    if place == SHARED:
        assert [len(p) for p in corpus.splits.values()] == [165_813, 2_000]
        assert corpus.splits["valid"][0][0].startswith("Tom is afraid")


def test_newstest_from_a_folder(folder):
    """The paper's development set, by itself."""
    for place in folders(folder, "newstest"):
        corpus = load_corpus("newstest2013", folder=place)
        assert list(corpus.splits) == ["valid"]
        assert len(corpus.splits["valid"]) == 3000


def test_validation_is_held_out_where_there_is_none(tmp_path):
    """A folder with training text alone gives two splits without overlap."""
    lines = [f"one {i}\teins {i}" for i in range(300)]
    write(tmp_path / "tatoeba" / "train.en-de.tsv", lines)
    corpus = load_corpus("tatoeba", folder=tmp_path, valid_size=25)
    assert [len(p) for p in corpus.splits.values()] == [275, 25]
    check_disjoint(corpus)


def test_folders_are_searched_in_order(folder, tmp_path, monkeypatch):
    """The argument, the variable, data, ../shared/data; then the Hub."""
    here = tmp_path / "shared" / "here"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setattr("datasets.load_dataset", no_network)

    def make(place, word):
        lines = [f"{word} {i}\t{word} {i}" for i in range(20)]
        write(place / "tatoeba" / "train.en-de.tsv", lines)

    def first():
        return load_corpus("tatoeba").splits["train"][0][0].split()[0]

    with pytest.raises(CorpusNotFound, match="go online, or put tatoeba/train"):
        first()
    make(tmp_path / "shared" / "shared" / "data", "far")
    with pytest.raises(CorpusNotFound):
        load_corpus("tatoeba", folder=folder / "multi30k")
    monkeypatch.chdir(tmp_path / "shared")
    (tmp_path / "shared" / "below").mkdir()
    monkeypatch.chdir(tmp_path / "shared" / "below")
    assert first() == "far"
    make(tmp_path / "shared" / "below" / "data", "near")
    assert first() == "near"
    make(tmp_path / "named", "named")
    monkeypatch.setenv("TRANSFORMER_ANNOTATED_DATA", str(tmp_path / "named"))
    assert first() == "named"
    make(tmp_path / "given", "given")
    given_first = load_corpus("tatoeba", folder=tmp_path / "given")
    assert given_first.splits["train"][0][0].startswith("given")
    with pytest.raises(CorpusError, match="is not a folder"):
        load_corpus("tatoeba", folder=tmp_path / "gven")


def test_incomplete_corpora_are_refused(folder, tmp_path):
    """A missing pair, or a missing side, is an error with numbers or names."""
    for language in ("en", "de"):
        lines = [f"{language} {i}" for i in range(28_999)]
        write(tmp_path / "multi30k" / "raw" / f"train.{language}", lines)
    with pytest.raises(CorpusError, match="28,999 pairs, expected 29,000"):
        load_corpus("multi30k", folder=tmp_path)
    for language in ("en", "de"):
        with open(tmp_path / "multi30k/raw" / f"train.{language}", "a") as file:
            file.write("one more\n")
    with pytest.raises(CorpusError, match="valid: 0 pairs, expected 1,014"):
        load_corpus("multi30k", folder=tmp_path)
    for language in ("en", "de"):
        lines = [f"{language} {i}" for i in range(1_014)]
        write(tmp_path / "multi30k" / "raw" / f"val.{language}", lines)
    assert list(load_corpus("multi30k", folder=tmp_path).splits) == [
        "train",
        "valid",
    ]
    (tmp_path / "multi30k" / "raw" / "val.de").unlink()
    with pytest.raises(CorpusError, match=r"val\.de: no such file"):
        load_corpus("multi30k", folder=tmp_path)
    (tmp_path / "multi30k" / "raw" / "train.de").unlink()
    with pytest.raises(CorpusError, match=r"train\.de: no such file"):
        load_corpus("multi30k", folder=tmp_path)
    with pytest.raises(
        CorpusNotFound, match="not found; put wmt14-en-de/train"
    ):
        load_corpus("wmt14-en-de", folder=folder)


# The Hub


def no_network(*args, **kwargs):
    """What the library does without a network."""
    raise ConnectionError("Couldn't reach it\non the Hub")


class Large(Dataset):
    """A dataset that says it is larger than it is."""

    said = 0

    def __len__(self):
        """The number that was set."""
        return self.said or super().__len__()


def hub(monkeypatch, rows, features, sizes):
    """Put a dataset in the place of the Hub; return how it was asked for."""
    asked = []

    def load_dataset(*args, **kwargs):
        asked.append((args, kwargs))
        parts = {}
        for part, size in sizes.items():
            parts[part] = Dataset.from_list(rows, features=features)
            parts[part].__class__ = Large
            parts[part].said = size
        return parts

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    return asked


@pytest.mark.parametrize(
    ("name", "config", "other", "pairs", "said"),
    [
        ("wmt14-en-de", "de-en", "de", 4_508_785, 4.5e6),
        ("wmt14-en-fr", "fr-en", "fr", 40_836_715, 40.8e6),
    ],
)
def test_wmt14_has_its_millions(
    monkeypatch, tmp_path, name, config, other, pairs, said
):
    """Sizes are declared and checked, and the version is a commit."""
    monkeypatch.chdir(tmp_path)
    features = Features({"translation": Translation(languages=[other, "en"])})
    rows = [
        {"translation": {"en": f"one {i}", other: f"un {i}"}} for i in range(9)
    ]
    sizes = {"train": pairs, "validation": 3_000, "test": 3_003}
    asked = hub(monkeypatch, rows, features, sizes)
    corpus = load_corpus(name)
    assert asked[0][0] == ("wmt/wmt14", config)
    assert re.fullmatch("[0-9a-f]{40}", asked[0][1]["revision"])
    assert (corpus.source, corpus.target) == ("en", other)
    assert (
        len(corpus.splits["train"]) == pairs == CATALOGUE[name].sizes["train"]
    )
    assert abs(pairs / said - 1) < 0.01
    assert corpus.splits["train"][2] == ("one 2", "un 2")
    back = load_corpus(name, source=other)
    assert back.splits["valid"][2] == ("un 2", "one 2")
    for part in sizes:
        hub(monkeypatch, rows, features, {**sizes, part: sizes[part] - 1})
        with pytest.raises(CorpusError, match=f"expected {sizes[part]:,}"):
            load_corpus(name)


def test_multi30k_and_tatoeba_on_the_hub(monkeypatch, tmp_path):
    """Columns of plain text; Tatoeba's validation part is held out."""
    monkeypatch.chdir(tmp_path)
    text = Value("string")
    rows = [{"de": "eins", "en": "one"}, {"de": None, "en": "two"}]
    sizes = {"train": 29_000, "validation": 1_014, "test": 1_000}
    asked = hub(monkeypatch, rows, Features(de=text, en=text), sizes)
    corpus = load_corpus("multi30k")
    assert asked[0][0] == ("bentrevett/multi30k", None)
    assert corpus.splits["test"][1] == ("two", "")
    assert list(corpus.splits["test"]) == [("one", "eins"), ("two", "")]
    with pytest.raises(CorpusNotFound, match="multi30k/tok/train"):
        load_corpus("multi30k", variant="tok")
    rows = [{"english": f"o {i}", "non_english": f"e {i}"} for i in range(40)]
    features = Features(english=text, non_english=text)
    hub(monkeypatch, rows, features, {"train": 0})
    corpus = load_corpus("tatoeba", source="de")
    assert [len(p) for p in corpus.splits.values()] == [36, 4]
    assert corpus.splits["train"][0][0].startswith("e ")
    check_disjoint(corpus)


def test_without_a_network_the_message_says_what_to_do(monkeypatch, tmp_path):
    """One line: what, why, and where files would be found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.load_dataset", no_network)
    for kind in (ValueError, ConnectionError):
        with pytest.raises(kind) as error:
            load_corpus("wmt14-en-de")
        message = str(error.value)
        assert "\n" not in message
        for part in (
            "wmt14-en-de",
            "wmt/wmt14",
            "ConnectionError",
            "go online",
            "wmt14-en-de/train.de and wmt14-en-de/train.en",
            "data or ../shared/data",
        ):
            assert part in message


def test_arrow_pairs_over_several_chunks():
    """Loops and indices agree, for both forms of column."""
    rows = [(f"one {i}", f"eins {i}") for i in range(2_500)]
    flat = Dataset.from_dict(
        dict(zip(("en", "de"), map(list, zip(*rows, strict=True)), strict=True))
    )
    nested = Dataset.from_list(
        [{"translation": {"en": a, "de": b}} for a, b in rows],
        features=Features(translation=Translation(languages=["de", "en"])),
    )
    for dataset in (flat, nested):
        pairs = ArrowPairs(dataset, "en", "de")
        assert len(pairs) == 2_500
        assert list(pairs) == rows
        assert (pairs[1700], pairs[-1]) == (rows[1700], rows[-1])
        back = ArrowPairs(dataset, "de", "en")
        assert back[3] == rows[3][::-1]
        assert back.digest != pairs.digest
        with pytest.raises(IndexError):
            pairs[2_500]


def test_a_corpus_shows_its_sizes_and_not_its_pairs():
    """The direction is left out where there are no languages."""
    corpus = Corpus("x", "", "", {"train": [("a", "b")] * 12_345})
    assert repr(corpus) == "Corpus('x', train 12,345)"
    sizes = {"train_size": 1234, "valid_size": 5, "test_size": 6}
    assert repr(load_corpus("copy", **sizes)) == (
        "Corpus('copy', train 1,234, valid 5, test 6)"
    )
