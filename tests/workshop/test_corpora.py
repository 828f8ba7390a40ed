"""Corpora are what their names say, and bad files are told from good ones."""

import gzip
import io
import json
import lzma
import os
import pickle
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from datasets import Dataset, Features, Translation, Value
from hypothesis import given
from hypothesis import strategies as st

from transformer_annotated.text import train_bpe, train_word_tokenizer
from transformer_annotated.workshop import corpora
from transformer_annotated.workshop.corpora import (
    CATALOGUE,
    ArrowPairs,
    Corpus,
    CorpusError,
    CorpusNotFound,
    EncodedPairs,
    FilePairs,
    Subset,
    corpus_from_files,
    encode_pairs,
    hold_out,
    load,
    overlap,
    read_pairs,
)

SHARED = Path(
    os.environ.get("TRANSFORMER_ANNOTATED_DATA")
    or Path(__file__).parents[2] / "shared" / "data"
)
ENGLISH = ["A dog runs.", "Two cats sleep.", "", "Where is the ball?"]
GERMAN = ["Ein Hund rennt.", "Zwei Katzen schlafen.", "", "Wo ist der Ball?"]
PAIRS = list(zip(ENGLISH, GERMAN, strict=True))


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    """Corpora are where a test puts them, and nowhere else."""
    monkeypatch.delenv("TRANSFORMER_ANNOTATED_DATA", raising=False)


def gz(content):
    """Pack, the same way each time."""
    return gzip.compress(content, mtime=0)


def xz(content):
    """Pack, with little effort."""
    return lzma.compress(content, preset=0)


class Letters:
    """A tokenizer for tests: one id for each character but blanks."""

    def __init__(self, vocab_size=300, salt=""):
        """A vocabulary, and something that tells it from others."""
        self.vocab_size, self.salt, self.calls = vocab_size, salt, []

    def encode_batch(self, texts, language=None):
        """Ids from 4, as of the characters' codes."""
        self.calls.append((language, len(texts)))
        return [[4 + ord(c) % 290 for c in t if c != " "] for t in texts]

    def save(self, path):
        """Write something that tells one tokenizer from another."""
        path.write_text(f"{self.vocab_size} {self.salt}")


def write(path, lines, packed=None):
    """Write lines, plain or packed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(f"{line}\n" for line in lines).encode()
    pack = {None: bytes, "gz": gz, "xz": xz}[packed]
    path.write_bytes(pack(content))
    return path


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


# Reading files


@pytest.mark.parametrize("packed", [None, "gz", "xz"])
@pytest.mark.parametrize("hold", [2**26, 0])
def test_parallel_files_give_pairs_line_by_line(tmp_path, packed, hold):
    """Plain or packed, in memory or streamed, twice, and by index."""
    end = f".{packed}" if packed else ""
    a = write(tmp_path / f"a.en{end}", ENGLISH, packed)
    b = write(tmp_path / f"a.de{end}", GERMAN, packed)
    pairs = FilePairs(a, b, hold=hold)
    assert len(pairs) == 4
    assert list(pairs) == list(pairs) == PAIRS
    assert [pairs[i] for i in range(4)] == PAIRS
    assert pairs[-1] == PAIRS[-1]
    with pytest.raises(IndexError):
        pairs[4]
    swapped = FilePairs(a, b, swap=True, hold=hold)
    assert list(swapped) == [pair[::-1] for pair in PAIRS]


def test_packed_files_need_no_ending(tmp_path):
    """What is packed shows by its first bytes, whatever its name."""
    path = tmp_path / "train"
    for pack in (gz, xz):
        path.write_bytes(pack(b"a\tb\n"))
        assert list(read_pairs(path)) == [("a", "b")]


def test_large_files_are_streamed_and_small_ones_held(tmp_path):
    """One character over the limit, and pairs are read again by each loop."""
    path = write(tmp_path / "a.tsv", ["ab\tc", "d\tef"])  # 6 + 1 for each pair
    assert FilePairs(path, hold=8)._held is not None
    assert read_pairs(path)._held is not None
    large = FilePairs(path, hold=7)
    assert large._held is None
    assert list(large) == [("ab", "c"), ("d", "ef")]
    path.write_text("other\tpairs\nand\tmore\n")
    with pytest.raises(CorpusError, match=r"a\.tsv: changed since"):
        list(large)


def test_streaming_takes_no_memory(tmp_path):
    """What is too large to hold is not collected on the way either."""
    path = write(tmp_path / "a.tsv", ["some words\tand others"] * 20_000)
    tracemalloc.start()
    pairs = FilePairs(path, hold=1000)
    assert sum(1 for _ in pairs) == 20_000
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 500_000  # all pairs take five times that


def test_a_table_has_one_tab_a_line(tmp_path):
    """Blank lines and Tatoeba's third column pass, other columns do not."""
    path = tmp_path / "a.tsv"
    write(path, ["Go.\tGeh.\tCC-BY 2.0 (France): tatoeba.org", "", " x \ty"])
    assert list(read_pairs(path)) == [("Go.", "Geh."), ("", ""), (" x ", "y")]
    for line, tabs in (("no tab", 0), ("a\tb\tc", 2), ("a\tb\tc\tCC-BY", 3)):
        write(path, ["a\tb", line])
        with pytest.raises(CorpusError, match=rf"a\.tsv, line 2: {tabs} tabs"):
            read_pairs(path)


