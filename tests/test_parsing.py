"""Trees: read, cleaned, written as brackets, mended, found and scored."""

import io
import itertools
import random
import sys
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nltk.tree import Tree
from PYEVALB import parser as evalb_parser
from PYEVALB import scorer as evalb

from experiments import parsing as experiment
from experiments import records
from tests.site import ROOT
from transformer_annotated.decoding import max_lengths
from transformer_annotated.layers import TransformerConfig
from transformer_annotated.model import Transformer, parameter_count
from transformer_annotated.parsing import (
    CLOSE,
    DEEPEST,
    LEAVES,
    OPEN,
    BracketScore,
    bracket_score,
    clean_tree,
    escape,
    is_tree,
    leaf_tag,
    linearise,
    parse,
    parser_input,
    penn_tokens,
    punctuation,
    read_tree,
    read_trees,
    repair,
    right_branching,
    spans,
)
from transformer_annotated.workshop.corpora import CorpusNotFound, load_corpus
from transformer_annotated.workshop.files import (
    CorpusError,
    load_result,
    paper_tables,
)
from transformer_annotated.workshop.recipe import read_recipe
from transformer_annotated.workshop.sampling import sample_trees
from transformer_annotated.workshop.translator import Translation, Translator
from transformer_annotated.workshop.treebanks import (
    TreeFiles,
    TreePairs,
    trees_of,
)

SISTER = (
    "(S (NP (PRP$ My) (NN sister)) (VP (VBD slept) (SBAR (IN because) "
    "(S (NP (PRP she)) (VP (VBD was) (ADJP (JJ tired)))))) (. .))"
)


def tree_of(text):
    """A clean tree."""
    return clean_tree(read_tree(text))


LABELS = st.sampled_from(["S", "NP", "VP", "PP", "PRT", "ADVP", "X1"])
WORDS = st.sampled_from(["the", "King", "XX", "-LRB-", ",", "don't", "é", "5"])
TAGS = st.sampled_from(["NN", ",", ".", "``", "-LRB-", "PRP$"])
LEAF = st.builds(lambda tag, word: Tree(tag, [word]), TAGS, WORDS)
PHRASE = st.recursive(
    st.builds(Tree, LABELS, st.lists(LEAF, min_size=1, max_size=3)),
    lambda inner: st.builds(
        Tree, LABELS, st.lists(inner | LEAF, min_size=1, max_size=4)
    ),
    max_leaves=8,
)
TREES = st.builds(
    Tree, st.just("ROOT"), st.lists(PHRASE | LEAF, min_size=1, max_size=3)
)
SYMBOLS = st.sampled_from(
    ["⟨S", "⟨NP", "S⟩", "NP⟩", "XX", "a", "⟨", "⟩", "⟨⟩", "⟨⟨NP", "ROOT⟩"]
)


def shape(tree):
    """A tree without its tags."""
    return linearise(tree)


# --- brackets and back


@settings(max_examples=60, deadline=None)
@given(TREES, st.sampled_from(list(LEAVES)))
def test_there_and_back(tree, leaves):
    """From a tree to brackets and back, whatever stands for a word."""
    assert clean_tree(tree) == tree
    brackets = linearise(tree, leaves)
    again = repair(brackets, tree.leaves())
    assert is_tree(brackets, tree.leaves())
    assert shape(again) == shape(tree)
    assert bracket_score(tree, again).f1 in (0, 100)
    assert spans(again) == spans(tree)


def test_there_and_back_on_the_grammar():
    """Every tree that the grammar draws."""
    for text in sample_trees(200, seed=3):
        tree = tree_of(text)
        assert repair(linearise(tree), tree.leaves()).leaves() == tree.leaves()
        assert is_tree(linearise(tree), tree.leaves())


def test_there_and_back_on_gum():
    """Every tree of both parts, if the corpus is here."""
    try:
        corpus = load_corpus("gum", folder=records.data_folder())
    except CorpusNotFound:
        pytest.skip("TRANSFORMER_ANNOTATED_DATA leads to no GUM")
    parts = [trees_of(corpus.splits[name]) for name in ("train", "valid")]
    assert list(map(len, parts)) == [3707, 438]
    for tree in itertools.chain(*parts):
        for leaves in LEAVES:
            again = repair(linearise(tree, leaves), tree.leaves())
            assert shape(again) == shape(tree)


