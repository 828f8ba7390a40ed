"""Scores: hand-computed, as sacreBLEU computes them, and labelled."""

import math
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transformer_annotated.evaluation import (
    Score,
    bleu,
    bleu_variants,
    chrf,
    compare,
    evaluate,
    moses_tokenize,
    paper_bleu,
    sentence_bleu,
    split_compounds,
)

OUTPUTS = [
    "Der E-Mail-Server ist nicht erreichbar.",
    "Das kostet 3,50 Euro.",
    "Im Café „Blauer Bär“ gab es Käse - und Öl.",
    "Sie wohnt in Baden-Württemberg, nicht in Berlin.",
]
REFERENCES = [
    "Der E-Mail-Server ist leider nicht erreichbar.",
    "Es kostet 3,50 Euro!",
    "Im Café „Blauer Bär“ gab es Käse und Öl.",
    "Sie lebt in Baden-Württemberg, nicht in Berlin.",
]
PLAIN = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"

words = st.lists(
    st.sampled_from("die Maus sieht einen roten E-Mail-Turm 3,5 nicht".split()),
    min_size=4,
    max_size=12,
).map(" ".join)
pairs = st.lists(st.tuples(words, words), min_size=1, max_size=6)


# BLEU


def test_bleu_by_hand():
    """Two sentences: matches and totals are added up before dividing."""
    outputs = ["a b c d e", "a a x y z"]
    references = ["a b c d f", "a b c d e"]
    precisions = [(4 + 1) / 10, (3 + 0) / 8, (2 + 0) / 6, (1 + 0) / 4]
    expected = 100 * math.prod(precisions) ** 0.25
    assert bleu(outputs, references).value == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("words_", "penalty"), [(10, 1), (8, -0.25), (5, -1)])
def test_the_brevity_penalty(words_, penalty):
    """A prefix of the reference has precision 1, and pays e^(1 - r/c)."""
    reference = "a b c d e f g h i j"
    output = " ".join(reference.split()[:words_])
    expected = 100 * (math.exp(penalty) if words_ < 10 else 1)
    assert bleu([output], [reference]).value == pytest.approx(expected)


def test_too_long_is_not_paid_for_by_brevity():
    """Surplus words cost precision, and the penalty is 1."""
    score = bleu(["a b c d e"], ["a b c d"]).value
    expected = 100 * (4 / 5 * 3 / 4 * 2 / 3 * 1 / 2) ** 0.25
    assert score == pytest.approx(expected)


def test_repeated_words_are_clipped():
    """Seven times "the" matches a reference with two of them twice."""
    (score,) = sentence_bleu(["the the the"], ["the cat the mat sat"])
    p = [2 / 3, 1 / (2 * 2), 1 / (4 * 1)]  # nothing found: 1/2, then 1/4 a gram
    expected = 100 * math.exp(1 - 5 / 3) * math.prod(p) ** (1 / 3)
    assert score.value == pytest.approx(expected)


def test_no_match_at_all_is_zero():
    """Smoothing does not make something out of nothing."""
    assert bleu(["x y z w"], ["a b c d"]).value == 0
    assert bleu([""], ["a b c d"]).value == 0


def test_corpus_bleu_is_not_the_mean_of_sentences():
    """Counts are added up, so that long sentences count for more."""
    corpus = bleu(OUTPUTS, REFERENCES).value
    each = [score.value for score in sentence_bleu(OUTPUTS, REFERENCES)]
    assert len(each) == 4
    assert abs(corpus - sum(each) / 4) > 1


def test_sentences_stay_in_order():
    """The score of a sentence stands where the sentence does."""
    scores = sentence_bleu(["a b c d", "x", "a b"], ["a b c d", "y", "a b"])
    assert [round(score.value, 9) for score in scores] == [100, 0, 100]
    assert all("eff:yes" in score.signature for score in scores)


def test_sentences_have_tokens_and_case_too():
    """The options of a corpus are those of a sentence."""
    pair = ["DAS ist gut, ja."], ["Das ist gut, ja."]
    for options in ({}, {"lowercase": True}, {"tokenize": "none"}):
        (score,) = sentence_bleu(*pair, **options)
        assert score.value == pytest.approx(bleu(*pair, **options).value)
    (lowered,) = sentence_bleu(*pair, lowercase=True)
    assert lowered.value == pytest.approx(100)