def test_only_line_feeds_end_lines(tmp_path):
    """Separators at which str.splitlines splits stay inside a sentence."""
    odd = "one\x0btwo\x0cthree\x1cfour\x85five\u2028six\u2029seven\reight"
    assert len(odd.splitlines()) == 8
    a = write(tmp_path / "a", [odd, "b"])
    b = write(tmp_path / "b", ["c", odd])
    assert list(read_pairs(a, b)) == [(odd, "c"), ("b", odd)]


def test_marks_of_windows_are_removed(tmp_path):
    """Byte order marks and carriage returns before line feeds go away."""
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    b.write_bytes(b"eins\nzwei")
    assert list(read_pairs(a, b)) == [("one", "eins"), ("two", "zwei")]
    a.write_bytes("one\n\ufefftwo\n".encode())  # only the first is a mark
    assert list(read_pairs(a, b))[1] == ("\ufefftwo", "zwei")


@pytest.mark.parametrize(("left", "right"), [(3, 5), (5, 3), (0, 2), (2, 0)])
def test_files_of_different_length_are_refused(tmp_path, left, right):
    """The message has both files and both counts."""
    a = write(tmp_path / "a.en", ["x"] * left)
    b = write(tmp_path / "a.de", ["y"] * right)
    with pytest.raises(CorpusError) as error:
        read_pairs(a, b)
    assert f"a.en: {left} lines" in str(error.value)
    assert f"a.de: {right} lines" in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\tb\na\tb\nM\xfc\tb\n", r"line 3: not UTF-8 \(byte 2"),
        (b"a\tb\n\xed\xa0\x80\n", r"line 2: not UTF-8"),  # a surrogate
        (b"a\tb\na\0b\n", "line 2: a zero byte"),
        ("text".encode("utf-16"), r"line 1: (not UTF-8|a zero byte)"),
        (b"", "empty"),
        (b"\n \n\t\n", "no pair with text on both sides"),
        (gz(b"\t\xc3\x28\n" * 99), "line 1: not UTF-8"),
        (xz(b"text\tmore\n" * 5000)[:-20], "cut short"),
        (gz(b"a\tb\n" * 5000)[:-9], "damaged or cut short"),
        (gz(b"a\tb\n" * 9)[:15] + b"\xff" * 40, "damaged"),
    ],
    ids=map(str, range(10)),
)
def test_damaged_files_are_named(tmp_path, content, message):
    """One line with the file, and the line where there is one."""
    path = tmp_path / "bad.tsv"
    path.write_bytes(content)
    for files in ((path,), (path, path)):
        with pytest.raises(CorpusError, match=message) as error:
            read_pairs(*files)
        assert "bad.tsv" in str(error.value)
        assert "\n" not in str(error.value)


def test_a_packed_name_on_plain_text_is_refused(tmp_path):
    """A .gz file that is none was probably damaged on its way."""
    for end in ("gz", "xz"):
        path = write(tmp_path / f"a.tsv.{end}", ["a\tb"])
        with pytest.raises(CorpusError, match=f"not a .{end} file"):
            read_pairs(path)


def test_missing_files_get_the_nearest_name(tmp_path):
    """Folders, missing files and odd paths each have a message."""
    write(tmp_path / "train.en", ["a"])
    with pytest.raises(CorpusError, match=r"did you mean train\.en\?"):
        read_pairs(tmp_path / "trian.en", tmp_path / "train.en")
    with pytest.raises(CorpusError, match="a folder, expected a file"):
        read_pairs(tmp_path)
    with pytest.raises(CorpusError, match="no such file"):
        read_pairs(tmp_path / "nowhere" / "x")
    with pytest.raises(CorpusError):
        read_pairs("a\0b")
    with pytest.raises(CorpusError):
        read_pairs("x" * 5000)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CorpusError, match="expected a regular file"):
        read_pairs(tmp_path / "pipe")


