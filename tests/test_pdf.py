"""Three pages of the site, printed and bound as ``make pdf`` does with all."""

import io
from itertools import pairwise

import pytest
from pypdf import PdfReader

from book import pdf
from tests.site import SITE

pytestmark = pytest.mark.site
PAGES = [
    ("", "book/index"),
    ("Start here", "notebooks/00_reading"),
    ("Part II: the model", "notebooks/05_embeddings"),
]


@pytest.fixture(scope="module")
def book():
    """A short book, as its file would be read."""
    data = io.BytesIO()
    pdf.make_book(SITE, PAGES).write(data)
    return PdfReader(data)


def test_its_pages_are_numbered_and_none_is_empty(book):
    """Every sheet says something, and its number at the foot."""
    assert 8 < len(book.pages) < 40
    for number, sheet in enumerate(book.pages, 1):
        text = sheet.extract_text().strip()
        assert text.endswith(str(number)) and len(text) > 60, number


def test_its_bookmarks_lead_to_parts_chapters_and_sections(book):
    """Parts hold chapters, chapters hold sections, and pages ascend."""
    front, front_sections, _, (_, _), part, (chapter, sections) = book.outline
    assert (front.title, part.title) == (pdf.TITLE, "Part II: the model")
    assert chapter.title == "3.4 Embeddings" and len(sections) > 6
    places = [book.get_destination_page_number(one) for one in sections]
    assert all(a <= b for a, b in pairwise(places)) and places[0] < places[-1]
    first = book.pages[book.get_destination_page_number(chapter)]
    assert "3.4 Embeddings" in first.extract_text()
    assert len(front_sections) > 2


def test_its_links_stay_inside(book):
    """What leads to a page leads to a sheet, and never to a file."""
    outward, inward = [], 0
    for sheet in book.pages:
        for reference in sheet.get("/Annots", []):
            note = reference.get_object()
            outward.append(str(note.get("/A", {}).get("/URI", "")))
            inward += "/Dest" in note
    assert inward > 20
    assert not [link for link in outward if link.startswith("file:")]


def test_every_page_of_the_site_is_printed_or_left_out_on_purpose():
    """The book is the table of contents, without lists for a screen."""
    names = [name for _, name in pdf.book_pages()]
    assert names[0] == "book/index" and not set(names) & pdf.LEFT_OUT
    assert all((SITE / f"{name}.html").exists() for name in names)
