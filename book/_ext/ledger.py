"""Render the fidelity ledger, whole on its page and row by row in chapters.

``ledger.toml`` becomes the tables of a page. A row with tests is *done*, and
its symbol and tests become links that the build checks (a name that does not
exist breaks it). A row without tests, such as the authors' plans, says so.

In a chapter, ``{paper-says} label`` shows the rows whose ``where`` is that
label: what the paper states in the section that begins here. What is not the
paper's is a row of ``after``, and has a table of its own.
"""

import sys
import tomllib
from pathlib import Path

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

PAGE, DATA, PLACEHOLDER = "book/ledger", "book/ledger.toml", "{{ledger}}"
HEAD = ("The paper says", "Our symbol, and deviation", "Enforced by", "State")
PACKAGE, TESTS = "transformer_annotated", "tests"
OPEN_ROWS = 3  # of a box in a chapter; the others are folded
AFTER = (
    "Switches and parts that the paper does not have. All are off by default: "
    "a model that names none of them is the paper's."
)


def load(path: Path) -> list[dict]:
    """The sections of the ledger, each with its rows."""
    return tomllib.loads(path.read_text(encoding="utf-8"))["section"]


def load_after(path: Path) -> list[dict]:
    """The rows of what is not the paper's."""
    return tomllib.loads(path.read_text(encoding="utf-8"))["after"]


def anchor(section: dict) -> str:
    """The label of a section, to link to."""
    return f"ledger-{section['number'].replace('.', '-')}"


def symbol_cell(row: dict) -> str:
    """The symbol, linked to the API once it is there."""
    name = row["symbol"]
    if not row.get("tests"):
        return f"`{name}`"
    return f"{{py:obj}}`{name} <{PACKAGE}.{name}>`"


def test_cell(row: dict) -> str:
    """The tests of a row, linked by name."""
    names = [f"{TESTS}.{test}" for test in row.get("tests", [])]
    links = (f"{{py:func}}`{n.rpartition('.')[2]} <{n}>`" for n in names)
    return "<br>".join(links) or "–"


def list_table(rows: list[tuple[str, ...]], *options: str) -> str:
    """A MyST table of which the first row is the head."""
    lines = [":::{list-table}", ":header-rows: 1", *options]
    for row in rows:
        lines += [
            f"{'  ' if i else '* '}- {cell}" for i, cell in enumerate(row)
        ]
    return "\n".join([*lines, ":::", ""])


def section_text(section: dict) -> str:
    """One section of the paper: its heading, and a row per statement."""
    rows = [HEAD]
    for row in section["row"]:
        done = "{bdg-success}`done`" if row.get("tests") else "no test"
        ours = row.get("deviation", "as the paper")
        if "symbol" in row:
            ours = f"{symbol_cell(row)}<br>{ours}"
        if "where" in row:
            ours += f"<br>In the book: {{ref}}`{row['where']}`"
        rows.append((row["says"], ours, test_cell(row), done))
    title = f"{section['number']} {section['title']}"
    table = list_table(rows, ":class: ledger", ":widths: 34 28 30 8")
    return f"({anchor(section)})=\n## {title}\n\n{table}"


def summary(sections: list[dict]) -> str:
    """How many statements of each section are done."""
    rows = [("Section", "Statements", "Done")]
    for section in sections:
        title = f"{section['number']} {section['title']}"
        link = f"[{title}](#{anchor(section)})"
        done = sum(bool(row.get("tests")) for row in section["row"])
        rows.append((link, str(len(section["row"])), str(done)))
    totals = (str(sum(int(row[i]) for row in rows[1:])) for i in (1, 2))
    return list_table([*rows, ("**All**", *totals)])


def after_text(rows: list[dict]) -> str:
    """What is not the paper's: what it does, and what tests it."""
    cells = [("What it does", "Our symbol", "Enforced by")]
    for row in rows:
        ours = f"{symbol_cell(row)}<br>In the book: {{ref}}`{row['where']}`"
        cells.append((row["says"], ours, test_cell(row)))
    table = list_table(cells, ":class: ledger", ":widths: 40 28 32")
    return f"(ledger-after)=\n## After the paper\n\n{AFTER}\n\n{table}"


def statement(row: dict) -> str:
    """A row as an item of a list: the statement, and below it what we did."""
    names = " · ".join(test_cell(row).split("<br>"))
    links = f"{symbol_cell(row)} · {names}" if "symbol" in row else names
    lines = [f"- {row['says']}", "", "  :::{div} says-how", f"  {links}"]
    if "deviation" in row:
        lines += ["", f"  *Our note:* {row['deviation']}"]
    return "\n".join([*lines, "  :::", ""])


def box(found: list[tuple[dict, dict]]) -> str:
    """The box of one place in the book, from pairs of a section and a row."""
    numbers = {section["number"]: anchor(section) for section, _ in found}
    links = ", ".join(f"{{ref}}`{n} <{to}>`" for n, to in numbers.items())
    what = f"section{'s' if len(numbers) > 1 else ''} {links}"
    if [*numbers] == ["A"]:  # the paper has one, without a letter
        what = f"{{ref}}`appendix <{numbers['A']}>`"
    rows = [statement(row) for _, row in found]
    parts = [f"::::::{{admonition}} The paper says, {what}"]
    parts += [":class: paper-says", "", *rows[:OPEN_ROWS]]
    if more := rows[OPEN_ROWS:]:
        count = f"{len(more)} more statement{'s' if len(more) > 1 else ''}"
        parts += [f":::::{{dropdown}} {count}", *more, ":::::"]
    return "\n".join([*parts, "::::::"])


class PaperSays(SphinxDirective):
    """The statements of the paper that a section of the book fulfils."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """The box of the label that is the argument."""
        path = Path(self.env.app.srcdir) / DATA
        self.env.note_dependency(str(path))
        found = [
            (section, row)
            for section in load(path)
            for row in section["row"]
            if row.get("where") == self.arguments[0]
        ]
        if not found:
            raise self.error(f"no row of {DATA} is at {self.arguments[0]!r}")
        parent = nodes.Element()
        lines = StringList(box(found).splitlines(), source=str(path))
        self.state.nested_parse(lines, self.content_offset, parent)
        return parent.children


def read(app, docname, source):
    """Put the tables in the place of the placeholder."""
    if docname == PAGE:
        path = Path(app.srcdir) / DATA
        sections = load(path)
        text = [summary(sections), *map(section_text, sections)]
        text.append(after_text(load_after(path)))
        source[0] = source[0].replace(PLACEHOLDER, "\n".join(text))
        for file in (str(Path(app.srcdir) / DATA), __file__):
            app.env.note_dependency(file)


def skip_helpers(app, what, name, obj, skip, options):
    """On the page of tests, list the tests and not their helpers."""
    in_tests = (getattr(obj, "__module__", "") or "").startswith(TESTS)
    return True if in_tests and not name.startswith("test_") else None


def setup(app):
    """Register with Sphinx."""
    sys.path.insert(0, str(app.srcdir))  # so that autodoc finds the tests
    app.add_directive("paper-says", PaperSays)
    app.connect("source-read", read)
    app.connect("autodoc-skip-member", skip_helpers)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