@given(left=st.binary(max_size=60), right=st.binary(max_size=60))
def test_any_bytes_are_pairs_or_a_clear_error(tmp_path_factory, left, right):
    """No bytes crash the reader or shift one side against the other."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "a").write_bytes(left)
    (folder / "b").write_bytes(right)
    for files in ((folder / "a", folder / "b"), (folder / "a",)):
        try:
            pairs = list(read_pairs(*files))
        except CorpusError as error:
            message = str(error)
            assert "\n" not in message.replace(str(folder), "")
            continue
        lines = left.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n")
        assert len(pairs) == lines.count(b"\n") + 1
        assert all("\n" not in side for pair in pairs for side in pair)
        if len(files) == 2:
            ours = [line.rstrip(b"\r") for line in lines.split(b"\n")]
            assert [pair[0].encode() for pair in pairs] == ours


@given(data=st.binary(min_size=1, max_size=200), cut=st.integers(1, 30))
def test_any_cut_of_a_packed_file_is_noticed(tmp_path_factory, data, cut):
    """A file that lost its end never passes for a shorter one."""
    folder = tmp_path_factory.mktemp("cut")
    for end, pack in (("gz", gz), ("xz", xz)):
        path = folder / f"a.{end}"
        packed = pack(b"a\tb\n" + data)
        path.write_bytes(packed[: max(len(packed) - cut, 3)])
        with pytest.raises(CorpusError):
            read_pairs(path)


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_packed_file_is_noticed(
    tmp_path_factory, place, bit
):
    """Or it makes no difference, as in the header's date."""
    folder = tmp_path_factory.mktemp("flip")
    lines = [f"{i * i} dogs\t{i * i} Hunde" for i in range(40)]
    expected = [tuple(line.split("\t")) for line in lines]
    for end in ("gz", "xz"):
        path = write(folder / f"a.{end}", lines, end)
        content = bytearray(path.read_bytes())
        content[place % len(content)] ^= 1 << bit
        path.write_bytes(content)
        try:
            assert list(read_pairs(path)) == expected
        except CorpusError as error:
            assert f"a.{end}" in str(error)


# Parts


def test_overlap_counts_each_side():
    """Case and blanks make no difference, but the side does."""
    ours = [("A  dog", "x"), ("cat", "Y"), ("y", "a dog")]
    theirs = [("a dog ", "q"), ("bird", "y")]
    assert overlap(ours, theirs) == (1, 1)
    assert overlap(ours, []) == (0, 0)


def test_held_out_pairs_share_nothing_with_the_rest():
    """Repeated sentences stay in the first part, and nothing is lost."""
    pairs = [(f"s {i // 2}", f"t {i}") for i in range(100)]  # sources twice
    pairs += [(f"u {i}", f"v {i % 7}") for i in range(100)]  # targets often
    pairs += [(f"S  {900 + i}", f"T {900 + i}") for i in range(50)]
    pairs += [(f"s {900 + i}", "") for i in range(10)] + [("", "")] * 3
    train, valid = hold_out(pairs, 20)
    assert len(valid) == 20
    assert sorted([*train, *valid]) == sorted(pairs)
    assert overlap(valid, train) == (0, 0)
    assert all(a.startswith("S") and b for a, b in valid)
    assert [p for p in pairs if p in set(valid)] == list(valid)  # in order
    assert list(hold_out(pairs, 20)[1]) == list(valid)
    assert list(hold_out(pairs, 20, seed=1)[1]) != list(valid)


def test_blank_pairs_are_not_held_out():
    """A blank side says nothing, even if no other is blank."""
    pairs = [("a", "b")] * 40 + [("x", ""), (" ", "y"), ("u", "v")]
    assert list(hold_out(pairs, 4)[1]) == [("u", "v")]


def test_held_out_pairs_are_at_most_a_tenth():
    """Small corpora keep most of their pairs; hopeless ones are refused."""
    pairs = [(f"s {i}", f"t {i}") for i in range(50)]
    train, valid = hold_out(pairs, 1000)
    assert (len(train), len(valid)) == (45, 5)
    assert [len(part) for part in hold_out(pairs[:2], 1000)] == [1, 1]
    for hopeless in (
        pairs[:1],
        [("a", "b")] * 9,
        [("a", str(i)) for i in "xy"],
    ):
        with pytest.raises(CorpusError, match="give files for validation"):
            hold_out(hopeless, 5)
    with pytest.raises(ValueError, match="size: 0"):
        hold_out(pairs, 0)