def test_linear_forms():
    """With words, with tags, and bare; a bracket says its label twice."""
    tree = tree_of("(S (NP (DT the) (NN king)) (VP (VBZ sleeps)))")
    assert linearise(tree) == "⟨S ⟨NP the king NP⟩ ⟨VP sleeps VP⟩ S⟩"
    assert linearise(tree, "tags") == "⟨S ⟨NP DT NN NP⟩ ⟨VP VBZ VP⟩ S⟩"
    assert linearise(tree, "bare") == "⟨S ⟨NP XX XX NP⟩ ⟨VP XX VP⟩ S⟩"
    assert linearise(tree, "numbered") == ("⟨S ⟨NP 1DT 2NN NP⟩ ⟨VP 3VBZ VP⟩ S⟩")


def test_what_a_parser_reads():
    """Words; with numbers, if it writes numbers."""
    assert parser_input(["the", "king"]) == "the king"
    assert parser_input(["the", "king"], "tags") == "the king"
    assert parser_input(["the", "king"], "numbered") == "1 the 2 king"
    tree = tree_of("(NP (DT the) (CD 7))")
    pair = TreePairs([tree], "numbered")[0]
    assert pair == ("1 the 2 7", "⟨NP 1DT 2CD NP⟩")
    for variant, text in (("numbered", "1 a 2 b"), ("bare", "a b")):
        parser = Writes("⟨S 1DT 2NN S⟩", variant=variant)
        [found] = parse(parser, ["a  b"])
        assert parser.texts == [text]
        assert linearise(found.tree) == "⟨S a b S⟩" and found.rank == 0


@settings(max_examples=100, deadline=None)
@given(
    st.lists(SYMBOLS, max_size=25),
    st.lists(WORDS, min_size=1, max_size=6),
    st.sampled_from(list(LEAVES)),
)
def test_whatever_is_written_becomes_a_tree(symbols, words, leaves):
    """Over all words, in order; and a tree is left as it is."""
    tree = repair(" ".join(symbols), words, leaves)
    assert tree.leaves() == words
    assert is_tree(linearise(tree), words)
    assert read_tree(tree.pformat(10**9)) == tree


@pytest.mark.parametrize("tag", ["DT", "PRP$", ",", ".", ":", "``", "-LRB-"])
def test_tags_that_are_written_are_kept(tag):
    """Where leaves name them; of words and of XX nobody knows."""
    gold = Tree("ROOT", [Tree("NP", [Tree(tag, ["a"]), Tree("NN", ["b"])])])
    for leaves in ("tags", "numbered"):
        assert repair(linearise(gold, leaves), ["a", "b"], leaves) == gold
    for leaves in ("words", "bare"):
        found = repair(linearise(gold, leaves), ["a", "b"], leaves)
        assert [tag for _, tag in found.pos()] == ["X", "X"]


@pytest.mark.parametrize(
    "symbol", ["7", "-NONE-", "3-NONE-", "(", "3)", "nn", "N⟨N", "4NN5", "XX⟩Y"]
)
def test_what_is_no_tag_is_none(symbol):
    """A trace least of all: its word would be lost."""
    assert leaf_tag(symbol, "numbered") == "X"


@pytest.mark.parametrize(
    ("written", "mended"),
    [
        ("", "(ROOT (X a) (X b))"),
        ("⟨S a b S⟩", "(ROOT (S (X a) (X b)))"),
        ("⟨S a b", "(ROOT (S (X a) (X b)))"),  # not closed
        ("a b S⟩", "(ROOT (X a) (X b))"),  # not opened
        ("⟨S a S⟩", "(ROOT (S (X a) (X b)))"),  # a word is missing
        ("⟨S a b c S⟩", "(ROOT (S (X a) (X b)))"),  # one too many
        ("⟨S ⟨NP NP⟩ a b S⟩", "(ROOT (S (X a) (X b)))"),  # empty
        ("⟨S ⟨NP a S⟩ b", "(ROOT (S (NP (X a))) (X b))"),  # crossed
    ],
)
def test_repairs(written, mended):
    """Each kind of mistake, and what becomes of it."""
    tree = repair(written, ["a", "b"])
    assert tree.pformat(10**9) == mended
    assert is_tree(written, ["a", "b"]) == (linearise(tree) == written)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(["⟨S", "⟨NP", "S⟩", "NP⟩", "XX"]), max_size=12),
    st.integers(1, 3),
)
def test_what_is_no_tree_has_a_mistake(symbols, words):
    """And a tree has none."""
    written = " ".join(symbols)
    found = experiment.mistakes(written, words)
    assert found <= set(experiment.MISTAKES)
    assert (not found) == is_tree(written, ["a"] * words)


