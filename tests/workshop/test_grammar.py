"""The grammar speaks correct German and English."""

import pytest

from tests.workshop.trees import (
    BOOK,
    CONJUNCTIONS,
    DOG,
    KING,
    LADY,
    NOUNS,
    SLEEPS,
    WORDS,
    clause,
    phrase,
    someone,
)
from transformer_annotated.workshop.grammar import (
    ACCUSATIVE,
    DATIVE,
    NOMINATIVE,
    RelativePronoun,
    Sentence,
    aligned_pair,
    surface,
)
from transformer_annotated.workshop.lexicon import THAT

DECLENSION = """
d alt König: der alte König, den alten König, dem alten König
d alt Dame: die alte Dame, die alte Dame, der alten Dame
d alt Kind: das alte Kind, das alte Kind, dem alten Kind
d alt Könige: die alten Könige, die alten Könige, den alten Königen
dies alt König: dieser alte König, diesen alten König, diesem alten König
dies müd Dame: diese müde Dame, diese müde Dame, dieser müden Dame
dies alt Kinder: diese alten Kinder, diese alten Kinder, diesen alten Kindern
jed alt Kind: jedes alte Kind, jedes alte Kind, jedem alten Kind
ein alt König: ein alter König, einen alten König, einem alten König
ein alt Dame: eine alte Dame, eine alte Dame, einer alten Dame
ein alt Kind: ein altes Kind, ein altes Kind, einem alten Kind
ein alt Könige: alte Könige, alte Könige, alten Königen
unser alt König: unser alter König, unseren alten König, unserem alten König
mein alt Damen: meine alten Damen, meine alten Damen, meinen alten Damen
sein arm Mädchen: sein armes Mädchen, sein armes Mädchen, seinem armen Mädchen
sein jung Junge: sein junger Junge, seinen jungen Jungen, seinem jungen Jungen
d jung Nachbar: der junge Nachbar, den jungen Nachbarn, dem jungen Nachbarn
d jung Bär: der junge Bär, den jungen Bären, dem jungen Bären
d jung Nachbarn: die jungen Nachbarn, die jungen Nachbarn, den jungen Nachbarn
d jung Babys: die jungen Babys, die jungen Babys, den jungen Babys
d jung Vögel: die jungen Vögel, die jungen Vögel, den jungen Vögeln
"""


@pytest.mark.parametrize("line", DECLENSION.strip().splitlines())
def test_declension(line):
    """Articles, adjectives and nouns in three cases, as in school grammars."""
    parts, expected = line.split(": ")
    determiner, adjective, word = parts.split()
    (noun,) = (n for n in WORDS.nouns if word in (n.german, n.german_plural))
    node = phrase(determiner, noun.german, adjective, word != noun.german)
    cases = (NOMINATIVE, ACCUSATIVE, DATIVE)
    assert [surface(node.german(case)) for case in cases] == expected.split(
        ", "
    )


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (phrase("ein", "Apfel"), "an apple"),
        (phrase("ein", "Apfel", "rot"), "a red apple"),
        (phrase("ein", "König", "alt"), "an old king"),
        (phrase("ein", "Apfel", plural=True), "apples"),
        (phrase("dies", "Maus", plural=True), "these mice"),
        (phrase("jed", "Kind"), "every child"),
        (phrase("unser", "Baby", plural=True), "our babies"),
    ],
)
def test_english_noun_phrases(node, expected):
    """A or an by the sound that follows; plurals, regular or not."""
    assert surface(node.english(NOMINATIVE)) == expected


def test_relative_pronouns():
    """Gender and number from the noun, case from the clause; who and that."""
    cases = (NOMINATIVE, ACCUSATIVE, DATIVE)
    forms = [
        surface(
            token
            for case in cases
            for token in RelativePronoun("person", gender).german(case)
        )
        for gender in "mfnp"
    ]
    assert forms == [
        "der den dem",
        "die die der",
        "das das dem",
        "die die denen",
    ]
    english = [
        surface(RelativePronoun(kind, "m").english(case))
        for kind in ("person", "animal", "thing")
        for case in (NOMINATIVE, ACCUSATIVE)
    ]
    assert english == ["who", "whom", "that", "that", "that", "that"]


