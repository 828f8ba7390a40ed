"""The map of the lectures is whole, and leads to sections that exist."""

import math
import re

import lectures
import prose
import torch

from tests.site import ROOT

LECTURES, SLIPS = lectures.load(ROOT / lectures.DATA)
TOPICS = [topic for lecture in LECTURES for topic in lecture["topic"]]

SECTION = re.compile(r"^\(([\w-]+)\)=\s+(#+) ", re.MULTILINE)
EXERCISE = re.compile(r"^:label: (ex-[\w-]+)", re.MULTILINE)


def labels():
    """All labels of sections and exercises in notebooks, and of chapters.

    That of a section stands above its heading, of which links have their text.
    """
    found, chapters = set(), set()
    for path in (ROOT / "notebooks").rglob("*.ipynb"):
        cells = [
            cell["source"]
            for cell in prose.cells(path)
            if cell["cell_type"] == "markdown"
        ]
        text = "\n\n".join(cells)
        headings = dict(SECTION.findall(text))
        found |= {*headings, *EXERCISE.findall(text)}
        chapters |= {label for label, level in headings.items() if level == "#"}
    return found, chapters


KNOWN, CHAPTERS = labels()


def missing(row):
    """The labels of a row that nothing has."""
    return [label for label in row["where"] if label not in KNOWN]


def test_every_topic_of_five_lectures_is_there():
    """As many rows as the lectures have topics, and slips; none twice."""
    assert [(x["number"], len(x["topic"])) for x in LECTURES] == [
        ("000", 72),
        ("001", 53),
        ("002", 14),
        ("003", 40),
        ("004", 39),
    ]
    assert len(TOPICS) == 218 and len(SLIPS) == 10
    for lecture in LECTURES:
        names = [topic["what"] for topic in lecture["topic"]]
        assert len(names) == len(set(names))
        assert all(name.strip() for name in names)


def test_nothing_is_open_but_decoration():
    """A topic has a section that exists, or is a joke."""
    idle = 0
    for topic in TOPICS:
        if topic.get("decoration"):
            assert set(topic) == {"what", "decoration"}
            idle += 1
            continue
        assert set(topic) == {"what", "where"}
        assert topic["where"] and not missing(topic), topic
    assert idle == 2


def test_topics_lead_to_sections():
    """To a chapter as a whole only where the topic is all of it."""
    whole = {
        topic["what"]
        for topic in TOPICS
        if "where" in topic and CHAPTERS.issuperset(topic["where"])
    }
    assert whole == {
        "The Transformer on one slide",
        "Title and authors of the paper",
    }


def test_every_slip_has_evidence():
    """What a slide says, what is right, and a section that shows it."""
    numbers = {lecture["number"] for lecture in LECTURES}
    for slip in SLIPS:
        assert set(slip) == {"lecture", "says", "right", "where"}
        assert slip["lecture"] in numbers
        assert slip["where"] and not missing(slip), slip


def test_a_table_of_weights_is_no_softmax():
    """Ratios of the slide's weights would need two different divisors."""
    scores, weights = (95, 13, 35, 72), (0.6, 0.05, 0.1, 0.25)
    divisors = [
        (scores[0] - score) / math.log(weights[0] / weight)
        for score, weight in zip(scores[1:], weights[1:], strict=True)
    ]
    assert max(divisors) > 1.2 * min(divisors)
    assert torch.tensor(scores).float().softmax(0)[0] > 1 - 1e-6


def test_a_wrong_label_is_found_out():
    """The look-up that these tests rest on says no to what is not there."""
    assert missing({"where": ["masks", "mask"]}) == ["mask"]
    assert {"attention", "ex-window", "rotary"} <= KNOWN