@pytest.mark.parametrize(
    ("written", "kinds"),
    [
        ("⟨S XX ⟨NP XX NP⟩ S⟩", set()),
        ("⟨S XX XX", {"not closed"}),
        ("⟨S XX ⟨NP XX S⟩", {"closed too early"}),
        ("⟨S XX XX S⟩ S⟩", {"not opened"}),
        ("⟨S XX ⟨NP NP⟩ XX S⟩", {"empty"}),
        ("⟨S XX S⟩", {"words missing"}),
        ("⟨S XX XX XX", {"words too many", "not closed"}),
    ],
)
def test_kinds_of_mistakes(written, kinds):
    """Over two words; one answer may have several."""
    assert experiment.mistakes(written, 2) == kinds


def test_a_thousand_brackets_are_no_traceback():
    """What a model may write when it runs away."""
    tree = repair(f"{OPEN}NP " * 5000 + "x", ["a"])
    assert tree.leaves() == ["a"] and tree.height() <= DEEPEST + 2


# --- reading


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is none"),
        ("(S", "is none"),
        ("(S (NN a)))", "is none"),
        ("word", "is none"),
        ("(S a)) (", "is none"),
        ("(S (NP a b))", "no tag of its own"),
        ("(S (NP (-NONE- *)))", "no word in it"),
        ("()", "no word in it"),
        ("(S " * 100_000 + "a" + ")" * 100_000, "brackets deep"),
        ("(NN \ud800)", "surrogate"),
    ],
)
def test_what_is_no_tree_is_refused(text, problem):
    """In one line."""
    with pytest.raises(ValueError, match=problem) as error:
        tree_of(text)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


def test_cleaning():
    """Functions, indices, traces and what they leave empty; one root."""
    tree = tree_of(
        "( (S (NP-SBJ-1 (PRP She)) (VP (VBD seemed) (S (NP-SBJ (-NONE- *-1)) "
        "(VP (TO to) (PRT|ADVP (RB up)) (VP=2 (VB go))))) (. .)))"
    )
    assert tree.pformat(10**9) == (
        "(ROOT (S (NP (PRP She)) (VP (VBD seemed) (S (VP (TO to) (PRT (RB up)) "
        "(VP (VB go))))) (. .)))"
    )
    assert tree_of("(NN word)").pformat() == "(ROOT (NN word))"  # one word
    assert tree_of("(ROOT (NP (NN word)))") == tree_of("(NP (NN word))")


def test_files_of_trees(tmp_path):
    """Over several lines as Penn's, or in a table as GUM's."""
    penn = tmp_path / "wsj_0001.mrg"
    penn.write_text("\n( (S (NP (NN a))\n     (VP (VB b)) ))\n(NP (NN c))\n\n")
    assert [t.leaves() for t in read_trees(penn)] == [["a", "b"], ["c"]]
    table = tmp_path / "dev.tsv"
    table.write_text("GUM_x\t(ROOT (NP (NN a)))\nGUM_x\t(ROOT (NP (NN b)))\n")
    files = TreeFiles([penn, table], hold=2)
    assert len(files) == 4 and files[3].leaves() == ["b"]
    assert [t.leaves() for t in files] == [t.leaves() for t in TreeFiles(
        [penn, table])]  # fmt: skip


def test_files_of_trees_must_not_change_while_they_are_read(tmp_path):
    """Those that stay on disk are refused; what is held is what was read."""
    file = tmp_path / "a.mrg"
    file.write_text("(NP (NN a))\n" * 3)
    held, streamed = TreeFiles([file]), TreeFiles([file], hold=2)
    file.write_text("(NP (NN b))\n")
    assert [t.leaves() for t in held] == 3 * [["a"]]
    with pytest.raises(CorpusError, match="changed since it was opened"):
        list(streamed)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"(NP (NN a))\n(S (NP\n(NN b))", "line 2: the tree .* is not closed"),
        (b"(NP (NN a))\n(NN b))\n", "line 2: tree"),
        (b"(NP (NN \xff))", "line 1: not UTF-8"),
        (b"", "no trees"),
        (b"\n\n", "no trees"),
    ],
)
def test_bad_files_of_trees(tmp_path, content, problem):
    """What is wrong, and in which line."""
    file = tmp_path / "bad.mrg"
    file.write_bytes(content)
    with pytest.raises(CorpusError, match=problem):
        TreeFiles([file])


