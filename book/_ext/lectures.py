"""Make the map of the lectures from ``lectures.toml``.

A table for each lecture, with a row for every topic and links to the sections
of the book that teach it, and a table of what slides have wrong. A link to a
label that does not exist breaks the build.
"""

import tomllib
from pathlib import Path

from ledger import list_table

PAGE, DATA, PLACEHOLDER = "book/lectures", "book/lectures.toml", "{{lectures}}"


def load(path: Path) -> tuple[list[dict], list[dict]]:
    """The lectures with their topics, and the slips."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    return found["lecture"], found["slip"]


def anchor(number: str) -> str:
    """The label of a lecture's table, to link to."""
    return f"lecture-{number}"


def links(row: dict) -> str:
    """The sections of a row, by their titles."""
    return "<br>".join(f"{{ref}}`{label}`" for label in row["where"])


def lecture_text(lecture: dict) -> str:
    """One lecture: its heading, and a row for each topic."""
    rows = [("On the slides", "In the book")]
    for topic in lecture["topic"]:
        decoration = topic.get("decoration")
        place = "*decoration*" if decoration else links(topic)
        rows.append((topic["what"], place))
    table = list_table(rows, ":class: ledger", ":widths: 50 50")
    title = f"## {lecture['title']}"
    return f"({anchor(lecture['number'])})=\n{title}\n\n{table}"


def summary(lectures: list[dict]) -> str:
    """How many topics each lecture has, and how many are decoration."""
    rows = [("Lecture", "Topics", "Decoration")]
    for lecture in lectures:
        link = f"[{lecture['title']}](#{anchor(lecture['number'])})"
        idle = sum(t.get("decoration", False) for t in lecture["topic"])
        rows.append((link, str(len(lecture["topic"])), str(idle)))
    totals = (str(sum(int(row[i]) for row in rows[1:])) for i in (1, 2))
    return list_table([*rows, ("**All**", *totals)])


def slips_text(slips: list[dict], lectures: list[dict]) -> str:
    """What slides have wrong, what is right, and where it is shown."""
    names = {lecture["number"]: lecture["title"] for lecture in lectures}
    rows = [("The slide says", "Right is", "Our evidence")]
    for slip in slips:
        name = names[slip["lecture"]].partition(",")[0]
        rows.append((f"{name}: {slip['says']}", slip["right"], links(slip)))
    table = list_table(rows, ":class: ledger", ":widths: 34 38 28")
    return f"(lecture-slips)=\n## Slips on the slides\n\n{table}"


def page_text(lectures: list[dict], slips: list[dict]) -> str:
    """All that takes the place of the placeholder."""
    parts = [summary(lectures), *map(lecture_text, lectures)]
    return "\n".join([*parts, slips_text(slips, lectures)])


def read(app, docname, source):
    """Put the tables in the place of the placeholder."""
    if docname == PAGE:
        path = Path(app.srcdir) / DATA
        source[0] = source[0].replace(PLACEHOLDER, page_text(*load(path)))
        for file in (str(path), __file__):
            app.env.note_dependency(file)


def setup(app):
    """Register with Sphinx."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
