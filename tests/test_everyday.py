"""The text of the shipped models: what is added, and what is set aside."""

import re
from collections import Counter

import pytest

from experiments import everyday
from transformer_annotated.workshop.corpora import Corpus
from transformer_annotated.workshop.parallel import read_pairs


@pytest.mark.parametrize(
    ("lower", "bare", "expected"),
    [
        (True, True, "wo ist tom"),
        (True, False, "wo ist tom?"),
        (False, True, "Wo ist Tom"),
    ],
)
def test_typed_in_haste(lower, bare, expected):
    """Without capitals, without the last mark, or both."""
    assert everyday.typed("Wo ist Tom?", lower, bare) == expected


def test_both_sides_are_typed_alike():
    """An answer is written like its question; the rate is about as asked."""
    pairs = [(f"It is {n}.", f"Es ist {n}.") for n in range(2000)]
    found = list(everyday.in_haste(pairs, 0.15, seed=0))
    assert 200 < len(found) < 400
    for english, german in found:
        assert english[0].islower() == german[0].islower()
        assert english.endswith(".") == german.endswith(".")
        assert english not in dict(pairs)
    assert found == list(everyday.in_haste(pairs, 0.15, seed=0))


def test_greetings_without_a_name():
    """Only where both sides end with the same name."""
    pairs = [
        ("Good morning, Tom.", "Guten Morgen, Tom!"),
        ("Hi, Tom.", "Hallo, Maria."),
        ("Yes, I do.", "Ja, das tue ich."),
        ("Tom, stop.", "Halt, Tom."),
    ]
    assert list(everyday.nameless(pairs)) == [
        ("Good morning.", "Guten Morgen!")
    ]


def test_words_that_belong_together():
    """The most faithful companions, on both sides; no rare and no loose one."""
    pairs = [("the dog", "der Hund"), ("his dog", "sein Hund")] * 3
    pairs += [("the cat", "die Katze"), ("his cat", "seine Katze")] * 4
    pairs += [("the bird", "der Vogel")] * 4
    found = set(everyday.word_pairs(pairs))
    assert {("dog", "Hund"), ("cat", "Katze")} <= found
    assert len(dict(found)) == len(found)
    assert not {word for pair in found for word in pair} & {"bird", "Vogel"}
    said = [*pairs, ("Dog!", "Hund!")]
    assert "dog" not in dict(everyday.word_pairs(said))
    loose = [("a", f"{word}") for word in "abcdefgh" for _ in range(5)]
    assert not list(everyday.word_pairs(loose))


def test_the_longer_side_has_the_length():
    """Both bounds are included."""
    pairs = [("word " * n, "Wort") for n in range(1, 6)]
    assert list(everyday.of_length(pairs, 4, 2)) == pairs[1:4]
    assert list(everyday.of_length(pairs, 2)) == pairs[:2]


def test_lines_of_several_sentences():
    """Whole ones, each once, side by side in both languages."""
    pairs = [(f"It is {n}.", f"Es ist {n}!") for n in range(100)]
    found = list(everyday.lines([*pairs, ("Oh", "Oh")], 3, seed=0))
    assert found == list(everyday.lines([*pairs, ("Oh", "Oh")], 3, seed=0))
    sentences = []
    for english, german in found:
        assert english == german.replace("Es ist", "It is").replace("!", ".")
        assert 2 <= english.count(".") <= 3
        sentences += re.findall(r"\d+", english)
    assert len(set(sentences)) == len(sentences) >= 99


def test_the_phrase_book():
    """Two columns, sentences on both sides, and no line twice."""
    pairs = list(read_pairs(everyday.PHRASES))
    assert ("Yes.", "Ja.") in pairs and len(set(pairs)) == len(pairs) > 50
    for pair in pairs:
        assert all(side[0].isupper() and side[-1] in ".?" for side in pair)


def test_what_is_set_aside_is_in_no_other_part(monkeypatch):
    """Neither as it is, nor typed in haste; nothing long is added."""
    said = [(f"It is {n}.", f"Es ist {n}.") for n in range(30_000)]
    long, endless = (("word " * n, "Wort " * n) for n in (40, 41))
    spoken = [long, endless]
    spoken += [(f"Madam {n}.", f"Frau {n}.") for n in range(99)]

    def load_corpus(name, source, target):
        parts = {"tatoeba": said, "europarl": spoken}
        valid = [("Yes.", "Ja.")]
        splits = {"train": parts[name], "valid": valid}
        return Corpus(name, source, target, splits)

    monkeypatch.setattr(everyday, "load_corpus", load_corpus)
    parts = everyday.mixture()
    assert len(parts["test"]) == everyday.TEST
    train = {
        side.lower().rstrip(".") for pair in parts["train"] for side in pair
    }
    for pair in parts["test"]:
        assert not train & {side.lower().rstrip(".") for side in pair}
    assert long in parts["train"] and endless not in parts["train"]
    assert ("Madam 98.", "Frau 98.") in parts["train"]
    assert parts["val"] == [("Yes.", "Ja.")]


def test_what_is_short_is_repeated(monkeypatch):
    """A word or two, in all ways of typing it; a sentence is not."""
    said = [(f"It is now {n}.", f"Es ist nun {n}.") for n in range(9_000)]
    said += [("Good night.", "Gute Nacht.")]
    parts = {"tatoeba": said, "europarl": []}

    def load_corpus(name, source, target):
        splits = {"train": parts[name], "valid": [("Yes.", "Ja.")]}
        return Corpus(name, source, target, splits)

    monkeypatch.setattr(everyday, "load_corpus", load_corpus)
    found = Counter(everyday.mixture()["train"])
    for text in ("good night", "good night.", "Good night"):
        german = text.replace("ood", "ute").replace("night", "nacht")
        german = german.replace("Gute n", "Gute N")
        assert found[text, german] == everyday.TIMES
    assert max(found[pair] for pair in said[:-1]) == 1
    assert found["Yes.", "Ja."] == 0 < found["No.", "Nein."]
