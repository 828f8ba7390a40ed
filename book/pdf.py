"""Print the whole book: every page of the site by a browser, in one PDF.

``make pdf`` writes ``transformer-annotated.pdf`` into the site, and shows the
button that leads to it on the front page. The PDF begins with its contents.
It has numbers on its pages and bookmarks of parts, chapters and sections, and
a link from one chapter to another stays inside it.
"""

import argparse
import html
import io
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

import yaml
from playwright.sync_api import Browser, Page, sync_playwright
from pypdf import PdfReader, PdfWriter
from pypdf.generic import (
    ArrayObject,
    DictionaryObject,
    FloatObject,
    NameObject,
    NullObject,
    TextStringObject,
)

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.browser import FLAGS, executable  # noqa: E402

NAME = "transformer-annotated.pdf"
TITLE = "Transformer, Annotated"
LEFT_OUT = {"book/api", "book/tests"}  # lists for a screen, a hundred pages
SCALE, SIDE, EDGE = 0.75, 16, 18  # millimetres at the sides, above, below
WIDTH = round((210 - 2 * SIDE) / 25.4 * 96 / SCALE)  # pixels of a printed page
SHEET = {
    "format": "A4",
    "print_background": True,
    "scale": SCALE,
    "margin": {
        "top": f"{EDGE}mm",
        "bottom": f"{EDGE}mm",
        "left": f"{SIDE}mm",
        "right": f"{SIDE}mm",
    },
}
# Boxes are opened; folded code, for those who run it, is left out, and so are
# the lists of sections, which are bookmarks here. Code stays on one sheet, if
# it is not too long. A browser keeps the place of what some link on the page
# leads to, so each id gets one.
PREPARE = """async () => {
    for (const box of document.querySelectorAll("details"))
        if (box.closest(".cell")) box.remove(); else box.open = true;
    document.querySelector("#jb-print-toc")?.remove();
    for (const code of document.querySelectorAll("div.highlight"))
        if (code.innerText.split("\\n").length <= 40)
            (code.closest(".cell_input") ?? code).style.breakInside = "avoid";
    if (window.MathJax?.startup) await window.MathJax.startup.promise;
    const links = document.createElement("div");
    links.hidden = true;
    for (const { id } of document.querySelectorAll("article [id]")) {
        const link = document.createElement("a");
        link.href = "#" + id;
        links.append(link);
    }
    document.body.append(links);
    window.prepared = true;
}"""
DRAWN = """() => window.prepared &&
    [...document.querySelectorAll("[id^=altair-viz]")]
    .every(box => box.querySelector("svg.marks"))"""
SECTIONS = """() => [...document.querySelectorAll("article h2")].map(
    heading => [heading.closest("section")?.id ?? "",
                heading.innerText.replace(/#$/, "").trim()])"""
CONTENTS_STYLE = """<style>
    body { font: 15px/1.5 sans-serif; color: #111; }
    h1 { font-size: 34px; margin: 90px 0 40px; }
    h2 { font-size: 16px; margin: 20px 0 4px; break-after: avoid; }
    a { display: flex; color: inherit; text-decoration: none; }
    a span { flex: 1; border-bottom: 1px dotted #999; margin: 0 8px 6px; }
</style>"""


@dataclass
class Chapter:
    """A page of the site, as it was printed."""

    name: str  # as in the table of contents: "notebooks/03_attention"
    part: str
    title: str
    printed: PdfReader
    sections: list[tuple[str, str]]  # id and heading of each
    start: int = 0  # its first page in the book, from 0
    places: dict[str, tuple[int, float]] = field(default_factory=dict)


def book_pages() -> list[tuple[str, str]]:
    """The part and the name of each page that is printed, in order."""
    text = (ROOT / "book" / "_toc.yml").read_text(encoding="utf-8")
    toc = yaml.safe_load(text)
    pages = [("", toc["root"])] + [
        (part["caption"], chapter["file"])
        for part in toc["parts"]
        for chapter in part["chapters"]
    ]
    return [(part, name) for part, name in pages if name not in LEFT_OUT]


def sheets(page: Page) -> PdfReader:
    """What a browser's page looks like on paper."""
    return PdfReader(io.BytesIO(page.pdf(**SHEET)))


def print_chapter(
    browser: Browser, site: Path, part: str, name: str
) -> Chapter:
    """Print one page of the site, once all of it is drawn."""
    size = {"width": WIDTH, "height": 1200}
    page = browser.new_page(color_scheme="light", viewport=size)
    page.emulate_media(media="print")  # charts are as wide as on paper
    page.goto((site / f"{name}.html").as_uri())
    page.evaluate(PREPARE)
    page.wait_for_function(DRAWN)
    title = page.locator("h1").first.inner_text().rstrip("#").strip()
    sections = [tuple(pair) for pair in page.evaluate(SECTIONS)]
    chapter = Chapter(name, part, title, sheets(page), sections)
    page.close()
    for key, place in chapter.printed.named_destinations.items():
        number = chapter.printed.get_destination_page_number(place)
        if number is not None and place.top is not None:
            chapter.places[unquote(key.lstrip("/"))] = number, float(place.top)
    return chapter