@pytest.mark.parametrize(
    ("tokenize", "warned"), [("13a", True), ("none", False)]
)
def test_tokenised_text_is_noticed(caplog, tokenize, warned):
    """sacreBLEU warns of spaces before full stops, unless they are meant."""
    lines = ["Das ist gut ."] * 100
    bleu(lines, lines, tokenize=tokenize)
    assert ("forgot to detokenize" in caplog.text) == warned


def test_case_and_tokens_matter():
    """The same text scores differently, and the signature says why."""
    outputs, references = ["DER Bär-Turm, ja."], ["der Bär-Turm, ja."]
    cased = bleu(outputs, references)
    lowered = bleu(outputs, references, lowercase=True)
    assert cased.value < lowered.value == pytest.approx(100)
    assert "case:lc" in lowered.signature
    assert "case:mixed" in cased.signature
    values = {
        tokenize: bleu(outputs, references, tokenize=tokenize)
        for tokenize in ("13a", "intl", "none", "char", "zh")
    }
    assert len({round(score.value, 6) for score in values.values()}) >= 4
    for tokenize, score in values.items():
        assert f"tok:{tokenize}" in score.signature


@pytest.mark.parametrize(
    ("options", "score"),
    [
        ([], lambda: bleu(OUTPUTS, REFERENCES)),
        (["-lc"], lambda: bleu(OUTPUTS, REFERENCES, lowercase=True)),
        (
            ["-tok", "intl", "--confidence", "--confidence-n", "60"],
            lambda: bleu(OUTPUTS, REFERENCES, tokenize="intl", n_bootstrap=60),
        ),
        (["-m", "chrf"], lambda: chrf(OUTPUTS, REFERENCES)),
        (
            ["-m", "chrf", "--chrf-word-order", "2"],
            lambda: chrf(OUTPUTS, REFERENCES, word_order=2),
        ),
    ],
)
def test_the_command_sacrebleu_says_the_same(tmp_path, options, score):
    """Name, signature, score and interval are those of the command."""
    for name, lines in (("outputs", OUTPUTS), ("references", REFERENCES)):
        text = "".join(f"{line}\n" for line in lines)
        (tmp_path / name).write_text(text, encoding="utf-8")
    said = subprocess.run(
        [
            sys.executable,
            *"-m sacrebleu references -i outputs".split(),
            *"-f text -w 6".split(),
            *options,
        ],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        check=True,
    ).stdout
    ours = score()
    head, numbers = said.split(" = ", 1)
    assert head == f"{ours.name}|{ours.signature}"
    assert float(numbers.split()[0]) == pytest.approx(ours.value, abs=1e-6)
    if ours.low is not None:
        mean, half = (ours.low + ours.high) / 2, (ours.high - ours.low) / 2
        assert f"μ = {mean:.4f}" in said.replace(f"{mean:.6f}", f"{mean:.4f}")
        assert f"± {half:.6f}" in said


def test_score_prints_like_sacrebleu():
    """What a reader copies into a paper holds the signature."""
    score = bleu(["a b c d"], ["a b c d"])
    assert str(score) == f"BLEU|{PLAIN} = 100.00"
    assert str(Score("x", 1.234, "s", 0.5, 2)) == "x|s = 1.23 [0.50, 2.00]"


@settings(max_examples=25, deadline=None)
@given(pairs)
def test_identity_is_100_and_nothing_is_more(sample):
    """A copy of the references is perfect in every way; all else is not."""
    outputs, references = map(list, zip(*sample, strict=True))
    for score in bleu_variants(references, references, "de"):
        assert score.value == pytest.approx(100)
    for score in bleu_variants(outputs, references, "de"):
        assert -1e-9 <= score.value <= 100 + 1e-9


@settings(max_examples=25, deadline=None)
@given(pairs, st.randoms(use_true_random=False))
def test_the_order_of_the_sentences_is_irrelevant(sample, random):
    """A corpus score depends on the set of pairs alone."""
    shuffled = random.sample(sample, len(sample))
    before, after = (
        bleu_variants(*map(list, zip(*rows, strict=True)), "de")
        for rows in (sample, shuffled)
    )
    for one, other in zip(before, after, strict=True):
        assert one.value == pytest.approx(other.value)