def test_parts_are_views():
    """A part of pairs has their order, its length, and indices of its own."""
    part = Subset(PAIRS, np.array([True, False, False, True]))
    assert len(part) == 2
    assert list(part) == [part[0], part[1]] == [PAIRS[0], PAIRS[3]]
    assert part[-1] == PAIRS[3]
    other = Subset(PAIRS, np.array([True, False, True, False]))
    assert part.digest != other.digest


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
    corpus = load(name, train_size=300, valid_size=20, test_size=10, seed=3)
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
    again = load(name, train_size=300, valid_size=20, test_size=10, seed=3)
    assert again == corpus
    assert load(name, train_size=300).splits["train"] != corpus.splits["train"]
    assert len(load(name).splits["train"]) == 20_000


def test_grammar_in_both_directions():
    """The same sentences, the sides swapped; splits without overlap."""
    sizes = {"train_size": 400, "valid_size": 50, "test_size": 50}
    there = load("grammar", seed=1, **sizes)
    back = load("grammar", source="de", seed=1, **sizes)
    assert (there.source, there.target) == ("en", "de")
    assert (back.source, back.target) == ("de", "en")
    assert [p[::-1] for p in there.splits["test"]] == back.splits["test"]
    check_disjoint(there)
    drawn = corpora.sentences(50, seed=1, depth=2, split="test")
    assert [p.english for p in drawn] == [a for a, _ in there.splits["test"]]
    deep = load("grammar", depth=0, seed=1, **sizes)
    assert deep.splits["train"] != there.splits["train"]


def test_wrong_arguments_are_named():
    """Names, variants, directions and sizes."""
    with pytest.raises(CorpusError, match="did you mean multi30k"):
        load("multi3k")
    with pytest.raises(CorpusError, match="expected one of copy, reverse"):
        load("zzz")
    with pytest.raises(ValueError, match="variant: 'low'"):
        load("multi30k", variant="low")
    with pytest.raises(ValueError, match="variant: 'tok'"):
        load("tatoeba", variant="tok")
    with pytest.raises(ValueError, match="source, target: 'fr', None"):
        load("grammar", source="fr")
    with pytest.raises(ValueError, match="source, target: 'de', 'de'"):
        load("grammar", source="de", target="de")
    with pytest.raises(ValueError, match="valid_size: 0"):
        load("copy", valid_size=0)


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
        raw = load("multi30k", folder=place)
        sizes = {split: len(pairs) for split, pairs in raw.splits.items()}
        assert sizes == {"train": 29_000, "valid": 1_014, "test": 1_000}
        assert (raw.source, raw.target) == ("en", "de")
        back = load("multi30k", source="de", folder=place)
        assert back.splits["valid"][7] == raw.splits["valid"][7][::-1]
        tok = load("multi30k", variant="tok", folder=place)
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
        corpus = load("tatoeba", folder=place)
        back = load("tatoeba", target="en", folder=place)
        assert (back.source, back.target) == ("de", "en")
        assert back.splits["valid"][3] == corpus.splits["valid"][3][::-1]
        check_disjoint(corpus)
        few = load("tatoeba", folder=place, train_size=9, valid_size=4)
        assert [len(p) for p in few.splits.values()] == [9, 4]
        first = [corpus.splits["train"][i] for i in range(9)]
        assert list(few.splits["train"]) == first
    if place == SHARED:
        assert [len(p) for p in corpus.splits.values()] == [165_813, 2_000]
        assert corpus.splits["valid"][0][0].startswith("Tom is afraid")


def test_newstest_from_a_folder(folder):
    """The paper's development set, by itself."""
    for place in folders(folder, "newstest"):
        corpus = load("newstest2013", folder=place)
        assert list(corpus.splits) == ["valid"]
        assert len(corpus.splits["valid"]) == 3000


def test_validation_is_held_out_where_there_is_none(tmp_path):
    """A folder with training text alone gives two splits without overlap."""
    lines = [f"one {i}\teins {i}" for i in range(300)]
    write(tmp_path / "tatoeba" / "train.en-de.tsv", lines)
    corpus = load("tatoeba", folder=tmp_path, valid_size=25)
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
        return load("tatoeba").splits["train"][0][0].split()[0]

    with pytest.raises(CorpusNotFound, match="go online, or put tatoeba/train"):
        first()
    make(tmp_path / "shared" / "shared" / "data", "far")
    with pytest.raises(CorpusNotFound):
        load("tatoeba", folder=folder / "multi30k")
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
    given_first = load("tatoeba", folder=tmp_path / "given")
    assert given_first.splits["train"][0][0].startswith("given")
    with pytest.raises(CorpusError, match="is not a folder"):
        load("tatoeba", folder=tmp_path / "gven")


