"""Code on a page is the code of the package."""

import textwrap

from bs4 import BeautifulSoup

from transformer_annotated.attention import causal_mask
from transformer_annotated.charts.source import body_of, show_source
from transformer_annotated.layers import FeedForward


def _documented(x, /, *rest, tag="<b>"):
    """A docstring of one line."""

    # why: comments stay
    if x is None:
        raise ValueError("x: None")
    body_of.check(x)
    if rest:
        x += 1
    return f"{x}{rest}{tag}</script>"


def _undocumented():
    return "a string that is no docstring".split()


def test_bodies_are_the_lines_that_compute():
    """No signature, no docstring, no check of input; comments stay."""
    assert body_of(_documented).splitlines() == [
        "# why: comments stay",
        "if rest:",
        "    x += 1",
        'return f"{x}{rest}{tag}</script>"',
    ]
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