@settings(max_examples=25, deadline=None)
@given(pairs)
def test_a_corrected_sentence_never_hurts(sample):
    """Replacing an output by its reference raises BLEU or leaves it."""
    outputs, references = map(list, zip(*sample, strict=True))
    corrected = [references[0], *outputs[1:]]
    if len(outputs[0].split()) == len(references[0].split()):
        before, after = (
            bleu(lines, references, tokenize="none").value
            for lines in (outputs, corrected)
        )
        assert after >= before - 1e-9


@settings(max_examples=25, deadline=None)
@given(pairs, st.integers(2, 4))
def test_a_set_twice_over_scores_the_same(sample, times):
    """Counts double, and their ratios stay."""
    outputs, references = map(list, zip(*sample, strict=True))
    once = chrf(outputs, references).value
    again = chrf(outputs * times, references * times).value
    assert again == pytest.approx(once)


# chrF


def test_chrf_by_hand():
    """Precision and recall of character n-grams, recall four times as heavy."""
    # abcd against abxd e: without spaces, n-grams up to 6
    precision = (3 / 4 + 1 / 3 + 0 + 0) / 4
    recall = (3 / 5 + 1 / 4 + 0 + 0) / 4
    expected = 100 * 5 * precision * recall / (4 * precision + recall)
    assert chrf(["ab cd"], ["abxde"]).value == pytest.approx(expected)


def test_chrf_gives_credit_for_endings():
    """A wrong ending costs a word in BLEU, and a letter in chrF."""
    near = ["die kleinen Hunde schlafen im Garten"]
    far = ["die kleinen Steine schlafen im Garten"]
    reference = ["die kleinen Hunden schlafen im Garten"]
    assert bleu(near, reference).value == bleu(far, reference).value
    assert chrf(near, reference).value > chrf(far, reference).value + 10


def test_chrf_options_are_in_the_signature():
    """chrF++ also counts words; case can be ignored."""
    plain = chrf(OUTPUTS, REFERENCES)
    more = chrf(OUTPUTS, REFERENCES, word_order=2)
    assert (plain.name, more.name) == ("chrF2", "chrF2++")
    assert "nw:0" in plain.signature
    assert "nw:2" in more.signature
    assert plain.value != more.value
    assert chrf(["ABC"], ["abc"]).value == 0
    assert chrf(["ABC"], ["abc"], lowercase=True).value == pytest.approx(100)


# intervals and comparisons


def test_the_interval_is_deterministic_and_signed(monkeypatch):
    """Seed and samples stand in the signature; twice gives the same."""
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    for metric in (bleu, chrf):
        one = metric(OUTPUTS, REFERENCES, n_bootstrap=200)
        assert one == metric(OUTPUTS, REFERENCES, n_bootstrap=200)
        assert 0 <= one.low < one.value < one.high <= 100
        assert "|bs:200|seed:12345|" in one.signature
        assert metric(OUTPUTS, REFERENCES).low is None
        assert metric(OUTPUTS, REFERENCES).value == one.value


def test_the_interval_narrows_with_the_root_of_the_size():
    """Sixteen times the sentences make it about four times as narrow."""

    def width(times):
        score = bleu(OUTPUTS * times, REFERENCES * times, n_bootstrap=400)
        return score.high - score.low

    assert 3 < width(5) / width(80) < 5


def test_the_interval_of_a_perfect_score_has_no_width():
    """Every sample of perfect sentences is perfect."""
    score = bleu(REFERENCES, REFERENCES, n_bootstrap=50)
    assert score.low == pytest.approx(100)
    assert score.low <= score.high <= 100


def test_compare_sees_what_is_there():
    """A better system is found better; equal ones are not told apart."""
    first, second, references = OUTPUTS * 20, REFERENCES * 20, REFERENCES * 20
    found = compare(first, second, references, trials=100)
    assert found.p_value == 1 / 101
    assert found.first.value == bleu(first, references).value
    assert found.difference == found.second.value - found.first.value > 10
    assert "|bs:100|ar:100|seed:12345|" in found.first.signature
    assert found.first.low < found.first.value < found.first.high
    same = compare(first, first, references, trials=100)
    assert same.difference == 0
    assert same.p_value == 1
    assert same == compare(first, first, references, trials=100)