def test_incomplete_corpora_are_refused(folder, tmp_path):
    """A missing pair, or a missing side, is an error with numbers or names."""
    for language in ("en", "de"):
        lines = [f"{language} {i}" for i in range(28_999)]
        write(tmp_path / "multi30k" / "raw" / f"train.{language}", lines)
    with pytest.raises(CorpusError, match="28,999 pairs, expected 29,000"):
        load("multi30k", folder=tmp_path)
    for language in ("en", "de"):
        with open(tmp_path / "multi30k/raw" / f"train.{language}", "a") as file:
            file.write("one more\n")
    with pytest.raises(CorpusError, match="valid: 0 pairs, expected 1,014"):
        load("multi30k", folder=tmp_path)
    for language in ("en", "de"):
        lines = [f"{language} {i}" for i in range(1_014)]
        write(tmp_path / "multi30k" / "raw" / f"val.{language}", lines)
    assert list(load("multi30k", folder=tmp_path).splits) == ["train", "valid"]
    (tmp_path / "multi30k" / "raw" / "val.de").unlink()
    with pytest.raises(CorpusError, match=r"val\.de: no such file"):
        load("multi30k", folder=tmp_path)
    (tmp_path / "multi30k" / "raw" / "train.de").unlink()
    with pytest.raises(CorpusError, match=r"train\.de: no such file"):
        load("multi30k", folder=tmp_path)
    with pytest.raises(
        CorpusNotFound, match="not found; put wmt14-en-de/train"
    ):
        load("wmt14-en-de", folder=folder)


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
    corpus = load(name)
    assert asked[0][0] == ("wmt/wmt14", config)
    assert re.fullmatch("[0-9a-f]{40}", asked[0][1]["revision"])
    assert (corpus.source, corpus.target) == ("en", other)
    assert (
        len(corpus.splits["train"]) == pairs == CATALOGUE[name].sizes["train"]
    )
    assert abs(pairs / said - 1) < 0.01
    assert corpus.splits["train"][2] == ("one 2", "un 2")
    back = load(name, source=other)
    assert back.splits["valid"][2] == ("un 2", "one 2")
    for part in sizes:
        hub(monkeypatch, rows, features, {**sizes, part: sizes[part] - 1})
        with pytest.raises(CorpusError, match=f"expected {sizes[part]:,}"):
            load(name)


def test_multi30k_and_tatoeba_on_the_hub(monkeypatch, tmp_path):
    """Columns of plain text; Tatoeba's validation part is held out."""
    monkeypatch.chdir(tmp_path)
    text = Value("string")
    rows = [{"de": "eins", "en": "one"}, {"de": None, "en": "two"}]
    sizes = {"train": 29_000, "validation": 1_014, "test": 1_000}
    asked = hub(monkeypatch, rows, Features(de=text, en=text), sizes)
    corpus = load("multi30k")
    assert asked[0][0] == ("bentrevett/multi30k", None)
    assert corpus.splits["test"][1] == ("two", "")
    assert list(corpus.splits["test"]) == [("one", "eins"), ("two", "")]
    with pytest.raises(CorpusNotFound, match="multi30k/tok/train"):
        load("multi30k", variant="tok")
    rows = [{"english": f"o {i}", "non_english": f"e {i}"} for i in range(40)]
    features = Features(english=text, non_english=text)
    hub(monkeypatch, rows, features, {"train": 0})
    corpus = load("tatoeba", source="de")
    assert [len(p) for p in corpus.splits.values()] == [36, 4]
    assert corpus.splits["train"][0][0].startswith("e ")
    check_disjoint(corpus)


