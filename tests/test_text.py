"""Text becomes ids and comes back: words, and byte pairs without loss."""

import inspect
import json
import os
from collections import Counter
from itertools import pairwise

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from tests.site import ROOT
from transformer_annotated import text
from transformer_annotated.text import (
    BOS,
    EOS,
    PAD,
    SPECIALS,
    UNK,
    BPETokenizer,
    WordTokenizer,
    load_tokenizer,
    train_bpe,
    train_word_tokenizer,
)
from transformer_annotated.workshop.files import load_result

ENGLISH = [
    "The ship sails down the river; the river is wide.",
    "It's the captain's ship, and the captain isn't here.",
    "The old captain has two ships, 12 sailors and 120 barrels.",
]
GERMAN = [
    "Das Schiff fährt den Fluss hinab; der Fluss ist breit.",
    "Es ist das Schiff des Kapitäns, und der Kapitän ist nicht hier.",
    "Der alte Kapitän hat zwei Schiffe, 12 Matrosen und 120 Fässer.",
]
BPE = train_bpe(ENGLISH + GERMAN, vocab_size=400)
WORDS = train_word_tokenizer({"en": ENGLISH, "de": GERMAN})
BLANK = train_word_tokenizer({"": ["a b a b c", "c <pad> </s> <pad> </s>"]})
HARD = [
    "",
    " ",
    "  a  ",
    "a\n\n b\t",
    "</s>",
    "a </s> <pad><s> <unk>",
    "\x00\x00",
    "👩‍👩‍👧 🎉",
    "u\u0308ber é\u0301\u0301",
    "„Fluss“ – “ship”…",
    "中文。日本語",
    "▁Ġ",
    "\ufffd\ufeff\u2028",
    "'s 'll don'tx",
    "\U0010ffff",
]
TEXTS = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from(" '")
) | st.sampled_from([*HARD, *ENGLISH, *GERMAN])


def test_specials_have_the_first_ids():
    """Both tokenisers number the specials 0 to 3, in the same order."""
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert SPECIALS == ("<pad>", "<s>", "</s>", "<unk>")
    assert tuple(WORDS.vocab.itos[:4]) == SPECIALS
    assert tuple(map(BPE.tokenizer.id_to_token, range(4))) == SPECIALS


# Byte pairs


@given(st.text())
def test_byte_pairs_lose_nothing(line):
    """Any text comes back as it was, and no id is a special one."""
    ids = BPE.encode(line)
    assert BPE.decode(ids) == line
    assert all(4 <= i < BPE.vocab_size for i in ids)


@pytest.mark.parametrize("line", HARD)
def test_byte_pairs_lose_nothing_hard(line):
    """Neither do blanks, marks, emoji, NULs and names of specials get lost."""
    ids = BPE.encode(line)
    assert BPE.decode(ids) == line
    assert min(ids, default=4) >= 4


def test_every_byte_is_known():
    """All 256 bytes have an id, so nothing is ever unknown."""
    assert {p for p in BPE._bytes if len(p) == 1} == {
        bytes([b]) for b in range(256)
    }


@given(TEXTS)
def test_encode_is_the_librarys(line):
    """Words cut in Python and remembered give what the library gives."""
    expected = BPE.tokenizer.encode(line).ids
    assert BPE.encode(line) == expected
    assert BPE.encode_batch([line, line]) == [expected] * 2


@given(st.lists(st.integers(0, BPE.vocab_size - 1)))
def test_decode_joins_the_bytes_of_pieces(ids):
    """Whatever a model writes, halves of characters too, can be read."""
    joined = b"".join(BPE._bytes[i] for i in ids)
    assert BPE.decode(ids) == joined.decode(errors="replace")


@given(TEXTS, st.floats(0.01, 0.99), st.integers(0, 9))
def test_dropout_cuts_the_same_text_in_other_places(line, rate, seed):
    """Nothing is lost, and no special appears, whatever is left out."""
    (ids,) = BPE.encode_batch([line], dropout=rate, seed=seed)
    assert BPE.decode(ids) == line
    assert len(ids) >= len(BPE.encode(line)) and min(ids, default=4) >= 4


def test_dropout_depends_on_seed_and_text_alone():
    """Not on the other texts; without any, or hardly any, cuts are usual."""
    lines = ENGLISH + GERMAN
    drawn = BPE.encode_batch(lines, dropout=0.3)
    assert BPE.encode_batch(lines[::-1], dropout=0.3)[::-1] == drawn
    assert BPE.encode_batch(lines, dropout=0.3, seed=1) != drawn
    assert BPE.encode_batch(lines, dropout=1e-12) == BPE.encode_batch(lines)
    bytes_alone = BPE.encode_batch(lines, dropout=1 - 1e-12)
    assert [len(ids) for ids in bytes_alone] == [
        len(line.encode()) for line in lines
    ]
    for wrong in (1, -0.1, "0.1"):
        with pytest.raises(ValueError, match="dropout"):
            BPE.encode_batch(lines, dropout=wrong)