def test_compare_has_tokens_and_case_too():
    """The scores are those of ``bleu`` with the same options."""
    upper = [line.upper() for line in OUTPUTS]
    for options in ({"lowercase": True}, {"tokenize": "none"}):
        found = compare(upper, OUTPUTS, REFERENCES, trials=40, **options)
        for score, lines in ((found.first, upper), (found.second, OUTPUTS)):
            expected = bleu(lines, REFERENCES, **options).value
            assert score.value == pytest.approx(expected)


def test_compare_cannot_tell_equal_systems_apart():
    """Two systems that are better in turns differ by chance only."""
    good, bad = REFERENCES * 10, OUTPUTS * 10
    first = [pair[i % 2] for i, pair in enumerate(zip(good, bad, strict=True))]
    second = [pair[i % 2] for i, pair in enumerate(zip(bad, good, strict=True))]
    found = compare(first, second, REFERENCES * 10, trials=200)
    assert found.difference != 0
    assert found.p_value > 0.1


# as the paper computed it


@pytest.mark.parametrize(
    ("text", "split"),
    [
        ("rich-text format", "rich ##AT##-##AT## text format"),
        ("Aix-en-Provence", "Aix ##AT##-##AT## en ##AT##-##AT## Provence"),
        ("Café - Öl", "Café - Öl"),
        ("-Datei und E-", "-Datei und E-"),
        ("Ölpreis-Über-Ich", "Ölpreis ##AT##-##AT## Über ##AT##-##AT## Ich"),
        ("1990-1995", "1990 ##AT##-##AT## 1995"),
        ("a-b-c", "a ##AT##-##AT## b-c"),  # the script looks once at a letter
        ("5%-ig", "5% ##AT##-##AT## ig"),  # any two characters
        ("wohl–doch", "wohl–doch"),  # a dash is no hyphen
        ("", ""),
    ],
)
def test_split_compounds(text, split):
    """As the authors' script does, in its odd cases too."""
    assert split_compounds([text]) == [split]


@pytest.mark.parametrize(
    ("text", "language", "tokens"),
    [
        ("Das ist z. B. der 3. Mai.", "de", "Das ist z. B. der 3. Mai ."),
        ("Der E-Mail-Server, ja!", "de", "Der E-Mail-Server , ja !"),
        ('Er sagt: "Öl".', "de", 'Er sagt : " Öl " .'),
        ("Mr. Smith isn't here.", "en", "Mr. Smith isn 't here ."),
        ("3,50 Euro (mehr).", "de", "3,50 Euro ( mehr ) ."),
        ("", "de", ""),
    ],
)
def test_moses_tokens(text, language, tokens):
    """Known tokens of the Moses scripts."""
    assert moses_tokenize([text], language) == [tokens]


def test_moses_escapes_if_told_so():
    """The scripts write quotes as entities; the score does not care."""
    assert moses_tokenize(['"A" & [b]'], "de") == ['" A " & [ b ]']
    escaped = moses_tokenize(['"A" & [b]'], "de", escape=True)
    assert escaped == ["&quot; A &quot; &amp; &#91; b &#93;"]


def test_paper_bleu_is_tokenised_split_and_labelled():
    """It is BLEU of the prepared text, and its signature says so."""
    score = paper_bleu(OUTPUTS, REFERENCES, "de")
    sides = (
        split_compounds(moses_tokenize(side, "de", escape=True))
        for side in (OUTPUTS, REFERENCES)
    )
    expected = bleu(*sides, tokenize="none").value
    assert score.value == pytest.approx(expected, abs=1e-9)
    assert "split" in score.name
    assert "|tok:moses-de-quotes-split-" in score.signature
    assert "|case:mixed|" in score.signature
    assert "|smooth:none|" in score.signature


