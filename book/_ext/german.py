"""Say that a German word is German, so that it is read aloud as one.

What is set in italics is German if each of its words is in ``german.txt``.
"""

import re
from pathlib import Path

from docutils import nodes
from sphinx.transforms import SphinxTransform

WORDS = Path(__file__).parent.parent / "german.txt"


class GermanText(nodes.emphasis):
    """Text in italics with the language German."""


def is_german(text: str, words: set[str]) -> bool:
    """Whether every word of a text is one of these."""
    found = re.findall(r"[^\W\d_]+", text.lower())
    return bool(found) and words.issuperset(found)


class German(SphinxTransform):
    """Mark the German among what is set in italics."""

    default_priority = 800

    def apply(self, **kwargs):
        """Replace each such node."""
        words = set(WORDS.read_text(encoding="utf-8").split())
        self.app.env.note_dependency(str(WORDS))
        for text in list(self.document.findall(nodes.emphasis)):
            if is_german(text.astext(), words):
                text.replace_self(GermanText("", "", *text.children))


def visit(self, node):
    """Open the tag."""
    self.body.append('<em lang="de">')


def depart(self, node):
    """Close the tag."""
    self.body.append("</em>")


def setup(app):
    """Register with Sphinx."""
    app.add_node(GermanText, html=(visit, depart))
    app.add_transform(German)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
