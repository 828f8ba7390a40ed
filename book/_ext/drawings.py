"""Drawings inside the pages, where their colours follow the theme.

* An image from ``book/figures`` is set inline, not fetched: its boxes are
  links, and ``drawings.css`` colours them by class, in light and in dark.
* The card that opens a chapter gets a small Figure 1, lit where the chapter's
  class says (``lit-attention``), and the time that reading takes.
"""

import re
from pathlib import Path

from docutils import nodes
from prose import cells, words
from sphinx.transforms import SphinxTransform

FOLDER = "book/figures"
SHARED_IDS = re.compile(
    r'((?:id|labelledby|describedby)="|#)(arrow|title|desc|dropout)\b'
)
WORDS_A_MINUTE = 180  # of a text that wants to be thought about


def drawing(app, name: str) -> nodes.raw:
    """An SVG file as HTML, without comments, with ids of its own.

    Its links start one folder deep, and are adapted to where the page lies.
    """
    path = Path(app.srcdir) / FOLDER / name
    app.env.note_dependency(str(path))
    text = re.sub(r"<!--.*?-->", "", path.read_text("utf-8"), flags=re.DOTALL)
    text = SHARED_IDS.sub(rf"\g<1>{path.stem}-\g<2>", text)
    root = "../" * app.env.docname.count("/")
    text = text.replace('href="../', f'href="{root}')
    return nodes.raw("", text.strip(), format="html")


class Drawings(SphinxTransform):
    """Set the drawings of a page inline."""

    default_priority = 210

    def apply(self, **kwargs):
        """Replace each image that is a drawing of ours."""
        for image in list(self.document.findall(nodes.image)):
            path = Path(image["uri"])
            if path.suffix == ".svg" and path.parent.name == "figures":
                image.replace_self(drawing(self.app, path.name))


class ChapterCard(SphinxTransform):
    """Complete the card of a chapter."""

    default_priority = 220

    def apply(self, **kwargs):
        """Add reading time and a small Figure 1."""
        for card in self.document.findall(nodes.admonition):
            if "chapter-card" not in card["classes"]:
                continue
            body = next(card.findall(nodes.tbody))
            count = words(cells(Path(self.document["source"])))
            minutes = max(1, round(count / WORDS_A_MINUTE))
            name = nodes.strong("", "Reads in")
            time = nodes.Text(f"about {minutes} minutes")
            body += nodes.row(
                "",
                *(
                    nodes.entry("", nodes.paragraph("", "", part))
                    for part in (name, time)
                ),
            )
            if any(c.startswith("lit-") for c in card["classes"]):
                card += drawing(self.app, "figure1.svg")


def setup(app):
    """Register with Sphinx."""
    app.add_transform(Drawings)
    app.add_transform(ChapterCard)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
