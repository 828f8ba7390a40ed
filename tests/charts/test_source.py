"""Code on a page is the code of the package."""

import textwrap

from bs4 import BeautifulSoup

from transformer_annotated.attention import causal_mask
from transformer_annotated.charts.source import body_of, show_source
from transformer_annotated.layers import FeedForward


def _documented(x, /, *rest, tag="<b>"):
    """A docstring of one line."""

    # why: comments stay
    return f"{x}{rest}{tag}</script>"


def _undocumented():
    return "a string that is no docstring".split()


def test_bodies_have_neither_signature_nor_docstring():
    """Comments and line breaks stay, and every line that follows."""
    assert body_of(_documented) == (
        '# why: comments stay\nreturn f"{x}{rest}{tag}</script>"'
    )
    assert body_of(_undocumented).startswith('return "a string')
    body = body_of(FeedForward.forward)
    assert body.startswith("hidden = ") and body.count("\n") == 1


def test_listings_show_names_and_code_as_text():
    """In HTML and without it; nothing in the code becomes a tag."""
    listing = show_source(_documented, FeedForward.forward, causal_mask)
    parsed = BeautifulSoup(listing._repr_html_(), "lxml")
    names = [tag.get_text() for tag in parsed.select("p > code")]
    assert names[0].endswith("test_source._documented(x, rest, tag)")
    assert names[1:] == [
        "layers.FeedForward.forward(x)",
        "attention.causal_mask(length, device)",
    ]
    shown = [tag.get_text().strip() for tag in parsed.select("pre")]
    assert shown == list(listing.bodies.values())
    assert not parsed.select("b, script")
    for name, body in listing.bodies.items():
        assert textwrap.indent(name, "# ") + "\n" + body in repr(listing)
