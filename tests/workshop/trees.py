"""Trees of the grammar, built from the German words of their parts."""

from transformer_annotated.workshop.grammar import (
    Clause,
    NounPhrase,
    Pronoun,
    RelativePronoun,
    When,
)
from transformer_annotated.workshop.lexicon import NOT, THAT, lexicon

WORDS = lexicon()
NOUNS = {noun.german: noun for noun in WORDS.nouns}
VERBS = {verb.infinitive: verb for verb in WORDS.verbs}
ADJECTIVES = {word.german: word for word in WORDS.adjectives}
DETERMINERS = {word.german: word for word in WORDS.determiners}
ADVERBS = {word.german: word for word in WORDS.adverbs} | {"nicht": NOT}
TIMES = {time.german: time for time in WORDS.times}
TENSES = {t.english or t.name: t for t in WORDS.tenses}
CONJUNCTIONS = {w.german: w for w in WORDS.conjunctions} | {"dass": THAT}
PRONOUNS = dict(
    zip(("ich", "er", "sie", "wir", "they"), WORDS.pronouns, strict=True)
)


def phrase(determiner, noun, adjective=None, plural=False, relative=None):
    """A noun phrase from the German words of its parts."""
    return NounPhrase(
        DETERMINERS[determiner],
        ADJECTIVES[adjective] if adjective else None,
        NOUNS[noun],
        plural,
        relative,
    )


def someone(name):
    """A pronoun by its name."""
    return Pronoun(PRONOUNS[name])


def clause(verb, *nodes, tense="present", time=None, first=False, manner=None):
    """A clause from the German words of its parts."""
    return Clause(
        VERBS[verb],
        When(TENSES[tense], TIMES[time] if time else None, first),
        ADVERBS[manner] if manner else None,
        nodes,
    )


KING, LADY, DOG, BOOK = (
    lambda *rest, noun=noun, **more: phrase("d", noun, *rest, **more)
    for noun in ("König", "Dame", "Hund", "Buch")
)
SLEEPS = clause("schlafen", RelativePronoun("animal", "m"))