def test_the_sections_of_the_treebank(tmp_path):
    """2 to 21, 22 and 23, whichever folder above them is named."""
    for section in range(25):
        folder = tmp_path / "parsed/mrg/wsj" / f"{section:02}"
        folder.mkdir(parents=True)
        (folder / f"wsj_{section:02}01.mrg").write_text(f"(NP (CD {section}))")
    for place in (tmp_path, tmp_path / "parsed/mrg/wsj"):
        corpus = load_corpus("wsj", folder=place)
        said = {split: [int(s) for s, _ in pairs]
                for split, pairs in corpus.splits.items()}  # fmt: skip
        assert said == {
            "train": list(range(2, 22)),
            "valid": [22],
            "test": [23],
        }
        assert corpus.splits["valid"][0] == ("22", "⟨NP 22 NP⟩")
    more = tmp_path / "parsed/mrg/wsj/semi"
    more.mkdir()
    (more / "berkeley.txt").write_text("(NP (CD 99))\n" * 3)
    assert len(load_corpus("wsj-semi", folder=tmp_path).splits["train"]) == 23
    with pytest.raises(CorpusNotFound, match=r"gum: not found in .*dev\.ptb"):
        load_corpus("gum", folder=tmp_path)


def test_trees_of_pairs():
    """A corpus of trees can be cut, and remembers its trees."""
    corpus = load_corpus("grammar-trees", None, None, None, "raw", 5, 3, 2, 1)
    assert (corpus.source, corpus.target) == ("en", "brackets")
    trees = trees_of(corpus.splits["valid"])
    assert len(trees) == 3
    assert TreePairs(trees, "bare")[0][1] == linearise(trees[0], "bare")
    with pytest.raises(CorpusError, match="expected a corpus of trees"):
        trees_of([("a", "b")])
    with pytest.raises(ValueError, match="did you mean 'tags'"):
        load_corpus("grammar-trees", None, None, None, "tag", 5, 3, 2, 1)
    with pytest.raises(ValueError, match="source, target"):
        load_corpus("grammar-trees", source="brackets")


def test_text_from_a_terminal():
    """Words are cut as Penn's are, and brackets written as words."""
    assert penn_tokens("I don't sleep (now).") == "I do n't sleep ( now ) ."
    assert escape("( now )") == "-LRB- now -RRB-"


# --- F1


def test_the_score_by_hand():
    """Seven of eight brackets, the ninth thing being a full stop."""
    gold = tree_of(SISTER)
    other = tree_of(
        "(S (NP (PRP$ My) (NN sister)) (VP (VBD slept)) (SBAR (IN because) "
        "(S (NP (PRP she)) (VP (VBD was) (ADJP (JJ tired))))) (. .))"
    )
    score = bracket_score(gold, other)
    assert score == BracketScore(7, 8, 8) and score.f1 == 87.5
    assert bracket_score(gold, other, "VP") == BracketScore(1, 2, 2)
    assert score + score == BracketScore(14, 16, 16)
    assert BracketScore().f1 == BracketScore().precision == 0


def test_the_rules_of_collins():
    """Punctuation, particles, unary chains, and brackets without words."""
    one = tree_of("(S (NP (NN a)) (, ,) (NP (NP (NN b))) (. .))")
    assert punctuation(one) == {1, 3}
    assert spans(one, punctuation(one)) == {
        ("S", 0, 2): 1,
        ("NP", 0, 1): 1,
        ("NP", 1, 2): 2,
    }
    two = tree_of("(S (NP (NN a) (, ,)) (NP (NN b)) (X (. .)))")
    assert bracket_score(one, two) == BracketScore(3, 3, 4)
    left, right = (tree_of(f"({x} (RP up))") for x in ("PRT", "ADVP"))
    assert bracket_score(left, right).f1 == 100
    with pytest.raises(ValueError, match="2 words, expected 4"):
        bracket_score(one, tree_of("(NP (NN a) (NN b))"))


