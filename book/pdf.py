"""Print the whole book: every page of the site by a browser, in one PDF.

``make pdf`` writes ``transformer-annotated.pdf`` into the site, and shows the
button that leads to it on the front page.
"""

import io
import sys
from pathlib import Path

import yaml
from playwright.sync_api import Page, sync_playwright
from pypdf import PdfReader, PdfWriter

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.browser import FLAGS, executable  # noqa: E402

SITE = ROOT / "_build" / "html"
OUT = SITE / "transformer-annotated.pdf"
LEFT_OUT = {"book/api", "book/tests"}  # lists for a screen, a hundred pages
FOOTER = """<div style="font-size: 8px; width: 100%; text-align: center">
<span class="title"></span></div>"""
DRAWN = """() => document.querySelectorAll(".vega-embed:not(:has(svg))").length
    === 0 && (!window.MathJax?.startup?.promise || window.ready)"""


def parts() -> list[tuple[str, list[str]]]:
    """The captions of the table of contents, each with its pages."""
    text = (ROOT / "book" / "_toc.yml").read_text(encoding="utf-8")
    toc = yaml.safe_load(text)
    return [
        ("", [toc["root"]]),
        *(
            (part["caption"], [chapter["file"] for chapter in part["chapters"]])
            for part in toc["parts"]
        ),
    ]


def printed(page: Page, name: str) -> PdfReader:
    """One page of the site as PDF, once all of it is drawn.

    Boxes are opened; folded code, for those who run it, is left out.
    """
    page.goto((SITE / f"{name}.html").as_uri())
    page.evaluate("""async () => {
        for (const box of document.querySelectorAll("details"))
            if (box.closest(".cell")) box.remove(); else box.open = true;
        if (window.MathJax?.startup) await window.MathJax.startup.promise;
        window.ready = true;
    }""")
    page.wait_for_function(DRAWN)
    data = page.pdf(
        format="A4",
        print_background=True,
        scale=0.75,
        display_header_footer=True,
        header_template="<span></span>",
        footer_template=FOOTER,
        margin={
            "top": "18mm",
            "bottom": "18mm",
            "left": "16mm",
            "right": "16mm",
        },
    )
    return PdfReader(io.BytesIO(data))


def main() -> None:
    """Print all pages, with an outline of parts and chapters."""
    writer = PdfWriter()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable(playwright), args=list(FLAGS)
        )
        page = browser.new_page(color_scheme="light")
        for caption, names in parts():
            parent = None
            for name in names:
                if name in LEFT_OUT:
                    continue
                start = len(writer.pages)
                writer.append(printed(page, name), import_outline=False)
                if caption and parent is None:
                    parent = writer.add_outline_item(caption, start)
                title = page.locator("h1").first.inner_text().rstrip("#")
                writer.add_outline_item(title, start, parent=parent)
                print(f"{start + 1:5}  {title}", flush=True)
        browser.close()
    writer.compress_identical_objects()
    writer.add_metadata({"/Title": "Transformer, Annotated"})
    writer.write(OUT)
    front = SITE / "book" / "index.html"
    html = front.read_text(encoding="utf-8")
    front.write_text(
        html.replace(
            'transformer-annotated.pdf" hidden', 'transformer-annotated.pdf"'
        ),
        encoding="utf-8",
    )
    print(f"{len(writer.pages)} pages, {OUT.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