def print_contents(
    browser: Browser, site: Path, book: list[Chapter]
) -> PdfReader:
    """The title of the book, its parts and chapters with their pages."""
    lines, part = (
        [f"<title>{TITLE}</title>{CONTENTS_STYLE}<h1>{TITLE}</h1>"],
        "",
    )
    for chapter in book:
        if chapter.part != part:
            part = chapter.part
            lines.append(f"<h2>{html.escape(part)}</h2>")
        address = (site / f"{chapter.name}.html").as_uri()
        lines.append(
            f'<a href="{address}">{html.escape(chapter.title)}<span></span>'
            f"{chapter.start + 1}</a>"
        )
    page = browser.new_page(color_scheme="light")
    page.set_content("\n".join(lines))
    contents = sheets(page)
    page.close()
    return contents


def print_numbers(browser: Browser, count: int) -> PdfReader:
    """Sheets that are empty but for their numbers, at the foot."""
    rows = "".join(f"<div><p>{number + 1}</p></div>" for number in range(count))
    page = browser.new_page(color_scheme="light")
    page.set_content(
        "<style>@page { size: A4; margin: 0 } body { margin: 0 }"
        "div { height: 296mm; break-after: page; position: relative }"
        "p { position: absolute; bottom: 5mm; width: 100%; text-align: center;"
        " font: 11px sans-serif; color: #444 }</style>" + rows
    )
    data = page.pdf(prefer_css_page_size=True)
    page.close()
    return PdfReader(io.BytesIO(data))


def name_own_links(printed: PdfReader, address: str) -> None:
    """Let links within a page lead to its address, as those of others do."""
    for sheet in printed.pages:
        for reference in sheet.get("/Annots", []):
            note = reference.get_object()
            if (place := note.pop("/Dest", None)) is not None:
                note[NameObject("/A")] = DictionaryObject(
                    {
                        NameObject("/S"): NameObject("/URI"),
                        NameObject("/URI"): TextStringObject(
                            f"{address}#{str(place).lstrip('/')}"
                        ),
                    }
                )


def turn_links_inward(
    writer: PdfWriter, site: Path, book: list[Chapter]
) -> None:
    """Let links to pages of the site lead to their places in the PDF.

    What leads to a page that is not printed leads nowhere.
    """
    known = {(site / f"{one.name}.html").as_uri(): one for one in book}
    for sheet in writer.pages:
        for reference in sheet.get("/Annots", []):
            note = reference.get_object()
            address = str(note.get("/A", {}).get("/URI", ""))
            if not address.startswith("file:"):
                continue
            del note["/A"]
            file, _, place = address.partition("#")
            if (chapter := known.get(file)) is None:
                continue
            number, top = chapter.places.get(unquote(place), (0, None))
            target = writer.pages[chapter.start + number].indirect_reference
            height = NullObject() if top is None else FloatObject(top)
            note[NameObject("/Dest")] = ArrayObject(
                [target, NameObject("/XYZ"), NullObject(), height, NullObject()]
            )


def add_bookmarks(writer: PdfWriter, book: Iterable[Chapter]) -> None:
    """Parts, their chapters, and the sections of these."""

    def add(title: str, number: int, parent: object = None) -> object:
        return writer.add_outline_item(
            title=title, page_number=number, parent=parent
        )

    parent, part = None, ""
    for chapter in book:
        if chapter.part != part:
            part = chapter.part
            parent = add(part, chapter.start)
        own = add(chapter.title, chapter.start, parent)
        for place, heading in chapter.sections:
            number, _ = chapter.places.get(place, (0, None))
            add(heading, chapter.start + number, own)


def bind(browser: Browser, site: Path, book: list[Chapter]) -> PdfWriter:
    """Put contents and chapters together, with numbers, links, bookmarks."""
    first = len(print_contents(browser, site, book).pages)
    for chapter in book:
        chapter.start, first = first, first + len(chapter.printed.pages)
        address = (site / f"{chapter.name}.html").as_uri()
        name_own_links(chapter.printed, address)
    writer = PdfWriter()
    contents = print_contents(browser, site, book)
    for printed in (contents, *(chapter.printed for chapter in book)):
        writer.append(printed, import_outline=False)
    numbers = print_numbers(browser, len(writer.pages))
    for sheet, number in zip(writer.pages, numbers.pages, strict=True):
        sheet.merge_page(number)
        sheet.compress_content_streams()
    turn_links_inward(writer, site, book)
    add_bookmarks(writer, book)
    writer.compress_identical_objects()
    writer.add_metadata({"/Title": TITLE})
    return writer


def make_book(site: Path, pages: Iterable[tuple[str, str]]) -> PdfWriter:
    """Print pages of a site, each with its part, into one book."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable(playwright), args=list(FLAGS)
        )
        book = []
        for part, name in pages:
            book.append(print_chapter(browser, site, part, name))
            count = len(book[-1].printed.pages)
            print(f"{count:4} pages  {book[-1].title}", flush=True)
        writer = bind(browser, site, book)
        browser.close()
    return writer


def show_button(site: Path) -> None:
    """Show the button on the front page that leads to the PDF."""
    front = site / "book" / "index.html"
    text = front.read_text(encoding="utf-8")
    text = text.replace(f'{NAME}" hidden', f'{NAME}"')
    front.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--site", type=Path, default=ROOT / "_build" / "html")
    folder = parser.parse_args().site.resolve()
    written = make_book(folder, book_pages())
    written.write(folder / NAME)
    show_button(folder)
    size = (folder / NAME).stat().st_size / 1e6
    print(f"{len(written.pages)} pages, {size:.1f} MB: {folder / NAME}")