def test_the_papers_quotes_are_plain():
    """Typographic quotes are no mistake, on either side."""
    plain, curly = ['Er sagt "Ja" zu mir.'], ["Er sagt „Ja“ zu mir."]
    assert paper_bleu(plain, curly, "de").value == pytest.approx(100)
    assert paper_bleu(curly, plain, "de").value == pytest.approx(100)
    assert bleu(plain, curly).value < 70


def test_paper_bleu_by_hand():
    """A word of three parts that is right gives five tokens instead of one."""
    outputs, references = ["x Aa-Bb y"], ["w Aa-Bb z"]
    assert bleu(outputs, references, tokenize="none").value < 40
    # tokens: x Aa ##AT##-##AT## Bb y; 3 of 5, 2 of 4, 1 of 3, 0 of 2
    assert paper_bleu(outputs, references, "de").value == 0  # unsmoothed
    outputs, references = ["x Aa-Bb-Cc y"], ["w Aa-Bb-Cc z"]
    expected = 100 * (5 / 7 * 4 / 6 * 3 / 5 * 2 / 4) ** 0.25
    score = paper_bleu(outputs, references, "de")
    assert score.value == pytest.approx(expected)


def test_splitting_what_is_right_raises_the_score():
    """Compounds that match give more n-grams that match."""
    ways = {
        way.name: way.value for way in bleu_variants(OUTPUTS, REFERENCES, "de")
    }
    split, whole = "BLEU, Moses, compounds split", "BLEU, Moses tokens"
    assert ways[split] > ways[whole] + 1
    bare = [
        [line.replace("-", "") for line in x] for x in (OUTPUTS, REFERENCES)
    ]
    ways = {way.name: way.value for way in bleu_variants(*bare, "de")}
    assert ways[split] == ways[whole]


def test_every_way_is_what_it_says():
    """Each row is the function of that name; the signatures differ."""
    pair = OUTPUTS, REFERENCES
    ways = {way.name: way for way in bleu_variants(*pair, "de")}
    each = sentence_bleu(*pair)
    expected = {
        "BLEU": bleu(*pair).value,
        "BLEU, lowercased": bleu(*pair, lowercase=True).value,
        "BLEU, intl tokens": bleu(*pair, tokenize="intl").value,
        "BLEU, not tokenised": bleu(*pair, tokenize="none").value,
        "BLEU, Moses tokens": bleu(
            *(moses_tokenize(side, "de") for side in pair), tokenize="none"
        ).value,
        "BLEU, Moses, compounds split": paper_bleu(*pair, "de").value,
        "mean of sentence BLEU": sum(score.value for score in each) / 4,
        "chrF": chrf(*pair).value,
        "chrF++": chrf(*pair, word_order=2).value,
    }
    assert {n: way.value for n, way in ways.items()} == pytest.approx(expected)
    assert next(iter(ways)) == "BLEU"
    assert len({way.signature for way in ways.values()}) == len(ways)


def test_every_way_knows_the_language():
    """Abbreviations are those of the language that is named."""
    pair = ["Am 3. Mai kam er bzw. sie."], ["Am 3. Mai kam bzw. ging sie."]
    values = {}
    for language in ("de", "en"):
        ways = {way.name: way for way in bleu_variants(*pair, language)}
        tokens = [moses_tokenize(side, language) for side in pair]
        found = ways["BLEU, Moses tokens"]
        values[language] = bleu(*tokens, tokenize="none").value
        assert found.value == pytest.approx(values[language])
        assert f"tok:moses-{language}-" in found.signature
    assert abs(values["de"] - values["en"]) > 0.1


