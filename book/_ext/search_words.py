"""Let search find a section by its number, its term, and other spellings.

"3.2.2 Multi-head attention: several questions at once" is found by its number
and by its term; a page that says *normalisation* also by *normalization*, and
one with a *warm-up* by *warmup*.
"""

import re

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

HEADING = re.compile(r"^((?:\d(?:\.\d)*)(?:, \d(?:\.\d)*)*) ([^:]+)")
SPELLINGS = {
    r"(\w{3,})is(e|ed|er|ing|ation)\b": r"\1iz\2",
    r"warm-up": "warmup",
    r"byte-pair": "byte pair",
    r"feed-forward": "feedforward",
}


def spellings(text: str) -> list[str]:
    """Other ways in which readers write a text, without the text itself."""
    text = text.lower()
    new = (re.sub(old, to, text) for old, to in SPELLINGS.items())
    return sorted({found for found in new if found != text})


def index_terms(title: str) -> dict[str, str]:
    """What the index has for a heading: "main", or "" for its single words."""
    heading = HEADING.match(title)
    if heading:
        term = heading[2].strip()
        words = dict.fromkeys(re.findall(r"[\w-]{7,}", term), "")
        names = [*heading[1].split(", "), term, *spellings(term)]
        return words | dict.fromkeys(names, "main")
    return {"warmup": "main"} if "warm-up" in title.lower() else {}


class SearchWords(SphinxTransform):
    """Add headings to the index, and other spellings to the keywords."""

    default_priority = 900

    def apply(self, **kwargs):
        """Both are read by the search of the site."""
        for section in self.document.findall(nodes.section):
            title = section.next_node(nodes.title)
            if title is None:
                continue
            entries = [
                ("single", term, section["ids"][0], rank, None)
                for term, rank in index_terms(title.astext()).items()
            ]
            if entries:
                section.insert(1, addnodes.index(entries=entries))
        words = set(re.findall(r"[\w-]+", self.document.astext().lower()))
        keywords = {new for word in words for new in spellings(word)}
        if keywords:
            content = " ".join(sorted(keywords))
            self.document.insert(
                0, nodes.meta("", name="keywords", content=content)
            )


def setup(app):
    """Register with Sphinx."""
    app.add_transform(SearchWords)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
