"""Encoded pairs are the tokenizer's ids, whole or not at all."""

import json
import os
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import PAIRS, write
from transformer_annotated.text import train_bpe, train_word_tokenizer
from transformer_annotated.workshop import encoded as module
from transformer_annotated.workshop.corpora import load_corpus
from transformer_annotated.workshop.encoded import EncodedPairs, encode_pairs
from transformer_annotated.workshop.files import CorpusError, load_result
from transformer_annotated.workshop.parallel import (
    FilePairs,
    digest_of,
    hold_out,
)


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


def metadata(**changes):
    """What arrays are told of, as encode_pairs would."""
    told = {"source": "", "target": "", "max_length": 99, "vocab_size": 300}
    return told | {"dropout": 0.5, "copies": 0} | changes


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
    about = metadata(max_length=limit)
    expected, empty, long = [], 0, 0
    for pair in pairs:
        ids = tokenizer.encode_batch(pair)
        empty += not all(ids)
        long += all(ids) and max(map(len, ids)) > limit
        if all(0 < len(i) <= limit for i in ids):
            expected.append(ids)
    if not expected:
        with pytest.raises(CorpusError, match=f"{empty} empty and {long} long"):
            module._write(folder, iter(pairs), tokenizer, about, 1, chunk)
        return
    module._write(folder, iter(pairs), tokenizer, about, 1, chunk)
    encoded = EncodedPairs.open(folder)
    sides = [texts(encoded, side) for side in ("source", "target")]
    assert list(map(list, zip(*sides, strict=True))) == expected
    assert (encoded.metadata["empty"], encoded.metadata["too_long"]) == (
        empty,
        long,
    )


def test_sides_without_ids_are_empty(tmp_path):
    """Text of which a tokenizer leaves nothing is as good as none."""

    class Picky(Letters):
        def encode_batch(self, texts, language=None):
            return super().encode_batch([t.replace("?", "") for t in texts])

    pairs = [("a", "b"), ("?", "b"), ("a", "??"), ("?", "?")]
    encoded = encode_pairs(pairs, Picky(), tmp_path / "e", "", "")
    assert (len(encoded), encoded.metadata["empty"]) == (1, 3)
    assert encoded.metadata["too_long"] == 0


def test_too_long_pairs_are_counted(tmp_path):
    """The limit itself fits; a line of a megabyte never meets the tokenizer."""
    pairs = [("abc", "x"), ("abcd", "x"), ("x", "abcd"), ("x", "y" * 10**6)]
    tokenizer = Letters()
    encoded = encode_pairs(pairs, tokenizer, tmp_path / "e", "", "", 3)
    assert texts(encoded, "source") == tokenizer.encode_batch(["abc"])
    assert encoded.metadata["too_long"] == encoded.skipped == 3
    assert tokenizer.calls[0] == ("", 3)


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)]
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
    assert held.digest == streamed.digest == digest_of(list(held))
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
    """Who comes second finds the folder of who came first, or replaces it."""
    encode_pairs(PAIRS, Letters(), tmp_path / "first", "en", "de")
    rename = os.rename

    def first_comes():
        if (tmp_path / "first").exists():
            rename(tmp_path / "first", tmp_path / "e")

    class Second(Letters):
        def encode_batch(self, texts, language=None):
            if when == "while it encodes":
                first_comes()
            return super().encode_batch(texts, language)

    def late(old, new):
        first_comes()
        rename(old, new)

    monkeypatch.setattr(os, "rename", late)
    encoded = encode_pairs(PAIRS, Second(), tmp_path / "e", "en", "de")
    assert len(encoded) == 3
    assert os.listdir(tmp_path) == ["e"]