def test_decode_leaves_out_specials_and_takes_tensors():
    """What stands around a sentence and after it is not shown."""
    for tokenizer, line, language in (
        (BPE, "the ship", None),
        (WORDS, "the ship", "en"),
    ):
        ids = tokenizer.encode(line, language)
        whole = [BOS, *ids, EOS, PAD, UNK]
        assert tokenizer.decode(whole) == line
        assert tokenizer.decode(torch.tensor(whole)) == line
        assert tokenizer.decode(iter(ids)) == line
        assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("tokenizer", [BPE, WORDS])
def test_decode_refuses_ids_that_are_none(tokenizer):
    """Ids outside the vocabulary are named."""
    size = tokenizer.vocab_size
    for wrong in (-1, size):
        with pytest.raises(ValueError, match=f"ids: {wrong}, .* has {size}"):
            tokenizer.decode([4, wrong])
        with pytest.raises(ValueError, match=f"ids: {wrong}, "):
            tokenizer.decode(torch.tensor([4, wrong]))
    with pytest.raises(TypeError):
        tokenizer.decode([4.5])


def test_languages_share_ids():
    """One vocabulary: a word common to both languages has the same ids."""
    assert BPE.encode("12", "en") == BPE.encode("12", "de")
    assert WORDS.encode("12", "en") == WORDS.encode("12", "de")
    assert WORDS.encode("12", "en") != [UNK]
    pieces = {p for p in BPE.tokenize(ENGLISH[0]) if len(p) > 1}
    assert pieces & set(BPE.tokenize(GERMAN[0]))
    assert BPE.encode_batch(GERMAN, "de") == BPE.encode_batch(GERMAN)


def test_default_size_is_the_papers():
    """English–German has about 37,000 pieces."""
    default = inspect.signature(train_bpe).parameters["vocab_size"].default
    assert default == 37_000


@pytest.mark.parametrize("size", [37_000, 32_000])
def test_sizes_of_the_paper_can_be_learned(size):
    """With text enough, the vocabulary has exactly the size asked for."""
    syllables = [
        a + b + c
        for a in "bdfgklmnprst"
        for b in "aeiouyäöü"
        for c in "bdfgklmnprst"
    ]
    lines = (
        f"{first}{second}"
        for k in range(30)
        for i, first in enumerate(syllables)
        for second in (syllables[(7 * i + 31 * k) % len(syllables)],)
    )
    learned = train_bpe(lines, size, min_frequency=1)
    assert learned.vocab_size == size
    assert learned.decode(learned.encode("bügeln")) == "bügeln"


def merges_by_definition(lines, least=2):
    """Merge the most frequent pair, the first by number if several are."""
    cutter = BPE.tokenizer.pre_tokenizer
    words = Counter(
        word for line in lines for word, _ in cutter.pre_tokenize_str(line)
    )
    cuts = {word: list(word) for word in words}
    number = {s: i for i, s in enumerate(sorted(set("".join(words))))}
    merges = []
    while True:
        counts = Counter()
        for word, cut in cuts.items():
            for pair in pairwise(cut):
                counts[pair] += words[word]
        often = [pair for pair in counts if counts[pair] >= least]
        if not often:
            return merges
        most = max(counts.values())
        a, b = min(
            (pair for pair in often if counts[pair] == most),
            key=lambda pair: [number[piece] for piece in pair],
        )
        merges.append([a, b])
        number.setdefault(a + b, len(number))
        for cut in cuts.values():
            for i in range(len(cut) - 1):
                if cut[i : i + 2] == [a, b]:
                    cut[i : i + 2] = [a + b]


@given(st.lists(st.text("ab ä.", min_size=1), min_size=1))
@example(ENGLISH + GERMAN)
def test_merges_are_those_of_the_definition(lines):
    """The library merges what the definition says, ties included."""
    learned = json.loads(train_bpe(lines).tokenizer.to_str())["model"]["merges"]
    assert learned == merges_by_definition(lines)