def plain(tree):
    """For the oracle: no ROOT, no repeated bracket over the same words."""
    text = tree.pformat(10**9)
    return text.removeprefix("(ROOT ").removesuffix(")")


def test_the_oracle_agrees():
    """PYEVALB, on trees without punctuation, half of them spoiled."""
    draw, judge = random.Random(0), evalb.Scorer()
    labels = ["NP", "VP", "S", "SBAR", "WHNP", "ADJP"]
    texts = sample_trees(60, seed=8, depth=1)
    for text in texts:
        gold = tree_of(text.replace("(, ,)", "(CC and)")
                       .replace("(. .)", "(CC too)"))  # fmt: skip
        found = gold.copy(deep=True)
        for node in list(found.subtrees(lambda t: t.height() > 2))[2:]:
            if draw.random() < 0.3:
                node.set_label(draw.choice(labels))
        if max(spans(found).values()) > 1:
            continue  # the oracle counts each once
        theirs = judge.score_trees(
            *(
                evalb_parser.create_from_bracket_string(plain(tree))
                for tree in (gold, found)
            )
        )
        ours = bracket_score(gold, found)
        assert ours.matched == theirs.matched_brackets
        assert ours.predicted == theirs.test_brackets
        assert ours.gold == theirs.gold_brackets


def test_the_baseline():
    """Each word, then a bracket of all the rest; the full stop outside."""
    gold = tree_of(SISTER)
    tree = right_branching(gold)
    assert tree.leaves() == gold.leaves()
    assert linearise(tree, "bare").startswith("⟨S XX ⟨VP XX ⟨VP XX ⟨VP")
    assert linearise(tree, "bare").endswith("VP⟩ XX S⟩")
    assert right_branching(tree_of("(NN a)")).leaves() == ["a"]
    long = Tree("ROOT", [Tree("NN", ["a"]) for _ in range(3000)])
    assert len(right_branching(long).leaves()) == 3000


# --- the search


class Writes:
    """A translator that has its answers ready, and notes what is asked."""

    def __init__(self, *answers, variant=""):
        """What it always answers, and the form of its leaves."""
        self.answers, self.asked, self.texts = answers, None, None
        self.tables = {"corpus": {"variant": variant}}

    def n_best(self, texts, **search):
        """The same hypotheses for each sentence."""
        self.asked, self.texts = search, list(texts)
        return [
            [Translation(text, 0.0) for text in self.answers] if one else []
            for one in texts
        ]


def test_the_search_is_the_papers():
    """Beam 21, alpha 0.3, and 300 tokens beyond the input."""
    parser = Writes("⟨S a b S⟩")
    parse(parser, ["a b"])
    assert parser.asked == {"n": 21, "alpha": 0.3, "extra_length": 300}
    said = paper_tables()["parsing"]
    assert all(str(x) in str(said) for x in (21, 0.3, 300))


def test_the_output_may_be_300_longer():
    """Counted from the input's tokens."""
    config = TransformerConfig(9, layers=1, d_model=8, d_ff=8, heads=2)
    src = torch.tensor([[4, 5, 2], [4, 2, 0]])
    assert max_lengths(Transformer(config), src, 300).tolist() == [303, 302]


def test_the_first_tree_is_taken():
    """Or the best hypothesis, repaired, if there is none."""
    bad, good = "⟨S a b", "⟨NP a b NP⟩"
    [found] = parse(Writes(bad, good), ["a b"])
    assert (found.rank, found.brackets) == (1, bad)
    assert linearise(found.tree) == good
    [found] = parse(Writes(bad, "a"), ["a b"])
    assert found.rank is None and linearise(found.tree) == "⟨S a b S⟩"
    [found] = parse(Writes(good), [""])
    assert not len(found.tree) and found.rank is None
    [found] = parse(Writes(good), ["( b"])
    assert found.tree.leaves() == ["-LRB-", "b"]


# --- the parser that comes with the book, and the paper's sizes


