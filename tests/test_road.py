"""The road is the paper: its sections, its statements, and nothing too long."""

import re
from itertools import pairwise

import ledger
import prose
import pytest
import yaml

from tests.site import ROOT

MOST_WORDS, MOST_LINES, ALL_WORDS = 3000, 200, 42_000
ROAD = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
AFTER = sorted((ROOT / "notebooks/after").glob("*.ipynb"))
EACH_CHAPTER = pytest.mark.parametrize("path", ROAD, ids=lambda p: p.stem)
NUMBER = re.compile(r"\d(?:\.\d)*")


def text(path):
    """All prose of a chapter."""
    cells = prose.cells(path)
    return "\n\n".join(
        c["source"] for c in cells if c["cell_type"] == "markdown"
    )


def headings(path):
    """The headings of a chapter, without those inside code."""
    return re.findall(r"^#+ (.+)$", text(path), re.MULTILINE)


def boxes(path):
    """The labels of its boxes *The paper says*."""
    return re.findall(r"^:::\{paper-says\} (\S+)", text(path), re.MULTILINE)


def done_rows():
    """Each statement that is fulfilled, with the number of its section."""
    return [
        (section["number"], row)
        for section in ledger.load(ROOT / "book" / "ledger.toml")
        for row in section["row"]
        if row.get("tests")
    ]


@pytest.mark.parametrize("path", [*ROAD, *AFTER], ids=lambda p: p.stem)
def test_a_chapter_is_read_in_one_sitting(path):
    """No chapter has more words, or more code on its page, than one reads."""
    cells = prose.cells(path)
    assert prose.words(cells) <= MOST_WORDS
    assert prose.visible_lines(cells) <= MOST_LINES


def test_the_road_is_walked_in_a_few_evenings():
    """All chapters together have no more words than a short book."""
    assert sum(prose.words(prose.cells(path)) for path in ROAD) <= ALL_WORDS


def test_every_statement_stands_in_one_chapter():
    """Rows of the ledger and boxes of the road lead to each other."""
    shown = [label for path in ROAD for label in boxes(path)]
    assert len(shown) == len(set(shown))
    homeless = [row["says"] for _, row in done_rows() if "where" not in row]
    assert homeless == []
    assert {row["where"] for _, row in done_rows()} == set(shown)


@EACH_CHAPTER
def test_a_box_opens_a_section_with_its_number(path):
    """Label, heading with the paper's number, box: in this order."""
    source = text(path)
    sections = {}
    for number, row in done_rows():
        sections.setdefault(row.get("where"), set()).add(number)
    for label in boxes(path):
        pattern = rf"\({label}\)=\s+#+ (.+)\s+:::\{{paper-says\}} {label}\n"
        heading = re.search(pattern, source)
        assert heading, label
        numbers = NUMBER.findall(heading[1].split(":")[0])
        assert numbers or sections[label] == {"A"}, label


def test_every_section_of_the_paper_has_a_heading():
    """Who looks for "3.2.2" finds it in a heading of the road."""
    found = {
        number
        for path in ROAD
        for heading in headings(path)
        for number in NUMBER.findall(heading.split(":")[0])
    }
    wanted = {n for n, _ in done_rows() if NUMBER.fullmatch(n)}
    assert wanted <= found


def test_next_walks_through_the_paper_in_order():
    """The table of contents has the road first, nothing between, then V."""
    toc = yaml.safe_load((ROOT / "book/_toc.yml").read_text(encoding="utf-8"))
    files = [c["file"] for part in toc["parts"] for c in part["chapters"]]
    road = [f"notebooks/{path.stem}" for path in ROAD]
    assert files[: len(road)] == road
    after = {f"notebooks/after/{path.stem}" for path in AFTER}
    assert set(files[len(road) : len(road) + len(after)]) == after


@pytest.mark.parametrize(
    ("path", "following"),
    list(pairwise([*ROAD, ROOT / "notebooks/after/rotary.ipynb"])),
    ids=lambda p: p.stem,
)
def test_a_chapter_ends_by_naming_the_next(path, following):
    """Its last words lead where the button "next" leads."""
    label = re.search(r"^\((\S+)\)=", text(following), re.MULTILINE)[1]
    last_words = text(path).rpartition("**Next.**")[2]
    assert re.search(rf"\{{ref\}}`(.+<)?{label}>?`", last_words), label


def test_every_reference_is_whole():
    """Each entry of the bibliography has its braces, and a key of its own."""
    text = (ROOT / "book" / "references.bib").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=@)", text)
    for entry in entries:
        assert entry.count("{") == entry.count("}"), entry
    keys = re.findall(r"^@\w+\{(.+?),", text, re.MULTILINE)
    assert len(keys) == len(set(keys)) == len(entries)