def test_little_text_gives_a_small_vocabulary():
    """Pairs run out before the size is reached; that is no error."""
    little = train_bpe(["ab ab ab"], vocab_size=1000)
    assert little.tokenize("ab ab abc") == ["ab", "▁ab", "▁ab", "c"]
    assert little.vocab_size == 4 + 256 + 2
    assert train_bpe(["ab"], vocab_size=260).vocab_size == 260


def test_empty_lines_do_no_harm():
    """Training text may have empty lines, at its end too."""
    assert train_bpe(["", "ab ab", ""]).tokenize("ab") == ["ab"]
    assert train_word_tokenizer({"": ["", "a a", ""]}).tokenize("a") == ["a"]


def test_rare_pairs_are_not_merged():
    """Only pairs as frequent as asked for become pieces."""
    lines = ["ab ab", "cd"]
    assert train_bpe(lines).tokenize("cd") == ["c", "d"]
    assert train_bpe(lines, min_frequency=1).tokenize("cd") == ["cd"]


def test_training_is_repeatable():
    """The same text gives the same vocabulary, in whatever order it comes."""
    again = train_bpe(iter(ENGLISH + GERMAN), vocab_size=400)
    turned = train_bpe(GERMAN[::-1] + ENGLISH, vocab_size=400)
    assert again.tokenizer.to_str() == BPE.tokenizer.to_str()
    assert turned.tokenizer.to_str() == BPE.tokenizer.to_str()


@pytest.mark.parametrize(
    "train", [train_bpe, lambda t: train_word_tokenizer({"": t})]
)
def test_training_reads_a_stream_once(train):
    """Text is taken line by line, as it comes."""
    alive = Counter()

    class Line(str):
        def __init__(self, _):
            alive["now"] += 1
            alive["most"] = max(alive["now"], alive["most"])

        def __del__(self):
            alive["now"] -= 1

    tokenizer = train(Line(f"word {i % 7}") for i in range(20_000))
    assert tokenizer.decode(tokenizer.encode("word 3")) == "word 3"
    assert alive["most"] <= 2000


def test_training_text_alone_decides():
    """What is encoded later, however often, changes nothing."""
    before = BPE.vocab_size, BPE.encode("Donaudampfschiff")
    words = WORDS.vocab_size
    for _ in range(3):
        BPE.encode_batch(["Donaudampfschiff"] * 5)
        assert WORDS.encode("Donaudampfschiff", "de") == [UNK]
    assert (BPE.vocab_size, BPE.encode("Donaudampfschiff")) == before
    assert WORDS.vocab_size == words
    assert len(WORDS.vocab.stoi) == words


def test_pieces_are_readable():
    """Blanks are shown, halves of characters as bytes, the rest as it is."""
    learned = train_bpe(["schön schön schön"], vocab_size=300)
    assert learned.tokenize("schön schön") == ["schön", "▁schön"]
    assert learned.tokenize("ä\n") == [r"\xc3", r"\xa4", r"\n"]
    joined = "".join(BPE.tokenize(GERMAN[1]))
    assert joined == GERMAN[1].replace(" ", "▁")


def cut(line):
    """The words of a line, as the library cuts it before it pairs bytes."""
    spans = BPE.tokenizer.pre_tokenizer.pre_tokenize_str(line)
    return [line[begin:end] for _, (begin, end) in spans]


def test_words_are_cut_before_they_are_paired():
    """Words keep the blank before them; numbers and marks stand apart."""
    assert cut("Über  12a's „x“ it's, u\u0308 ") == [
        "Über", " ", " 12", "a", "'s", " „", "x", "“", " it", "'s", ",",
        " u\u0308", " ",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("a\t\n b", ["a", "\t\n", " b"]),
        ("a   b", ["a", " ", " ", " b"]),
        ("don't'tx", ["don", "'t", "'", "tx"]),
        ("港。a", ["港", "。", "a"]),
    ],
)
def test_words_are_cut_at(line, words):
    """White space, contractions and marks of other scripts cut words."""
    assert cut(line) == words


@given(TEXTS)
def test_cutting_loses_nothing(line):
    """The words of a text, put together, are the text."""
    assert "".join(cut(line)) == line