def test_the_parser_of_the_book():
    """Small, in half precision, described; and it can parse its language."""
    folder = ROOT / "models/grammar-parser"
    assert {path.name for path in folder.iterdir()} == {
        "README.md",
        "config.toml",
        "model.safetensors",
        "tokenizer.json",
    }
    assert (folder / "model.safetensors").stat().st_size < 2e6
    card = (folder / "README.md").read_text("utf-8")
    found = load_result("parsing")
    row = next(row for row in found["rows"] if row["corpus"] == "grammar")
    assert (row["trees"], row["seed"]) == (20_000, 0)
    assert f"F1 {row['f1']:.1f}" in card and f"{row['parameters']:,}" in card
    key = ("grammar-20000-0", "beam 21")
    rows = {(row["parser"], row["search"]): row for row in found["search"]}
    assert f"F1 {rows[key]['F1']:.1f}" in card
    gold = [tree_of(t) for t in sample_trees(30, 5, depth=1, split="test")]
    parser = Translator.load("grammar-parser")
    found = parse(parser, [" ".join(t.leaves()) for t in gold], beam=2)
    scores = map(bracket_score, gold, (one.tree for one in found))
    assert sum(scores, BracketScore()).f1 > 75


def test_the_papers_parsers():
    """Section 6.3: layers, width, vocabularies, and all else as in base."""
    base = read_recipe("wmt14-en-de-base")
    for name, vocabulary in (("wsj-parsing", 16_000),
                             ("wsj-parsing-semi", 32_000)):  # fmt: skip
        recipe = read_recipe(name)
        assert (recipe.model.layers, recipe.model.d_model) == (4, 1024)
        assert recipe.model.d_ff == base.model.d_ff == 2048
        assert recipe.model.heads == base.model.heads == 8
        assert recipe.tokenizer.vocab_size == vocabulary
        assert recipe.training.steps == base.training.steps
        assert recipe.training.label_smoothing == 0.1
        assert not recipe.model.pre_norm
        d, ff = 1024, 2048
        feed_forward = 2 * d * ff + d + ff
        encoder, decoder = 4 * d * d + 2 * 2 * d, 8 * d * d + 3 * 2 * d
        layers = 4 * (encoder + decoder + 2 * feed_forward)
        config = replace(recipe.model, vocab_size=vocabulary)
        assert parameter_count(config) == vocabulary * d + layers


def test_what_was_tuned():
    """Dropout on attention and on residuals; the paper gives no rates."""
    for name in ("wsj-parsing", "wsj-parsing-semi"):
        recipe = read_recipe(name)
        assert recipe.model.dropout == recipe.model.attention_dropout == 0.2
        assert recipe.training.warmup == 16_000


# --- what is quoted, and what was measured


TABLE = {(name, kind): f1 for name, kind, f1 in paper_tables()["table4"]}
WSJ, SEMI = "WSJ only, discriminative", "semi-supervised"


def test_table_4_is_quoted_right():
    """Twelve numbers."""
    assert TABLE["Transformer (4 layers)", WSJ] == 91.3
    assert TABLE["Transformer (4 layers)", SEMI] == 92.7
    assert TABLE["Luong et al. (2015)", "multi-task"] == 93.0
    assert TABLE["Dyer et al. (2016)", "generative"] == 93.3
    assert sorted(f1 for (_, kind), f1 in TABLE.items() if kind == WSJ) == [
        88.3, 90.4, 90.4, 91.3, 91.7]  # fmt: skip
    assert sorted(f1 for (_, kind), f1 in TABLE.items() if kind == SEMI) == [
        91.3, 91.3, 92.1, 92.1, 92.7]  # fmt: skip


def test_the_claims_about_table_4():
    """It beats the BerkeleyParser, and not quite all others."""
    ours = TABLE["Transformer (4 layers)", WSJ]
    assert ours > TABLE["Petrov et al. (2006)", WSJ]
    assert ours > TABLE["Vinyals & Kaiser et al. (2014)", WSJ]
    assert ours < TABLE["Dyer et al. (2016)", WSJ]
    best = TABLE["Transformer (4 layers)", SEMI]
    above = {name for (name, _), f1 in TABLE.items() if f1 > best}
    assert above == {"Dyer et al. (2016)", "Luong et al. (2015)"}


def test_outputs_are_longer_than_inputs():
    """Every bracket is a symbol more; in the grammar's trees, too."""
    for text in sample_trees(50, seed=1, depth=1):
        tree = tree_of(text)
        assert len(linearise(tree).split()) > 2 * len(tree.leaves())


