"""Labels that the grammar knows are true of the sentences they belong to."""

import random

import pytest

from transformer_annotated.after.labels import (
    LABELS,
    ROLES,
    Example,
    all_clauses,
    best_guess,
    label_roles,
    sample_examples,
    sample_stories,
    sample_texts,
    sample_trees,
)

EACH_HEAD = pytest.mark.parametrize("head", LABELS)


def test_roles_of_one_sentence():
    """Each noun has the role of its own clause; what it is given to, too."""
    found = {
        " ".join(example.first): example.label
        for example in sample_examples("tags", 30)
    }
    said = (
        "the king has thanked my aunts who have brought the dog this letter ."
    )
    said = said.split()
    roles = dict(zip(said, found[" ".join(said)], strict=True))
    names = {w: ROLES[i] for w, i in roles.items() if i is not None}
    assert names == {
        "king": "subject",
        "aunts": "direct object",
        "dog": "indirect object",
        "letter": "direct object",
    }


def test_all_clauses_of_a_sentence():
    """As many as there are finite verbs."""
    for tree in sample_trees(200):
        finite = sum("f" in part for _, _, part in tree.english())
        assert len(all_clauses(tree)) == finite


def test_texts_are_of_three_kinds():
    """Half of them single sentences, a quarter questions."""
    texts = sample_texts(80)
    assert len(texts) == 80
    assert sum(not text.second for text in texts) == 40
    assert sum(text.first[-1] == "?" for text in texts) == 20


def test_things_are_never_subjects():
    """And what a gift goes to is living."""
    things = {"letter", "apple", "hat", "key", "chair", "book", "egg"}
    for example in sample_examples("tags", 300):
        for word, role in zip(example.first, example.label, strict=True):
            if word in things:
                assert ROLES[role] == "direct object"


def test_a_wrong_verb_differs_in_one_word():
    """Changed sentences have one verb of the other number."""
    right = {" ".join(label_roles(t, random).first) for t in sample_trees(400)}
    checked = 0
    for example in sample_examples("sentence", 200):
        same = " ".join(example.first) in right
        checked += same
        if same:
            assert example.label == 1
    assert 50 < checked < 150


def test_spans_are_subjects():
    """The answer lies in the sentence, and begins a noun phrase."""
    for example in sample_examples("span", 200):
        start, end = example.label
        assert 0 <= start <= end < len(example.second)
        assert example.first[0] == "who" and example.first[-1] == "?"
        words = example.second[start : end + 1]
        assert words[0] not in ("who", "that", ".", ",")


def test_what_follows_says_less():
    """A sentence that follows has no word that the first has not."""
    for example in sample_examples("pair", 200):
        new = set(example.second) - set(example.first)
        assert len(example.second) < len(example.first)
        if example.label:  # but for "an apple" that was "a red apple"
            assert new <= {"a", "an"}


@EACH_HEAD
def test_examples_are_the_same_each_time(head):
    """And other ones for other seeds; both classes come up."""
    once, again = (sample_examples(head, 50, seed=3) for _ in range(2))
    assert once == again != sample_examples(head, 50, seed=4)
    if head in ("pair", "sentence"):
        assert 10 < sum(e.label for e in once) < 40


def test_stories():
    """What goes on agrees in gender; the best guess follows from chance."""
    stories = sample_stories(600, seed=2)
    assert {s.second[0] for s in stories} == {"he", "she", "they"}
    kings = [s for s in stories if s.first[:2] == ["the", "king"]]
    assert kings and all(s.second[0] == "he" for s in kings if s.label)
    one = [Example([], ["he"], 1)]
    assert best_guess(one) == 0.5
    assert best_guess([*one, Example([], ["she"], 1)]) == 0.75
    assert 0.75 < best_guess(stories) < 0.84
