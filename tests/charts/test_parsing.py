"""Charts of trees hold the brackets that they are given."""

from tests.charts.drawing import drawn
from transformer_annotated.charts.parsing import (
    f1_against_trees,
    f1_by_group,
    table_4,
    tree_pair,
)
from transformer_annotated.parsing import clean_tree, read_tree

GOLD, FOUND = (
    clean_tree(read_tree(text))
    for text in (
        "(S (NP (DT the) (NN king)) (VP (VBZ sleeps)) (. .))",
        "(S (NP (DT the)) (VP (NN king) (VBZ sleeps)) (. .))",
    )
)


def test_wrong_brackets_are_marked():
    """Two of three, on either side; words stand in the middle."""
    spec = drawn(tree_pair({"one": (GOLD, FOUND), "two": (GOLD, GOLD)}))
    rows = spec["data"]["values"]
    labels = [
        r for r in rows if r["kind"] == "label" and r["sentence"] == "one"
    ]
    assert len(labels) == 6
    wrong = sorted(r["label"] for r in labels if r["bracket"] == "in one tree")
    assert wrong == ["NP", "NP", "VP", "VP"]
    same = [r for r in rows if r["sentence"] == "two" and "bracket" in r]
    assert {r["bracket"] for r in same} == {"in both trees"}
    words = [r["label"] for r in rows if r["kind"] == "word"]
    assert words == 2 * GOLD.leaves()
    assert "sentence" in [param["name"] for param in spec["params"]]


def test_left_and_right_of_the_words():
    """Gold brackets before the words, predicted ones after them."""
    spec = drawn(tree_pair({"one": (GOLD, FOUND)}))
    labels = [r for r in spec["data"]["values"] if r["kind"] == "label"]
    assert all(r["x"] < 0.4 for r in labels[:3])
    assert all(r["x"] > 0.6 for r in labels[3:])


def test_f1_against_trees():
    """Every seed is a point, and a corpus has its own baseline."""
    rows = [
        {"corpus": c, "trees": n, "F1": n / 100, "seed": s}
        for c in ("grammar", "gum")
        for n in (250, 1000)
        for s in (0, 1)
    ]
    spec = drawn(f1_against_trees(rows, {"grammar": 26.0, "gum": 12.0}))
    level, line, points = spec["layer"]
    assert line["encoding"]["x"]["scale"]["type"] == "log"
    assert points["mark"]["type"] == "point"
    assert level["data"]["values"] == [
        {"corpus": "grammar", "F1": 26.0},
        {"corpus": "gum", "F1": 12.0},
    ]
    for layer in (level, line, points):
        assert "corpus" in str(layer["transform"])
    assert "corpus" in [param["name"] for param in spec["params"]]


def test_f1_by_group():
    """A menu chooses the panel."""
    rows = [
        {"panel": p, "group": g, "parser": q, "F1": 5, "low": 4, "high": 6}
        for p in ("gum, by label", "gum, by length")
        for g in ("NP", "VP")
        for q in ("Transformer", "right-branching")
    ]
    spec = drawn(f1_by_group(rows))
    assert spec["data"]["values"] == rows
    assert "panel" in [param["name"] for param in spec["params"]]


def test_table_4():
    """All rows are there."""
    rows = [{"model": "a", "training": "x", "F1": 90.1},
            {"model": "b", "training": "y", "F1": 92.0}]  # fmt: skip
    assert drawn(table_4(rows))["data"]["values"] == rows
