"""Probabilities of sentences: as listed, as drawn, and of what is none."""

import random
from collections import Counter
from math import exp, fsum, inf, isclose, log

import pytest

from tests.workshop.test_sampling import TINY
from transformer_annotated.workshop.grammar import surface
from transformer_annotated.workshop.lexicon import lexicon
from transformer_annotated.workshop.likelihood import (
    derivations,
    log_probability,
)
from transformer_annotated.workshop.sampling import (
    all_of,
    all_sentences,
    either,
    one_of,
    sample_sentences,
)

FLAT = [name for name, (_, depth) in TINY.items() if depth == 0]


def by_list(language):
    """The entropy of a set, from the probabilities of all its members."""
    return -fsum(p * log(p) for _, p in language.outcomes())


# --- entropy


def test_entropy_by_hand():
    """Equals, a sum that pays for its choice, a product that adds."""
    coin, die = one_of("ht"), one_of(range(6))
    assert coin.entropy == log(2) and one_of([]).entropy == 0
    assert isclose(all_of(min, coin, die).entropy, log(12))
    uneven = either((3, one_of("a")), (1, coin))
    p = {"a": 3 / 4, "h": 1 / 8, "t": 1 / 8}
    assert dict(uneven.outcomes()) == p
    assert isclose(uneven.entropy, -sum(q * log(q) for q in p.values()))
    assert list(all_of(lambda: "x").outcomes()) == [("x", 1)]


@pytest.mark.parametrize("name", TINY)
def test_entropy_is_that_of_a_list(name):
    """With few words, every sentence and its probability."""
    language = all_sentences(*TINY[name])
    assert isclose(fsum(p for _, p in language.outcomes()), 1)
    assert isclose(by_list(language), language.entropy, rel_tol=1e-9)


def test_entropy_of_the_language():
    """What a perfect model pays for a sentence, in nats."""
    found = [all_sentences(lexicon(), depth).entropy for depth in range(3)]
    assert [round(entropy, 3) for entropy in found] == [27.979, 38.124, 42.517]


def test_drawn_as_often_as_listed():
    """A quarter of a million draws, within five standard errors."""
    language, n = either((3, one_of("ab")), (2, one_of("cde"))), 250_000
    numbers = random.Random(0)
    drawn = Counter(
        language.draw(lambda k: int(numbers.random() * k)) for _ in range(n)
    )
    for member, p in language.outcomes():
        error = (p * (1 - p) / n) ** 0.5
        assert abs(drawn[member] / n - p) < 5 * error


# --- the probability of a sentence


@pytest.mark.parametrize("name", FLAT)
def test_every_listed_sentence_has_one_derivation(name):
    """With the probability that the list says."""
    words, depth = TINY[name]
    for sentence, p in all_sentences(words, depth).outcomes():
        [way] = derivations(surface(sentence.english()), words)
        assert isclose(way, log(p), rel_tol=1e-9)


def test_one_derivation_with_all_words():
    """Among sentences drawn, none has two: the entropy is that of English."""
    drawn = sample_sentences(3000, seed=7, depth=0)
    for pair in drawn:
        [way] = derivations(pair.english)
        assert way == log_probability(pair.english) < 0
        assert 0 < exp(way) < 1e-3


def test_by_hand():
    """Weights of a sentence, a frame, a clause, a subject, a verb, a tense."""
    # 5/8 of sentences have one clause, 1/5 of those no object, 1/2 no time,
    # 4/5 no negation, 3/4 no adverb; 1/10 this verb; 3/8 the present;
    # 1/4 pronouns, 1/5 this one
    p = 5 / 8 * 1 / 5 * 1 / 2 * 4 / 5 * 3 / 4 * 1 / 10 * 3 / 8 * 1 / 4 * 1 / 5
    assert isclose(log_probability("he sleeps ."), log(p))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "he sleeps",
        "he sleep .",
        "he  sleeps .",
        "sleeps he .",
        "the king sees .",
        "the letter sees the king .",
        "he does not often sleep .",
        "a king does not sleep .",
        "the king sees he .",
        "he slept today .",
        "a old dog runs .",
        "although he sleeps .",
        "the king who sleeps laughs .",
        "<unk>",
    ],
)
def test_what_is_no_sentence(text):
    """Agreement, order, case, tense, an end, or a relative clause."""
    assert log_probability(text) == -inf and derivations(text) == []


def test_no_text_is_refused():
    """One line, which says what was expected."""
    with pytest.raises(ValueError, match="text: int, expected a str"):
        log_probability(3)