def test_the_measured_parsers():
    """Both recipes are ahead of the baseline; the wide beam finds trees."""
    found = load_result("parsing")
    sizes = {"grammar": (20_000, 1000, 250), "gum": (3707, 1000, 250)}
    assert {(r["corpus"], r["trees"], r["seed"]) for r in found["rows"]} == {
        (corpus, size, seed)
        for corpus, some in sizes.items()
        for size in some
        for seed in (0, 1, 2)
    }
    for corpus, margin in (("grammar", 50), ("gum", 3)):
        base = found["baseline"][corpus]["f1"]
        most = max(r["trees"] for r in found["rows"] if r["corpus"] == corpus)
        rows = [row for row in found["rows"]
                if (row["corpus"], row["trees"]) == (corpus, most)]  # fmt: skip
        assert rows and all(row["f1"] > base + margin for row in rows)
    wide = [row for row in found["search"] if row["search"] == "beam 21"]
    assert len(wide) == 6
    for row in wide:
        if row["parser"].startswith("grammar"):
            assert row["F1"] > 95
    for row in found["rows"]:
        if row["corpus"] == "grammar":
            assert row["processor_seconds"] < 180
    for row in wide:
        assert row["none is a tree"] <= row["best is no tree"]
        assert row["processor seconds"] < 300
        assert row["peak memory in MB"] < 2000


# --- from a terminal


def test_a_parser_from_a_terminal(monkeypatch, capsys, tmp_path):
    """Train a little, parse, evaluate; and what is no parser is refused."""
    from transformer_annotated.workshop.cli import main

    def call(*line, stdin=b""):
        monkeypatch.setattr(sys, "argv", ["transformer-annotated", *line])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    run = str(tmp_path / "run")
    small = (
        "steps=2 log_every=1 train_size=40 valid_size=4 d_model=8 d_ff=8 "
        "heads=2 checkpoint_every=2 validate_every=2 vocab_size=300"
    )
    changes = [x for key in small.split() for x in ("--set", key)]
    code, *_ = call("train", "grammar-parsing", "--out", run, "--no-report",
                    *changes)  # fmt: skip
    assert code == 0
    code, out, _ = call("parse", "--model", run, "--beam", "2", "A dog sleeps.")
    assert code == 0 and read_tree(out).leaves() == "A dog sleeps .".split()
    code, out, _ = call("parse", "--model", "grammar-parser", "The king sees "
                        "the old queen.")  # fmt: skip
    assert code == 0 and clean_tree(read_tree(out)).pos() == [
        ("The", "DT"), ("king", "NN"), ("sees", "VB"), ("the", "DT"),
        ("old", "JJ"), ("queen", "NN"), (".", ".")]  # fmt: skip
    code, out, _ = call("parse", "--model", run, "--beam", "1",
                        stdin=b"I see.\n\n(he) sees\n")  # fmt: skip
    lines = out.split("\n")
    assert code == 0 and len(lines) == 4 and lines[1] == ""
    assert read_tree(lines[2]).leaves() == "-LRB- he -RRB- sees".split()
    code, out, _ = call("evaluate", "--model", run, "--beam", "1",
                        "--no-report")  # fmt: skip
    assert code == 0 and "4 trees" in out and out.startswith("F1 ")
    file = tmp_path / "gold.mrg"
    file.write_text(f"{SISTER}\n{SISTER}\n")
    found = tmp_path / "found.mrg"
    code, out, _ = call("evaluate", "--model", run, "--trees", str(file),
                        "--out", str(found), "--beam", "1")  # fmt: skip
    assert code == 0 and "2 trees" in out and "Report:" in out
    assert len(list(read_trees(found))) == 2
    for line, problem in (
        (["evaluate", "--model", "tatoeba-de-en"], "no parser"),
        (["parse", "--model", "tatoeba-de-en", "Hi"], "no parser"),
        (["evaluate", "--model", run, "--trees", "x", "--source", "y"],
         "--trees alone"),
        (["evaluate", "--model", run, "--trees", str(tmp_path / "no")],
         "no such file"),
        (["train", "copy", "--trees", "x", "--out", "y"], "no treebank"),
        (["train", "wsj-parsing", "--trees", str(tmp_path), "--out",
          str(tmp_path / "wsj")], "wsj: not found"),
    ):  # fmt: skip
        code, _, err = call(*line)
        assert code == 2 and problem in err and err.count("\n") == 1, err


def test_symbols_do_not_collide():
    """Brackets are characters of their own."""
    assert OPEN != CLOSE and not (OPEN + CLOSE).isascii()