KNOWN = [
    (
        Sentence(clause("anrufen", someone("er"), someone("sie"))),
        "er ruft sie an .",
        "he calls her .",
        "0-0 1-1 2-2 3-1 4-3",
    ),
    (
        Sentence(
            clause("schlafen", someone("ich")),
            CONJUNCTIONS["weil"],
            clause("anrufen", someone("er"), someone("sie")),
        ),
        "ich schlafe , weil er sie anruft .",
        "I sleep because he calls her .",
        "0-0 1-1 3-2 4-3 5-5 6-4 7-6",
    ),
    (
        Sentence(
            clause("anrufen", KING(), LADY(), tense="perfect", manner="oft")
        ),
        "der König hat oft die Dame angerufen .",
        "the king has often called the lady .",
        "0-0 1-1 2-2 3-3 4-5 5-6 6-4 7-7",
    ),
    (
        Sentence(
            clause(
                "sehen", KING(), DOG(), tense="perfect", time="letzte Woche",
                first=True,
            )
        ),
        "letzte Woche hat der König den Hund gesehen .",
        "last week the king saw the dog .",
        "0-0 1-1 2-4 3-2 4-3 5-5 6-6 7-4 8-7",
    ),
    (
        Sentence(
            clause(
                "sehen", KING(), DOG(), tense="perfect", time="gestern",
                manner="nicht",
            )
        ),
        "der König hat gestern den Hund nicht gesehen .",
        "the king did not see the dog yesterday .",
        "0-0 1-1 2-2 3-7 4-5 5-6 6-3 7-4 8-8",
    ),
    (
        Sentence(clause("kommen", KING(), tense="perfect", manner="nicht")),
        "der König ist nicht gekommen .",
        "the king has not come .",
        "0-0 1-1 2-2 3-3 4-4 5-5",
    ),
    (
        Sentence(
            clause("sehen", KING(plural=True), someone("sie"), manner="nicht")
        ),
        "die Könige sehen sie nicht .",
        "the kings do not see her .",
        "0-0 1-1 2-2 2-4 3-5 4-3 5-6",
    ),
    (
        Sentence(clause("zusehen", LADY(), someone("they"), tense="can")),
        "die Dame kann ihnen zusehen .",
        "the lady can watch them .",
        "0-0 1-1 2-2 3-4 4-3 5-5",
    ),
    (
        Sentence(
            clause(
                "geben", LADY(), someone("er"), BOOK(), time="heute",
                first=True,
            )
        ),
        "heute gibt die Dame ihm das Buch .",
        "today the lady gives him the book .",
        "0-0 1-3 2-1 3-2 4-4 5-5 6-6 7-7",
    ),
    (
        Sentence(
            clause("anrufen", KING(plural=True), someone("er"), manner="nicht")
        ),
        "die Könige rufen ihn nicht an .",
        "the kings do not call him .",
        "0-0 1-1 2-2 2-4 3-5 4-3 5-4 6-6",
    ),
    (
        Sentence(
            clause("anbieten", LADY(), someone("er"), BOOK(), time="heute")
        ),
        "die Dame bietet ihm heute das Buch an .",
        "the lady offers him the book today .",
        "0-0 1-1 2-2 3-3 4-6 5-4 6-5 7-2 8-7",
    ),
    (
        Sentence(
            clause("helfen", someone("er"), DOG(relative=SLEEPS)),
            CONJUNCTIONS["obwohl"],
            clause("lachen", someone("they"), tense="perfect"),
            first=True,
        ),
        "obwohl sie gelacht haben , hilft er dem Hund , der schläft .",
        "although they have laughed , he helps the dog that sleeps .",
        "0-0 1-1 2-3 3-2 4-4 5-6 6-5 7-7 8-8 10-9 11-10 12-11",
    ),
    (
        Sentence(
            clause("sagen", LADY(), tense="perfect", time="gestern"),
            THAT,
            clause("mitnehmen", someone("they"), DOG(relative=SLEEPS)),
        ),
        "die Dame hat gestern gesagt , "
        "dass sie den Hund , der schläft , mitnehmen .",
        "the lady said yesterday that they take the dog that sleeps .",
        "0-0 1-1 2-2 3-3 4-2 6-4 7-5 8-7 9-8 11-9 12-10 14-6 15-11",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tree", "german", "english", "links"), KNOWN)
def test_known_sentences(tree, german, english, links):
    """Each construction, with all its links, against sentences by hand."""
    said = aligned_pair(tree)
    assert (said.german, said.english) == (german, english)
    expected = [tuple(map(int, link.split("-"))) for link in links.split()]
    assert said.alignment == tuple(expected)


@pytest.mark.parametrize(
    ("noun", "gap", "verb", "rest", "german", "english"),
    [
        ("Arzt", 0, "sehen", DOG(), "der den Hund sieht", "who sees the dog"),
        ("Arzt", 1, "sehen", DOG(), "den der Hund sieht", "whom the dog sees"),
        ("Dame", 1, "helfen", someone("er"), "der er hilft", "whom he helps"),
        ("Wolf", 1, "helfen", someone("er"), "dem er hilft", "that he helps"),
        ("Hut", 1, "kaufen", someone("er"), "den er kauft", "that he buys"),
    ],
)  # fmt: skip
def test_relative_clauses(noun, gap, verb, rest, german, english):
    """The pronoun leads in both languages, whatever it is in its clause."""
    nodes = [rest]
    nodes.insert(gap, RelativePronoun(NOUNS[noun].kind, NOUNS[noun].gender))
    built = clause(verb, *nodes)
    assert surface(built.german("final")) == german
    assert surface(built.english()) == english