# bad input


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bleu("ab", ["ab"]), "outputs: a str, expected a list"),
        (lambda: bleu(["ab"], "ab"), "references: a str, expected a list"),
        (lambda: bleu(b"ab", ["ab"]), "outputs: a bytes"),
        (lambda: bleu(None, ["ab"]), "outputs: a NoneType"),
        (lambda: bleu([], []), "outputs: no lines"),
        (lambda: moses_tokenize([], "de"), "texts: no lines"),
        (
            lambda: bleu(["a"] * 3, ["a"] * 2),
            "references: 2 lines, but outputs: 3 lines",
        ),
        (
            lambda: compare(["a"], ["a", "b"], ["a"]),
            "second: 2 lines, but first: 1 lines",
        ),
        (
            lambda: bleu(["a", None], ["a", "b"]),
            "outputs: line 2 is a NoneType",
        ),
        (lambda: bleu(["a"], [["a", "b"]]), "references: line 1 is a list"),
        (lambda: chrf(["a"], []), "references: 0 lines, but outputs: 1"),
        (lambda: sentence_bleu("a", "a"), "outputs: a str"),
        (lambda: paper_bleu("a", ["a"], "de"), "outputs: a str"),
        (lambda: bleu_variants(["a"], [], "de"), "references: 0 lines"),
        (lambda: split_compounds("a-b"), "texts: a str"),
        (
            lambda: bleu(["a"], ["a"], tokenize="13b"),
            "unknown tokenizer, '13b'; did you mean '13a'",
        ),
        (
            lambda: bleu(["a"], ["a"], tokenize="moses"),
            "'moses'; known: 13a, intl, none, char, zh",
        ),
        (
            lambda: sentence_bleu(["a"], ["a"], tokenize="x"),
            "unknown tokenizer",
        ),
        (
            lambda: compare(["a"], ["a"], ["a"], tokenize="x"),
            "unknown tokenizer",
        ),
        (lambda: paper_bleu(["a"], ["a"], "dee"), "'dee'; did you mean 'de'"),
        (
            lambda: bleu(["a"], ["a"], n_bootstrap=5),
            "n_bootstrap: 5, expected 0 or",
        ),
        (lambda: bleu(["a"], ["a"], n_bootstrap=True), "n_bootstrap: True"),
        (lambda: chrf(["a"], ["a"], n_bootstrap=-1), "n_bootstrap: -1"),
        (
            lambda: compare(["a"], ["a"], ["a"], trials=0),
            "trials: 0, expected at least 40",
        ),
        (lambda: chrf(["a"], ["a"], word_order=-1), "word_order: -1, expected"),
    ],
)
def test_bad_input_is_named(call, message):
    """One line that says what is wrong, and how it should be."""
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_any_iterable_of_lines_will_do():
    """Generators and tuples are lists of lines as well."""
    expected = bleu(OUTPUTS, REFERENCES)
    assert bleu((line for line in OUTPUTS), tuple(REFERENCES)) == expected


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=3))
def test_any_text_can_be_scored(lines):
    """No character of any script breaks a score."""
    for score in bleu_variants(lines, lines[::-1], "de"):
        assert 0 <= score.value <= 100 + 1e-9


# A model and a test set


class Echo:
    """A translator that says what it hears, loudly if asked to."""

    def translate_lines(self, lines, loud=False):
        """Line by line."""
        for line in lines:
            yield line.upper() if loud else line


def test_evaluate_translates_and_scores():
    """Outputs and references in order; both scores as computed apart."""
    rows = zip(OUTPUTS, REFERENCES, strict=True)  # can be read only once
    found = evaluate(Echo(), rows, tokenize="intl", n_bootstrap=60)
    assert (found.outputs, found.references) == (OUTPUTS, REFERENCES)
    pair = OUTPUTS, REFERENCES
    assert found.bleu == bleu(*pair, tokenize="intl", n_bootstrap=60)
    assert found.chrf == chrf(*pair, n_bootstrap=60)


def test_evaluate_hands_settings_to_the_search():
    """What it does not know itself."""
    found = evaluate(Echo(), [("a b c d", "A B C D")], loud=True)
    assert found.outputs == ["A B C D"] and found.bleu.value > 99.99


def test_the_length_ratio_counts_words():
    """Of all outputs, over those of all references."""
    found = evaluate(Echo(), [("a b", "a"), ("c", "c d e")])
    assert found.length_ratio == 3 / 4


def test_evaluate_refuses_before_it_translates():
    """A typing error is not found out after hours."""

    def never():
        raise AssertionError
        yield

    with pytest.raises(ValueError, match="unknown tokenizer, '13b'"):
        evaluate(Echo(), never(), tokenize="13b")
    with pytest.raises(ValueError, match="n_bootstrap: 5"):
        evaluate(Echo(), never(), n_bootstrap=5)
    with pytest.raises(ValueError, match="no lines"):
        evaluate(Echo(), [])