def test_without_a_network_the_message_says_what_to_do(monkeypatch, tmp_path):
    """One line: what, why, and where files would be found."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.load_dataset", no_network)
    for kind in (ValueError, ConnectionError):
        with pytest.raises(kind) as error:
            load("wmt14-en-de")
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


# Encoding


def texts(encoded, side):
    """All sentences of one side, as lists of ids."""
    return [getattr(encoded, side)(i).tolist() for i in range(len(encoded))]


def test_encoded_pairs_are_the_tokenizers_ids(tmp_path):
    """Both sides, without start and end; each with its language."""
    tokenizer = Letters()
    encoded = encode_pairs(PAIRS, tokenizer, tmp_path / "e", "en", "de")
    kept = [pair for pair in PAIRS if all(pair)]
    assert len(encoded) == 3
    assert encoded.skipped == 1
    left, right = zip(*kept, strict=True)
    assert texts(encoded, "source") == tokenizer.encode_batch(left)
    assert texts(encoded, "target") == tokenizer.encode_batch(right)
    lengths = [len(ids) for ids in texts(encoded, "source")]
    assert encoded.source_lengths.tolist() == lengths
    lengths = [len(ids) for ids in texts(encoded, "target")]
    assert encoded.target_lengths.tolist() == lengths
    assert tokenizer.calls[:2] == [("en", 3), ("de", 3)]
    assert encoded.vocab_size == 300
    for index in (3, -1):
        with pytest.raises(IndexError, match="there are 3 pairs"):
            encoded.source(index)


@given(
    pairs=st.lists(
        st.tuples(st.text("ab \u00e9", max_size=6), st.text("xy ", max_size=6)),
        max_size=20,
    ),
    chunk=st.integers(1, 7),
    limit=st.integers(1, 5),
)
def test_encoding_in_chunks_loses_nothing(
    tmp_path_factory, pairs, chunk, limit
):
    """Whatever the chunks, what fits comes out as it went in, in order."""
    folder = tmp_path_factory.mktemp("chunks")
    tokenizer = Letters()
    about = {"source": "", "target": "", "max_length": limit, "vocab_size": 300}
    expected, empty, long = [], 0, 0
    for pair in pairs:
        ids = tokenizer.encode_batch(pair)
        empty += not all(ids)
        long += all(ids) and max(map(len, ids)) > limit
        if all(0 < len(i) <= limit for i in ids):
            expected.append(ids)
    if not expected:
        with pytest.raises(CorpusError, match=f"{empty} empty and {long} long"):
            corpora._write(folder, iter(pairs), tokenizer, about, 1, chunk)
        return
    corpora._write(folder, iter(pairs), tokenizer, about, 1, chunk)
    encoded = EncodedPairs.open(folder)
    sides = [texts(encoded, side) for side in ("source", "target")]
    assert list(map(list, zip(*sides, strict=True))) == expected
    assert (encoded.about["empty"], encoded.about["too_long"]) == (empty, long)


def test_sides_without_ids_are_empty(tmp_path):
    """Text of which a tokenizer leaves nothing is as good as none."""

    class Picky(Letters):
        def encode_batch(self, texts, language=None):
            return super().encode_batch([t.replace("?", "") for t in texts])

    pairs = [("a", "b"), ("?", "b"), ("a", "??"), ("?", "?")]
    encoded = encode_pairs(pairs, Picky(), tmp_path / "e", "", "")
    assert (len(encoded), encoded.about["empty"]) == (1, 3)
    assert encoded.about["too_long"] == 0


def test_too_long_pairs_are_counted(tmp_path):
    """The limit itself fits; a line of a megabyte never meets the tokenizer."""
    pairs = [("abc", "x"), ("abcd", "x"), ("x", "abcd"), ("x", "y" * 10**6)]
    tokenizer = Letters()
    encoded = encode_pairs(pairs, tokenizer, tmp_path / "e", "", "", 3)
    assert texts(encoded, "source") == tokenizer.encode_batch(["abc"])
    assert encoded.about["too_long"] == encoded.skipped == 3
    assert tokenizer.calls[0] == ("", 3)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [(65_536, np.uint16), (65_537, np.uint32)],
)
def test_ids_take_two_bytes_if_they_can(tmp_path, vocab_size, dtype):
    """Two bytes hold 65,536 ids; larger vocabularies take four."""

    class Last(Letters):
        def encode_batch(self, texts, language=None):
            return [[self.vocab_size - 1] * len(text) for text in texts]

    tokenizer = Last(vocab_size)
    encoded = encode_pairs([("ab", "c")], tokenizer, tmp_path / "e", "", "")
    assert encoded.source(0).dtype == dtype
    assert encoded.source(0).tolist() == [vocab_size - 1] * 2
    size = np.load(tmp_path / "e" / "source.npy").nbytes
    assert size == 2 * np.dtype(dtype).itemsize


def test_encoded_pairs_are_memory_mapped(tmp_path):
    """The arrays are views of files, also in another process."""
    encoded = encode_pairs(PAIRS, Letters(), tmp_path / "e", "en", "de")
    base = encoded.source(0)
    while base.base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)
    assert not encoded.source(0).flags.writeable
    sent = pickle.dumps(encoded)
    assert len(sent) < 500
    assert texts(pickle.loads(sent), "target") == texts(encoded, "target")


def test_a_second_call_encodes_nothing(tmp_path):
    """Same pairs, same tokenizer: opened; anything else: encoded anew."""

    def encoded_by(pairs=PAIRS, salt="", **changed):
        tokenizer = Letters(salt=salt)
        arguments = {"source": "en", "target": "de", "max_length": 256}
        encode_pairs(pairs, tokenizer, tmp_path / "e", **arguments | changed)
        return bool(tokenizer.calls)

    assert encoded_by()
    assert not encoded_by()
    assert not encoded_by(pairs=list(PAIRS))
    for change in (
        {"salt": "x"},
        {"pairs": PAIRS[:2]},
        {"max_length": 20},
        {"source": "fr"},
        {"target": "fr"},
    ):
        assert encoded_by(**change), change
        assert not encoded_by(**change), change
    assert encoded_by(pairs=iter(PAIRS))
    assert encoded_by(pairs=iter(PAIRS))
    assert sorted(os.listdir(tmp_path)) == ["e"]


def test_files_and_their_parts_are_recognised(tmp_path):
    """Text from files, in memory or streamed, has one fingerprint."""
    path = write(tmp_path / "a.tsv", [f"a {i}\tb {i}" for i in range(30)])
    held, streamed = FilePairs(path), FilePairs(path, hold=0)
    assert held.digest == streamed.digest == corpora._digest(list(held))
    assert FilePairs(path, swap=True).digest != held.digest
    train, valid = hold_out(streamed, 3)
    encode_pairs(train, Letters(), tmp_path / "t", "", "")
    tokenizer = Letters()
    again, _ = hold_out(held, 3)
    assert len(encode_pairs(again, tokenizer, tmp_path / "t", "", "")) == 27
    assert not tokenizer.calls
    encode_pairs(valid, tokenizer, tmp_path / "t", "", "")
    assert tokenizer.calls


def test_half_an_encoding_is_never_seen(tmp_path):
    """When encoding fails, the old folder stays, and no other is left."""
    old = encode_pairs(PAIRS, Letters(), tmp_path / "e", "en", "de")

    def broken():
        yield from PAIRS
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_pairs(broken(), Letters(), tmp_path / "e", "en", "de")
    with pytest.raises(KeyboardInterrupt):
        encode_pairs(broken(), Letters(), tmp_path / "new", "en", "de")
    assert os.listdir(tmp_path) == ["e"]
    again = EncodedPairs.open(tmp_path / "e")
    assert texts(again, "source") == texts(old, "source")
    new = encode_pairs(PAIRS[:1], Letters(), tmp_path / "e", "en", "de")
    assert len(new) == 1
    assert texts(old, "source") == texts(again, "source")  # still mapped


@pytest.mark.parametrize("when", ["while it encodes", "at the last moment"])
def test_two_processes_may_encode_the_same(tmp_path, monkeypatch, when):
    """Who comes second takes the folder of who came first."""
    encode_pairs(PAIRS, Letters(), tmp_path / "first", "en", "de")
    number = (tmp_path / "first").stat().st_ino
    rename = os.rename

    class Second(Letters):
        def encode_batch(self, texts, language=None):
            if when == "while it encodes" and (tmp_path / "first").exists():
                rename(tmp_path / "first", tmp_path / "e")
            return super().encode_batch(texts, language)

    def late(old, new):
        if (tmp_path / "first").exists():
            rename(tmp_path / "first", tmp_path / "e")
        rename(old, new)

    monkeypatch.setattr(corpora.os, "rename", late)
    encoded = encode_pairs(PAIRS, Second(), tmp_path / "e", "en", "de")
    assert (tmp_path / "e").stat().st_ino == number
    assert len(encoded) == 3
    assert os.listdir(tmp_path) == ["e"]


def test_other_folders_are_left_alone(tmp_path):
    """A folder with other files, or a file, is not replaced."""
    write(tmp_path / "e" / "thesis.txt", ["ten years of work"])
    with pytest.raises(CorpusError, match=r"holds other files \(thesis\.txt\)"):
        encode_pairs(PAIRS, Letters(), tmp_path / "e", "en", "de")
    assert os.listdir(tmp_path / "e") == ["thesis.txt"]
    with pytest.raises(CorpusError, match="a file, expected a folder"):
        encode_pairs(PAIRS, Letters(), tmp_path / "e" / "thesis.txt", "", "")
    (tmp_path / "empty").mkdir()
    encode_pairs(PAIRS, Letters(), tmp_path / "empty", "en", "de")
    for bad in (0, -1, 2.5, None):
        with pytest.raises(ValueError, match="max_length"):
            encode_pairs(PAIRS, Letters(), tmp_path / "x", "en", "de", bad)


@pytest.mark.parametrize(
    "name", ["about.json", "source.npy", "target.npy", "target_starts.npy"]
)
def test_damaged_encodings_are_noticed_and_made_again(tmp_path, name):
    """A missing or shortened file is an error to open, and encoded anew."""
    folder = tmp_path / "e"
    with pytest.raises(CorpusError, match="no encoded pairs here"):
        EncodedPairs.open(folder)
    for damage in ("cut", "gone", "empty"):
        encode_pairs(PAIRS, Letters(), folder, "en", "de")
        content = (folder / name).read_bytes()
        if damage == "gone":
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(
                content[:-3] if damage == "cut" else b""
            )
        with pytest.raises(CorpusError, match=r"damaged|is missing"):
            EncodedPairs.open(folder)
        tokenizer = Letters()
        encode_pairs(PAIRS, tokenizer, folder, "en", "de")
        assert tokenizer.calls


def test_starts_that_do_not_fit_are_damage(tmp_path):
    """Arrays of another corpus in the folder do not pass."""
    folder = tmp_path / "e"
    encode_pairs(PAIRS, Letters(), folder, "en", "de")
    starts = np.load(folder / "source_starts.npy")
    for wrong in (starts[:-1], starts + 1):
        np.save(folder / "source_starts.npy", wrong)
        with pytest.raises(CorpusError, match="damaged"):
            EncodedPairs.open(folder)
    np.save(folder / "source_starts.npy", starts)
    assert len(EncodedPairs.open(folder)) == 3
    about = json.loads((folder / "about.json").read_text())
    for wrong in ({"pairs": 2}, {"pairs": None}, {"pairs": "3"}):
        (folder / "about.json").write_text(json.dumps(about | wrong))
        with pytest.raises(CorpusError, match="damaged"):
            EncodedPairs.open(folder)


def test_from_files_to_ids_with_real_tokenizers(tmp_path):
    """Byte pairs decode to the text; words have their languages."""
    corpus = load("grammar", train_size=200, valid_size=20, test_size=20)
    pairs = corpus.splits["train"]
    bpe = train_bpe((side for pair in pairs for side in pair), vocab_size=400)
    encoded = encode_pairs(pairs, bpe, tmp_path / "bpe", "en", "de")
    assert len(encoded) + encoded.skipped == 200
    assert bpe.decode(encoded.source(7).tolist()) == pairs[7][0]
    assert bpe.decode(encoded.target(7).tolist()) == pairs[7][1]
    assert json.loads((tmp_path / "bpe" / "about.json").read_text())
    words = train_word_tokenizer(
        {"en": [a for a, _ in pairs], "de": [b for _, b in pairs]}
    )
    by_words = encode_pairs(pairs, words, tmp_path / "words", "en", "de")
    assert by_words.target(7).tolist() == words.encode(pairs[7][1], "de")
    again = encode_pairs(pairs, bpe, tmp_path / "bpe", "en", "de")
    stamp = (tmp_path / "bpe").stat().st_mtime_ns
    assert len(again) == len(encoded)
    assert (tmp_path / "bpe").stat().st_mtime_ns == stamp


def test_several_processes_encode_the_same(tmp_path):
    """Chunks come back in order, to the last byte, and leave nothing behind."""
    pairs = [(f"{i} dogs", f"{i} Hunde") for i in range(950)]
    bpe = train_bpe((side for pair in pairs for side in pair), 300)
    about = {"source": "", "target": "", "max_length": 9, "vocab_size": 300}
    for workers in (1, 2):
        folder = tmp_path / f"{workers}"
        folder.mkdir()
        corpora._write(folder, iter(pairs), bpe, about, workers, chunk=100)
    assert len(EncodedPairs.open(folder)) == 950
    names = sorted(os.listdir(folder))
    assert names == sorted(os.listdir(tmp_path / "1"))
    for name in names:
        content = (folder / name).read_bytes()
        assert content == (tmp_path / "1" / name).read_bytes()
    with pytest.raises(ValueError, match="workers: 0"):
        encode_pairs(pairs, bpe, tmp_path / "x", "en", "de", workers=0)


def test_a_corpus_shows_its_sizes_and_not_its_pairs():
    """The direction is left out where there are no languages."""
    corpus = Corpus("x", "", "", {"train": [("a", "b")] * 12_345})
    assert repr(corpus) == "Corpus('x', train 12,345)"
    sizes = {"train_size": 1234, "valid_size": 5, "test_size": 6}
    assert repr(load("copy", **sizes)) == (
        "Corpus('copy', train 1,234, valid 5, test 6)"
    )


def test_the_longest_line():
    """As many bytes as are allowed are a sentence, one more is none."""
    for end in (b"\n", b"\r\n", b""):
        lines = corpora._lines(io.BytesIO(b"a\n" + 9 * b"b" + end), longest=9)
        assert list(lines) == ["a", 9 * "b"]
        lines = corpora._lines(io.BytesIO(b"a\n" + 10 * b"b" + end), longest=9)
        assert next(lines) == "a"
        with pytest.raises(CorpusError, match="line 2: more than 9 bytes"):
            next(lines)
