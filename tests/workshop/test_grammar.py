"""The grammar speaks correct German and English, and counts what it says."""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from transformer_annotated.workshop import grammar
from transformer_annotated.workshop.grammar import (
    ACCUSATIVE,
    DATIVE,
    NOMINATIVE,
    NOT,
    THAT,
    Clause,
    NounPhrase,
    Pronoun,
    RelativePronoun,
    Sentence,
    When,
    count_sentences,
    lexicon,
    pair,
    sentences,
    split_by_hash,
    vocabulary,
)

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


def words(tokens):
    """The words of some tokens, as one string."""
    return " ".join(token[0] for token in tokens)


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
    assert [words(node.german(case)) for case in cases] == expected.split(", ")


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
    assert words(node.english(NOMINATIVE)) == expected


def test_relative_pronouns():
    """Gender and number from the noun, case from the clause; who and that."""
    cases = (NOMINATIVE, ACCUSATIVE, DATIVE)
    forms = [
        words(
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
        words(RelativePronoun(kind, "m").english(case))
        for kind in ("person", "animal", "thing")
        for case in (NOMINATIVE, ACCUSATIVE)
    ]
    assert english == ["who", "whom", "that", "that", "that", "that"]


KING, LADY, DOG, BOOK = (
    lambda *rest, noun=noun, **more: phrase("d", noun, *rest, **more)
    for noun in ("König", "Dame", "Hund", "Buch")
)
SLEEPS = clause("schlafen", RelativePronoun("animal", "m"))
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
    said = pair(tree)
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
    assert words(built.german("final")) == german
    assert words(built.english()) == english


def test_principal_parts():
    """Every verb of the table agrees with itself."""
    for verb in WORDS.verbs:
        ich, er, wir = verb.german
        assert verb.particle + wir == verb.infinitive
        assert wir.startswith(ich) and er.endswith("t")
        assert verb.participle.startswith(verb.particle)
        assert verb.auxiliary in ("hat", "ist")
    assert VERBS["einladen"].german == ("lade", "lädt", "laden")
    third = {grammar._add_s(verb.english) for verb in WORDS.verbs}
    assert {"carries", "watches", "buys", "loses", "rescues"} <= third
    past = {verb.past for verb in WORDS.verbs}
    assert {"carried", "watched", "loved", "offered", "fled"} <= past


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
    language = grammar.all_sentences(few, depth)
    said = [pair(sentence) for sentence in language.members()]
    assert len(said) == language.count > 1000
    assert len({p.german for p in said}) == len(said)
    assert len({p.english for p in said}) == len(said)


@pytest.fixture(scope="module")
def sample():
    """Many sentences of all kinds, with relative clauses within others."""
    return sentences(50_000, seed=1)


def test_no_sentence_of_a_sample_has_two_translations(sample):
    """Among all words, too: as many English sentences as German ones."""
    assert len({p.german for p in sample}) == len(sample)
    assert len({p.english for p in sample}) == len(sample)


def test_vocabulary_holds_the_words_of_sentences_and_no_others(sample):
    """A few hundred words, all of them used, one blank between two words."""
    known = vocabulary()
    more = sentences(15_000, seed=2, depth=0)
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
    assert grammar.all_sentences(few, 0).count == 6
    assert grammar.all_sentences(few, 1).count == 6 + 2 * 2 * 2
    with_time = replace(few, times=WORDS.times[:1])
    assert grammar.all_sentences(with_time, 0).count == 6 * 3


def test_words_are_aligned_with_words_that_translate_them(sample):
    """Each noun is linked to itself; only German commas have no partner."""
    forms = {}
    for noun in WORDS.nouns:
        for plural in (False, True):
            for case in (NOMINATIVE, ACCUSATIVE, DATIVE):
                form = grammar.german_noun(noun, plural, case)
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
    language = grammar.all_sentences(WORDS, 2)
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
        found = {p.depth for p in sentences(300, depth=depth)}
        assert found == set(range(depth + 1))
    inner = clause(
        "sehen", RelativePronoun("person", "m"), DOG(relative=SLEEPS)
    )
    tree = Sentence(clause("lachen", KING(relative=inner)))
    said = pair(tree)
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
        drawn = sentences(1500, seed=3, depth=0, split=split)
        drawn += sentences(1500, seed=4, depth=0, split=split)
        assert {split_by_hash(p.german) for p in drawn} == {split}
        few[split] = drawn
    for side in ("german", "english"):
        sets = [{getattr(p, side) for p in drawn} for drawn in few.values()]
        assert len(set.union(*sets)) == sum(map(len, sets))


def test_split_shares():
    """Three quarters train; the rest is halved, here among two clauses."""
    few, depth = TINY["two clauses"]
    drawn = grammar.all_sentences(few, depth).members()
    splits = [split_by_hash(pair(sentence).german) for sentence in drawn]
    for split, share in (("train", 0.75), ("valid", 0.125), ("test", 0.125)):
        assert abs(splits.count(split) / len(splits) - share) < 0.03


def test_sentences_are_determined_by_the_seed():
    """The same call says the same; a longer one says more of it."""
    assert sentences(50, seed=5) == sentences(50, seed=5)
    assert sentences(50, seed=5) == sentences(80, seed=5)[:50]
    assert sentences(50, seed=5) != sentences(50, seed=6)
    assert sentences(0) == []


def test_corpus_does_not_change():
    """Salted hashes or another order of choices would give other sentences."""
    assert [p.german for p in sentences(2, seed=0, split="test")] == [
        "meine Dame soll ankommen .",
        "sein Vogel darf heute lachen .",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": -1}, "count: -1, expected an int, at least 0"),
        ({"count": 2.5}, "count: 2.5, expected an int, at least 0"),
        ({"count": 1, "depth": -2}, "depth: -2, expected an int, at least 0"),
        ({"count": 1, "split": "dev"}, "split: 'dev', expected one of"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    """The message names the argument and what was expected."""
    with pytest.raises(ValueError, match=message):
        sentences(**arguments)
    if "depth" in arguments:
        with pytest.raises(ValueError, match=message):
            count_sentences(arguments["depth"])