def test_byte_alphabet_is_the_librarys():
    """Each byte has the character that the library gives it."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte = text._byte_of_symbol()
    assert set(byte) == set(level.alphabet())
    assert sorted(byte.values()) == list(range(256))
    for character in map(chr, range(0x800)):
        ((symbols, _),) = level.pre_tokenize_str(character)
        assert bytes(map(byte.get, symbols)) == character.encode()


def test_cache_is_limited():
    """Words beyond the limit are cut anew each time, and come out alike."""
    cache = text._WordCache(BPE.tokenizer, "", limit=2)
    words = ["ship", "river", "captain", "barrel"]
    first = [cache[word] for word in words]
    assert list(cache) == words[:2]
    assert [cache[word] for word in words] == first
    assert first == BPE.encode_batch(words)


def test_answers_are_the_callers():
    """Changing what was returned does not change the next answer."""
    ids = BPE.encode("ship")
    expected = list(ids)
    ids.append(99)
    assert BPE.encode("ship") == expected


# WordTokenizer


def test_words_are_cut_by_the_rules_of_their_language():
    """English cuts contractions, German keeps abbreviations, "" cuts blanks."""
    texts = {"en": ["isn't z.B. it"], "de": ["geht's z.B."], "": ["isn't, x"]}
    words = train_word_tokenizer(texts, min_frequency=1)
    assert words.tokenize("isn't", "en") == ["is", "n't"]
    assert words.tokenize("z.B.", "de") == ["z.B."]
    assert words.tokenize("isn't, x", "") == ["isn't,", "x"]
    assert words.tokenize("isn't, x") == ["isn't,", "x"]


def test_words_come_by_frequency():
    """The most frequent word is first; equals are in order of the alphabet."""
    words = train_word_tokenizer({"": ["c b b a a d d d"]}, min_frequency=1)
    assert words.vocab.itos == [*SPECIALS, "d", "a", "b", "c"]
    assert words.encode("a b c d") == [5, 6, 7, 4]
    assert words.vocab_size == 8


def test_rare_and_unseen_words_are_unknown():
    """A word needs its minimum of occurrences, over all languages."""
    texts = {"en": ["so one"], "de": ["so zwei"]}
    words = train_word_tokenizer(texts)
    assert words.vocab.itos == [*SPECIALS, "so"]
    assert words.tokenize("so one new", "en") == ["so", "<unk>", "<unk>"]
    assert words.decode(words.encode("so one new", "en")) == "so"


def test_names_of_specials_in_text_are_no_specials():
    """A text that says <pad> is not padded, and </s> does not end it."""
    assert BLANK.vocab_size == 4 + 3
    assert BLANK.encode("a <pad> b </s> <s> <unk>") == [4, 3, 5, 3, 3, 3]


def test_blanks_between_words_do_not_matter():
    """Any white space parts words and is no word itself."""
    expected = WORDS.encode("the ship", "en")
    assert len(expected) == 2
    assert WORDS.encode("  the \t ship\n", "en") == expected
    assert BLANK.encode(" a\t\n b ") == BLANK.encode("a b")


def test_batch_is_one_by_one():
    """A batch of words gives the ids of its sentences."""
    assert WORDS.encode_batch(GERMAN, "de") == [
        WORDS.encode(line, "de") for line in GERMAN
    ]
    assert WORDS.encode_batch([], "de") == BPE.encode_batch([]) == []


# Files


@pytest.mark.parametrize("tokenizer", [BPE, WORDS, BLANK])
def test_saved_tokenizer_comes_back(tokenizer, tmp_path):
    """A file holds all there is to a tokenizer."""
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    again = load_tokenizer(path)
    assert type(again) is type(tokenizer)
    assert again.vocab_size == tokenizer.vocab_size
    language = "" if tokenizer is BLANK else "de"
    for line in [*HARD, *ENGLISH, *GERMAN, "a b c <pad>"]:
        ids = tokenizer.encode(line, language)
        assert again.encode(line, language) == ids
        assert again.decode(ids) == tokenizer.decode(ids)
    again.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["again.json", "tokenizer.json"]
    content = path.read_text(encoding="utf-8")
    json.loads(content)
    assert ("Kapitän" in content) == (tokenizer is WORDS)


@pytest.mark.parametrize("tokenizer", [BPE, WORDS])
def test_interrupted_save_keeps_the_old_file(tokenizer, tmp_path, monkeypatch):
    """A file is replaced as a whole, or not at all."""
    path = tmp_path / "tokenizer.json"
    path.write_text("old")

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        tokenizer.save(path)
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["tokenizer.json"]


def foreign(specials=SPECIALS):
    """Byte pairs from elsewhere, as a file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    trainer = trainers.BpeTrainer(
        special_tokens=list(specials), show_progress=False
    )
    tokenizer.train_from_iterator(ENGLISH, trainer)
    return tokenizer.to_str()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "line 1"),
        ("[]", ""),
        ('{"type": "words"}', "frequencies"),
        ('{"type": "other"}', ""),
        (foreign(), "another way"),
        (foreign(SPECIALS[::-1]), "first tokens"),
    ],
)
def test_other_files_are_refused(content, says, tmp_path):
    """A file that is no tokenizer of ours is named, with the reason."""
    path = tmp_path / "strange.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"strange\.json .*{says}"):
        load_tokenizer(path)


