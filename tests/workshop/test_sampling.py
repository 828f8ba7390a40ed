"""Sentences are counted exactly, mean one thing, and keep to their splits."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.workshop.trees import (
    DETERMINERS,
    DOG,
    KING,
    NOUNS,
    SLEEPS,
    VERBS,
    WORDS,
    clause,
)
from transformer_annotated.workshop.grammar import (
    ACCUSATIVE,
    DATIVE,
    NOMINATIVE,
    Clause,
    NounPhrase,
    RelativePronoun,
    Sentence,
    aligned_pair,
    german_noun,
)
from transformer_annotated.workshop.lexicon import NOT
from transformer_annotated.workshop.sampling import (
    all_sentences,
    all_words,
    count_sentences,
    sample_sentences,
    split_by_hash,
)


def tiny(nouns, verbs, determiners=("d",), pronouns=(1, 2, 4), **more):
    """A lexicon of a few words."""
    return replace(
        WORDS,
        nouns=tuple(NOUNS[noun] for noun in nouns),
        verbs=tuple(VERBS[verb] for verb in verbs),
        determiners=tuple(DETERMINERS[word] for word in determiners),
        pronouns=tuple(WORDS.pronouns[i] for i in pronouns),
        **{"adjectives": (), "adverbs": (), "times": (), "conjunctions": ()}
        | {"tenses": WORDS.tenses[:1]}
        | more,
    )


TINY = {
    "times and manners": (
        tiny(
            ["König", "Buch"],
            ["schlafen", "sehen", "anrufen"],
            ["d", "ein"],
            adverbs=WORDS.adverbs[:2],
            times=(WORDS.times[0], WORDS.times[-1]),
            tenses=WORDS.tenses[:3],
        ),
        0,
    ),
    "two clauses": (
        tiny(
            ["König"],
            ["ankommen", "sagen"],
            times=(WORDS.times[0], WORDS.times[-1]),
            tenses=WORDS.tenses[:2],
            conjunctions=WORDS.conjunctions[:2],
        ),
        0,
    ),
    "nouns": (tiny(["König", "Dame", "Buch"], ["sehen", "helfen"]), 1),
    "weak nouns": (tiny(["Nachbar", "Katze"], ["zusehen", "sehen"]), 1),
    "gifts": (tiny(["Dame", "Hut"], ["geben"], ["ein", "mein"], (1, 4)), 1),
    "depth": (tiny(["Dame"], ["schlafen", "sehen"], pronouns=(1, 2)), 2),
}


@pytest.mark.parametrize("name", TINY)
def test_translation_is_one_to_one(name):
    """With few words, all there is to say: no sentence has two meanings."""
    few, depth = TINY[name]
    language = all_sentences(few, depth)
    said = [aligned_pair(sentence) for sentence in language.members()]
    assert len(said) == language.count > 1000
    assert len({p.german for p in said}) == len(said)
    assert len({p.english for p in said}) == len(said)


@pytest.fixture(scope="module")
def sample():
    """Many sentences of all kinds, with relative clauses within others."""
    return sample_sentences(50_000, seed=1)


def test_no_sentence_of_a_sample_has_two_translations(sample):
    """Among all words, too: as many English sentences as German ones."""
    assert len({p.german for p in sample}) == len(sample)
    assert len({p.english for p in sample}) == len(sample)


def test_vocabulary_holds_the_words_of_sentences_and_no_others(sample):
    """A few hundred words, all of them used, one blank between two words."""
    known = all_words()
    more = sample_sentences(15_000, seed=2, depth=0)
    for language, side in (("de", "german"), ("en", "english")):
        said = {w for p in sample + more for w in getattr(p, side).split(" ")}
        assert said == set(known[language])
    assert len(known["de"]) + len(known["en"]) < 1000


def test_count_is_large_and_exact():
    """Over 10^8 sentences without any relative clause, and more with them."""
    counts = [count_sentences(depth) for depth in range(4)]
    assert counts[0] > 10**8
    assert all(b > 1000 * a for a, b in pairwise(counts))
    few = tiny(["König"], ["schlafen"], pronouns=(1,))
    # König, Könige or er, who sleep or do not: 3 * 2; depth 1: 2 more subjects
    # (König, Könige) with 2 relative clauses (sleep or do not) each
    assert all_sentences(few, 0).count == 6
    assert all_sentences(few, 1).count == 6 + 2 * 2 * 2
    with_time = replace(few, times=WORDS.times[:1])
    assert all_sentences(with_time, 0).count == 6 * 3


def test_words_are_aligned_with_words_that_translate_them(sample):
    """Each noun is linked to itself; only German commas have no partner."""
    forms = {}
    for noun in WORDS.nouns:
        for plural in (False, True):
            for case in (NOMINATIVE, ACCUSATIVE, DATIVE):
                form = german_noun(noun, plural, case)
                forms.setdefault(form, set()).add(noun[4 + plural])
    for p in sample[:5000]:
        german, english = p.german.split(), p.english.split()
        links = {i: [] for i in range(len(german))}
        for i, j in p.alignment:
            links[i].append(j)
        assert {j for _, j in p.alignment} == set(range(len(english)))
        for i, word in enumerate(german):
            if word == ",":
                assert [english[j] for j in links[i]] in ([], [","])
            else:
                assert links[i]
            if word in forms:
                (j,) = links[i]
                assert english[j] in forms[word]


def test_only_verbs_have_several_links(sample):
    """A separated particle shares its verb's word, and ``does`` its verb's."""
    known = {"ein", "mit", "an", "aus", "auf", "weg", "ab", "zu"}
    known |= {"habe", "hat", "haben", "bin", "ist", "sind"}
    for p in sample[:5000]:
        german, english = p.german.split(), p.english.split()
        for j, word in enumerate(english):
            linked = [german[i] for i, k in p.alignment if k == j]
            if len(linked) == 2:
                assert known & set(linked), (word, linked)
            else:
                assert len(linked) == 1, (word, linked)
        for i, word in enumerate(german):
            linked = [english[j] for k, j in p.alignment if k == i]
            if len(linked) > 1:
                assert len(linked) == 2 and linked[0] in ("do", "does"), word


def clauses_in(node):
    """All clauses of a tree, outer ones first."""
    if isinstance(node, Sentence):
        yield from clauses_in(node.main)
        if node.other:
            yield from clauses_in(node.other)
    if isinstance(node, Clause):
        yield node
        for part in node.nodes:
            yield from clauses_in(part)
    if isinstance(node, NounPhrase) and node.relative:
        yield from clauses_in(node.relative)


def test_what_the_grammar_never_says():
    """Unnatural clauses: nicht with ein, oft with heute, gestern too late."""
    numbers = random.Random(0)
    language = all_sentences(WORDS, 2)
    seen = set()
    for _ in range(3000):
        tree = language.draw(lambda n: int(numbers.random() * n))
        for one in clauses_in(tree):
            tense, time, first = one.when
            phrases = [n for n in one.nodes if isinstance(n, NounPhrase)]
            relatives = [n for n in phrases if n.relative]
            assert len(relatives) <= 1
            if one.manner is NOT:
                assert all(n.determiner.definite for n in phrases)
            if time:
                assert one.manner in (None, NOT)
                assert (time.kind == "past") == (tense.name == "perfect")
                late = not first and any(
                    n.relative for n in one.nodes[1:] if n in phrases
                )
                assert not late
            if one.verb.frame == "gift":  # not: whom he gives the book
                assert not isinstance(one.nodes[1], RelativePronoun)
            if first:
                assert one is tree.main and not tree.first
            if isinstance(one.nodes[0], NounPhrase):
                assert one.nodes[0].noun.kind != "thing"
            seen.add((one.verb.frame, tense.name, time is None))
    assert len(seen) == 7 * 3 * 2  # frames, "any" too; tenses; with a time


def test_commas_and_stops(sample):
    """No two marks in a row; the only stop ends the sentence."""
    for p in sample:
        for text in (p.german, p.english):
            marks = [word in ",." for word in text.split()]
            assert not any(a and b for a, b in pairwise(marks))
            assert text.endswith(" .") and text.count(".") == 1
            assert not marks[0]


def test_depth_limits_nesting():
    """Nothing is deeper than asked for, and everything up to it occurs."""
    for depth in range(4):
        found = {p.depth for p in sample_sentences(300, depth=depth)}
        assert found == set(range(depth + 1))
    inner = clause(
        "sehen", RelativePronoun("person", "m"), DOG(relative=SLEEPS)
    )
    tree = Sentence(clause("lachen", KING(relative=inner)))
    said = aligned_pair(tree)
    assert said.depth == 2
    assert (
        said.german
        == "der König , der den Hund , der schläft , sieht , lacht ."
    )
    assert said.english == "the king who sees the dog that sleeps laughs ."


def test_splits_share_no_sentence():
    """Whatever the seed and the depth, on both sides."""
    few = {}
    for split in ("train", "valid", "test"):
        drawn = sample_sentences(1500, seed=3, depth=0, split=split)
        drawn += sample_sentences(1500, seed=4, depth=0, split=split)
        assert {split_by_hash(p.german) for p in drawn} == {split}
        few[split] = drawn
    for side in ("german", "english"):
        sets = [{getattr(p, side) for p in drawn} for drawn in few.values()]
        assert len(set.union(*sets)) == sum(map(len, sets))


def test_split_shares():
    """Three quarters train; the rest is halved, here among two clauses."""
    few, depth = TINY["two clauses"]
    drawn = all_sentences(few, depth).members()
    splits = [
        split_by_hash(aligned_pair(sentence).german) for sentence in drawn
    ]
    for split, share in (("train", 0.75), ("valid", 0.125), ("test", 0.125)):
        assert abs(splits.count(split) / len(splits) - share) < 0.03


def test_sentences_are_determined_by_the_seed():
    """The same call says the same; a longer one says more of it."""
    assert sample_sentences(50, seed=5) == sample_sentences(50, seed=5)
    assert sample_sentences(50, seed=5) == sample_sentences(80, seed=5)[:50]
    assert sample_sentences(50, seed=5) != sample_sentences(50, seed=6)
    assert sample_sentences(0) == []


def test_corpus_does_not_change():
    """Salted hashes or another order of choices would give other sentences."""
    assert [p.german for p in sample_sentences(2, seed=0, split="test")] == [
        "meine Dame soll ankommen .",
        "sein Vogel darf heute lachen .",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": -1}, "count: -1, expected at least 0"),
        ({"count": 2.5}, "count: 2.5, expected an int"),
        ({"count": 1, "depth": -2}, "depth: -2, expected at least 0"),
        ({"count": 1, "split": "dev"}, "split: 'dev', expected one of"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    """The message names the argument and what was expected."""
    with pytest.raises(ValueError, match=message):
        sample_sentences(**arguments)
    if "depth" in arguments:
        with pytest.raises(ValueError, match=message):
            count_sentences(arguments["depth"])