def test_copies_are_encoded_with_dropout(tmp_path):
    """Plain pairs first; then other cuts of the same text, in order."""
    pairs = [(f"{i} dogs and cats", f"{i} Hunde") for i in range(50)]
    bpe = train_bpe((side for pair in pairs for side in pair), 400)
    found = {}
    for chunk in (7, 10_000):
        folder = tmp_path / f"{chunk}"
        folder.mkdir()
        module._write(folder, pairs, bpe, metadata(copies=2), 1, chunk)
        encoded = EncodedPairs.open(folder)
        found[chunk] = texts(encoded, "source"), texts(encoded, "target")
    assert found[7] == found[10_000]
    sources = found[7][0]
    assert [bpe.decode(ids) for ids in sources] == 3 * [a for a, _ in pairs]
    plain, once, twice = sources[:50], sources[50:100], sources[100:]
    assert plain == bpe.encode_batch([a for a, _ in pairs])
    assert plain != once != twice != plain
    encode = partial(encode_pairs, pairs, bpe, tmp_path / "e", "en", "de")
    assert len(encode()) == 50
    assert len(encode(dropout=0.5, copies=2)) == 150
    with pytest.raises(ValueError, match="copies: pairs that can be read only"):
        encode_pairs(iter(pairs), bpe, tmp_path / "x", "", "", copies=1)
    with pytest.raises(ValueError, match="dropout: 1"):
        encode(dropout=1, copies=1)


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
        with pytest.raises(CorpusError, match=r"damaged|no such file"):
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
    corpus = load_corpus("grammar", train_size=200, valid_size=20, test_size=20)
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
    for workers in (1, 2):
        folder = tmp_path / f"{workers}"
        folder.mkdir()
        module._write(
            folder, iter(pairs), bpe, metadata(max_length=9), workers, 100
        )
    assert len(EncodedPairs.open(folder)) == 950
    names = sorted(os.listdir(folder))
    assert names == sorted(os.listdir(tmp_path / "1"))
    for name in names:
        content = (folder / name).read_bytes()
        assert content == (tmp_path / "1" / name).read_bytes()
    with pytest.raises(ValueError, match="workers: 0"):
        encode_pairs(pairs, bpe, tmp_path / "x", "en", "de", workers=0)


def test_our_own_forms_earn_their_place():
    """Measured: reading a batch beats datasets, and words are worth a cache."""
    measured = load_result("corpus")
    rows = {row["way"]: row for row in measured["rows"]}
    ours, theirs = rows["encode_pairs"], rows["datasets.map"]
    for order in ("read_in_order_microseconds", "read_random_microseconds"):
        assert 10 * ours[order] < theirs[order]
    assert ours["encode_cpu_seconds"] < theirs["encode_cpu_seconds"]
    cached, *library = measured["tokenizing"]
    for row in library:
        spent = row["cpu_microseconds_a_sentence"]
        assert 2 * cached["cpu_microseconds_a_sentence"] < spent


BAD_HEADERS = [
    "{'descr': '<u2', 'fortran_order': False, 'shape': (9,)",
    "{'descr': '<u2', 'fortran_order': False, 'shape': (-9,), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (9,), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (9,), }",
    "{'descr': '<u2', 'fortran_order': False, 'shape': (3, 3), }",
    "{'descr': '<u2', 'fortran_order': False, 'shape': (10**99,), }",
    "{'descr': '<u2', 'fortran_order': False, 'shape': (" + "9" * 99 + ",), }",
    "(" * 200,
    3 * "'",
    "\\",
    "{[]: 1}",
    "\0",
]


@pytest.mark.parametrize("header", BAD_HEADERS)
@pytest.mark.parametrize("name", ["source", "target_starts"])
def test_damaged_headers_are_damage(tmp_path, header, name):
    """Numpy reads them as Python, and fails as Python does."""
    folder = tmp_path / "e"
    encode_pairs(PAIRS, Letters(), folder, "en", "de")
    file = folder / f"{name}.npy"
    content = file.read_bytes()
    text = header.encode().ljust(len(content[10:128]))[:118]
    file.write_bytes(content[:10] + text + content[128:])
    with pytest.raises(CorpusError, match="damaged; delete the folder"):
        EncodedPairs.open(folder)


@pytest.mark.parametrize("content", [b"PK\x03\x04", b"\x80\x04", b"\x93NUMPY"])
def test_other_files_are_no_arrays(tmp_path, content):
    """Neither archives nor pickles, which numpy would open by their bytes."""
    folder = tmp_path / "e"
    encode_pairs(PAIRS, Letters(), folder, "en", "de")
    (folder / "source.npy").write_bytes(content * 50)
    with pytest.raises(CorpusError, match="damaged"):
        EncodedPairs.open(folder)


def test_pipes_are_no_arrays(tmp_path):
    """Nobody waits for what may never come."""
    folder = tmp_path / "e"
    for name in ("source.npy", "about.json"):
        encode_pairs(PAIRS, Letters(), folder, "en", "de")
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(CorpusError, match=f"{name}: expected a regular"):
            EncodedPairs.open(folder)
        (folder / name).unlink()


def test_starts_that_go_back_are_damage(tmp_path):
    """The ends fit, and what lies between does not."""
    folder = tmp_path / "e"
    encode_pairs(PAIRS, Letters(), folder, "en", "de")
    starts = np.load(folder / "source_starts.npy")
    starts[1], starts[2] = starts[2], starts[1]
    np.save(folder / "source_starts.npy", starts)
    with pytest.raises(CorpusError, match="damaged"):
        EncodedPairs.open(folder)