def test_missing_and_broken_files_are_refused(tmp_path):
    """No file is no tokenizer; neither is one that is not UTF-8."""
    with pytest.raises(ValueError, match=r"none\.json: no such file"):
        load_tokenizer(tmp_path / "none.json")
    (tmp_path / "latin.json").write_bytes(b'{"a": "\xe4"}')
    with pytest.raises(ValueError, match=r"latin\.json"):
        load_tokenizer(tmp_path / "latin.json")


# What is refused


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: train_bpe(["a"], 259), "vocab_size: 259, .* 260"),
        (lambda: train_bpe([]), "texts: no text"),
        (lambda: train_bpe(["", ""]), "texts: no text"),
        (lambda: train_bpe("abc"), "texts: a single str"),
        (lambda: train_bpe(["a", b"b"]), "texts, sentence 1: bytes"),
        (lambda: train_bpe(["a"], min_frequency=0), "min_frequency: 0"),
        (
            lambda: train_bpe(["a", "bc\ud800"]),
            r"texts, sentence 1: lone surrogate U\+D800 at character 2",
        ),
        (lambda: train_word_tokenizer({"en": []}), r"texts\['en'\]: no text"),
        (lambda: train_word_tokenizer({}), "texts: "),
        (
            lambda: train_word_tokenizer({"": "abc"}),
            r"texts\[''\]: a single str",
        ),
        (
            lambda: train_word_tokenizer({"": ["a b"]}),
            "2 different words, .* 2 times",
        ),
        (lambda: train_word_tokenizer({"": ["<s> <s>"]}), "1 different words"),
        (lambda: train_word_tokenizer({"": ["a"]}, 0), "min_frequency: 0"),
        (lambda: train_word_tokenizer({"zz": ["a a"]}), "language: 'zz'"),
        (
            lambda: train_word_tokenizer({"": ["a \udfff"]}),
            r"sentence 0: lone surrogate U\+DFFF at character 2",
        ),
        (lambda: WORDS.encode("a"), "language: '', expected .*'en', 'de'"),
        (lambda: BLANK.encode("a", "en"), "language: 'en', expected one of ''"),
    ],
)
def test_bad_arguments_are_named(call, says):
    """What cannot be meant is refused, in words."""
    with pytest.raises(ValueError, match=says):
        call()


@pytest.mark.parametrize("tokenizer", [BPE, BLANK])
def test_bad_text_is_named(tokenizer):
    """Half a character has no bytes: said with its place."""
    for method in (tokenizer.encode, tokenizer.tokenize):
        with pytest.raises(
            ValueError, match=r"text: lone surrogate U\+DC80 at character 3"
        ):
            method("abc\udc80")
        with pytest.raises(ValueError, match="text: int, expected a str"):
            method(3)
    with pytest.raises(ValueError, match=r"sentence 1: lone surrogate U\+DC80"):
        tokenizer.encode_batch(["a", "\udc80"])
    with pytest.raises(ValueError, match="texts: a single str"):
        tokenizer.encode_batch("abc")
    with pytest.raises(ValueError, match="sentence 1: NoneType"):
        tokenizer.encode_batch(["a", None])


def test_types():
    """Both kinds are what they say, with ids that are plain ints."""
    assert isinstance(BPE, BPETokenizer) and isinstance(WORDS, WordTokenizer)
    assert {type(i) for i in BPE.encode("ship")} == {int}
    assert {type(i) for i in WORDS.encode("the ship", "en")} == {int}


# The first run


def test_the_first_run_was_repeated_at_other_rates():
    """The experiment has the chapter's loop; the chapter's rate copies all."""
    chapter = json.loads((ROOT / "notebooks/09_text.ipynb").read_text("utf-8"))
    (loop,) = (
        "".join(cell["source"]).partition("\nfor _ in range(")[2]
        for cell in chapter["cells"]
        if "seen, losses = set(), []\n" in cell["source"]
    )
    steps, _, body = loop.partition("):\n")
    lines = [line.partition("  #")[0].strip() for line in body.splitlines()]
    source = (ROOT / "experiments" / "first_run.py").read_text("utf-8")
    for line in lines[1:]:
        assert line.replace("128", "LINES") in source
    result = load_result("first_run")
    copied = {row["rate"]: row["copied"] for row in result["rows"]}
    assert result["updates"] == int(steps)
    assert copied[0.001] == result["tested"] > max(copied[0.0001], copied[0.03])
