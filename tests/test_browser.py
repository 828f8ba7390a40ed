"""Every page in a real browser: typeset, drawn, dark, narrow and offline."""

import gzip
import json
import os
import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import altair as alt
import pytest
import torch
import vl_convert
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from tests.browser import FLAGS, executable
from tests.site import SCREENSHOTS, SITE, pages
from transformer_annotated.charts.common import bar_chart, heatmap

pytestmark = pytest.mark.site
EACH_PAGE = pytest.mark.parametrize("name", pages())
CHAPTER = "notebooks/03_attention"
CHART = "xpath=ancestor::*[contains(@class, 'vega-embed')]"
CLIPPED = """[...document.querySelectorAll(
    ".vega-embed, pre, td, .pst-scrollable-table-container")]
    .filter(box => box.scrollWidth > box.clientWidth + 1
        || [...box.querySelectorAll("mjx-container svg")].some(formula =>
            formula.getBoundingClientRect().right
            > box.getBoundingClientRect().right))
    .map(box => box.innerText.slice(0, 200))"""
CUT_OFF = """[...document.querySelectorAll("div.math")].filter(box => {
    const room = box.getBoundingClientRect();
    const drawing = box.querySelector("mjx-container svg")
        .getBoundingClientRect();
    return drawing.left < room.left - 1 || drawing.right > room.right + 1;
}).map(box => box.querySelector("mjx-assistive-mml")?.textContent
    ?? box.textContent)"""
TOO_WIDE = """[...document.querySelectorAll("caption")]
    .filter(text => text.getBoundingClientRect().right > innerWidth)
    .map(text => text.textContent)"""
INK = "letter => getComputedStyle(letter).fill"
DISK = SITE.as_uri()
WIDE, NARROW = 1280, 390
ROAD = re.compile(r"notebooks/\d")


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests; each has a context of its own."""
    with sync_playwright() as playwright:
        path = executable(playwright)
        chromium = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser):
    """Opens a page from disk, and fails if it complains or phones out."""
    contexts, complaints = [], []

    def note(message):
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    def open_page(name, theme="light", width=WIDE, base=DISK):
        viewport = {"width": width, "height": 900}
        context = browser.new_context(viewport=viewport, color_scheme=theme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: allowed(request.url, base))
        page.goto(f"{base}/{name}.html")
        page.evaluate("window.MathJax?.startup?.promise")
        page.wait_for_function(
            "[...document.querySelectorAll('[id^=altair-viz]')]"
            ".every(chart => chart.querySelector('svg.marks'))"
        )
        return page

    def allowed(url, base):
        if not url.startswith((base, "data:", "blob:")):
            complaints.append(f"asked for {url}")

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints


@pytest.fixture(scope="module")
def served():
    """The site on localhost, as ``make serve`` has it."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    handler = partial(Quiet, directory=SITE)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://localhost:{server.server_port}"
    server.shutdown()
    server.server_close()


def shoot(page, name, theme, width):
    """Keep a picture of the whole page for people to look at, if they ask."""
    if not os.environ.get("SCREENSHOTS"):
        return
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    file = f"{name.replace('/', '-')}-{theme}-{width}.png"
    page.screenshot(path=SCREENSHOTS / file, full_page=True)


def barriers(page):
    """What axe finds that keeps people out."""
    charts = {"exclude": [[".vega-embed svg"], ["mjx-container svg"]]}
    found = Axe().run(page, charts, {"preload": False}).response["violations"]
    serious = (v for v in found if v["impact"] in ("serious", "critical"))
    return [(v["id"], v["nodes"][0]["html"]) for v in serious]


def redrawn(chart, action):
    """Do something to a chart, and give what it looks like afterwards."""
    drawing = chart.locator("svg.marks")
    before = drawing.inner_html()
    action()
    for _ in range(100):
        if (after := drawing.inner_html()) != before:
            return after
        chart.page.wait_for_timeout(50)
    raise AssertionError("the chart has not changed")


@EACH_PAGE
@pytest.mark.parametrize(
    ("theme", "width"), [("light", WIDE), ("dark", NARROW)]
)
def test_page_is_whole(visit, name, theme, width):
    """Equations typeset, charts drawn, nothing clipped or too wide."""
    page = visit(name, theme, width)
    shoot(page, name, theme, width)
    assert page.evaluate("document.documentElement.dataset.theme") == theme
    bare = (
        "[...document.querySelectorAll('.math')].filter("
        "m => !m.querySelector('mjx-container')).length"
    )
    assert page.evaluate(bare) == 0
    assert page.locator("mjx-merror, [data-mjx-error]").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate(TOO_WIDE) == []
    if width == WIDE:
        assert page.evaluate(CLIPPED) == []
        found = (
            Axe().run(page, options={"preload": False}).response["violations"]
        )
        bad = ("serious", "critical")
        assert [v["id"] for v in found if v["impact"] in bad] == []


@pytest.mark.parametrize("name", ["notebooks/00_reading", CHAPTER])
def test_charts_follow_the_theme(visit, name):
    """The letters in a chart have the colour of the page's text."""
    colours = set()
    for theme in ("light", "dark"):
        page = visit(name, theme)
        label = page.locator("svg.marks .role-axis-label text").first
        drawn = label.evaluate(INK)
        assert drawn == page.evaluate("getComputedStyle(document.body).color")
        colours.add(drawn)
    assert len(colours) == 2


def test_theme_button_switches_charts_too(visit):
    """A click is enough, without loading the page again."""
    page = visit(CHAPTER)
    label = page.locator("svg.marks .role-axis-label text").first
    before = label.evaluate(INK)
    for _ in range(3):  # auto, light, dark: one of the clicks is dark
        page.locator("button.theme-switch-button").first.click()
        if page.evaluate("document.documentElement.dataset.theme") == "dark":
            break
    assert label.evaluate(INK) != before


def test_menus_change_the_charts(visit):
    """Every entry of every menu draws another picture."""
    page = visit(CHAPTER)
    menus = page.locator(".vega-bindings select")
    assert menus.count() == 2
    for menu in menus.all():
        chart = menu.locator(CHART)
        options = menu.locator("option").all_inner_texts()
        seen = {
            redrawn(chart, partial(menu.select_option, option))
            for option in [*options[1:], options[0]]
        }
        assert len(seen) == len(options) >= 4


def test_slider_and_tick_box_change_the_chart(visit):
    """Undivided, one key takes all as the head grows; divided, none does."""
    page = visit(CHAPTER)
    size, draw = page.locator(".vega-bindings input[type=range]").all()
    chart = size.locator(CHART)

    def bars(action):
        redrawn(chart, action)
        marks = chart.locator(".mark-rect path").all()
        return [mark.bounding_box()["height"] for mark in marks]

    small = bars(lambda: size.fill("0"))
    large = bars(lambda: size.fill("9"))
    assert max(large) > 0.9 * sum(large) > 1.5 * max(small)
    assert bars(lambda: draw.fill("2")) != large
    divided = bars(chart.locator("input[type=checkbox]").check)
    assert max(divided) < 0.7 * sum(divided)


@pytest.mark.parametrize(
    ("name", "sliders"),
    [
        ("notebooks/05_embeddings", 1),
        ("notebooks/06_positions", 2),
        ("notebooks/02_tour", 1),
        ("notebooks/09_text", 1),
        ("notebooks/12_optimizer", 3),
        ("notebooks/13_loss", 3),
        ("notebooks/11_distributed", 1),
        ("notebooks/15_decoding", 2),
        ("notebooks/16_evaluation", 1),
    ],
)
def test_sliders_change_the_charts(visit, name, sliders):
    """From one end to the other, and the chart is another one."""
    page = visit(name)
    ranges = page.locator(".vega-bindings input[type=range]")
    assert ranges.count() == sliders
    for slider in ranges.all():
        chart, start = slider.locator(CHART), slider.input_value()
        ends = slider.get_attribute("max"), slider.get_attribute("min")
        seen = {redrawn(chart, partial(slider.fill, end)) for end in ends}
        assert len(seen) == 2
        if start != ends[-1]:  # the next one may show nothing at this end
            redrawn(chart, partial(slider.fill, start))


def test_attention_is_explored(visit):
    """Every menu draws another picture; a click leaves a piece's lines."""
    page = visit("notebooks/20_looking")
    chart = page.locator(".vega-embed").filter(has=page.locator("select")).first
    menus = chart.locator("select").all()
    assert len(menus) == 4
    assert menus[0].locator("option").count() == 5
    drawing = chart.locator("svg.marks").bounding_box()
    assert menus[0].bounding_box()["y"] < drawing["y"]  # above, and stays
    for menu in menus:  # it opens on a head that was searched for
        menu.select_option(index=0)
    page.wait_for_timeout(500)
    for menu in menus:
        options = menu.locator("option").count()
        seen = {
            redrawn(chart, partial(menu.select_option, index=i % options))
            for i in range(1, options + 1)
        }
        assert len(seen) == options >= 3

    def lines():
        marks = chart.locator(".mark-rule line").all()
        return sum(float(m.get_attribute("opacity")) > 0 for m in marks)

    before, key = lines(), chart.locator("text[aria-label^='column: 0']").first
    redrawn(chart, key.click)
    assert 0 < lines() < before
    redrawn(chart, key.click)
    assert lines() == before
    redrawn(chart, partial(chart.locator("input").press, "ArrowRight"))
    assert 0 < lines() < before  # a keyboard picks a query


def test_attention_fits_a_phone(visit):
    """The heat map goes below the lines, and a piece can be clicked there."""
    page = visit("notebooks/20_looking", "dark", NARROW)
    chart = page.locator(".vega-embed").filter(has=page.locator("select")).first
    drawing = chart.locator("svg.marks").bounding_box()
    assert drawing["width"] < NARROW
    lines, cells = (
        chart.locator(mark).first.bounding_box()
        for mark in (".mark-rule line", "path[aria-label*='weight']")
    )
    assert lines["y"] + lines["height"] < cells["y"]
    keys = chart.locator("text[aria-label^='column: ']").all()
    redrawn(chart, keys[1].click)


def test_text_in_charts_is_never_a_tag(browser, tmp_path):
    """Whatever a sentence holds is shown as it is, and nothing of it runs."""
    rude = "</script><script>document.title = 'ran'</script>"
    words = [rude, "<b>bold</b>", "<!--<script>"]
    cells = {rude: torch.eye(3), "other": torch.eye(3)}
    snippets = [
        chart._repr_mimebundle_()["text/html"]
        for chart in (
            heatmap(cells, words, words),
            bar_chart([{"n": 1, "run": rude}], "n", "run"),
        )
    ]
    lite = ".".join(alt.VEGALITE_VERSION.split(".")[:2])
    bundle = vl_convert.javascript_bundle(vl_version=lite)
    (tmp_path / "vega.js").write_text(bundle, encoding="utf-8")
    loaded = {
        "vega_version": alt.VEGA_VERSION,
        "vegalite_version": alt.VEGALITE_VERSION,
        "vegaembed_version": alt.VEGAEMBED_VERSION,
    }
    (tmp_path / "page.html").write_text(
        "<!DOCTYPE html><meta charset='utf-8'><title>calm</title>"
        "<script src='vega.js'></script>"
        f"<script>var VEGA_DEBUG = {json.dumps(loaded)};</script>"
        + "".join(snippets),
        encoding="utf-8",
    )
    context = browser.new_context()
    page = context.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    drawn = page.locator("svg.marks")
    expect(drawn).to_have_count(2)
    assert page.title() == "calm"
    assert page.locator("b").count() == 0
    assert page.locator("option").first.inner_text() == rude
    drawn.first.locator(".mark-rect path").nth(4).hover()
    expect(page.locator("#vg-tooltip-element")).to_contain_text("<b>bold</b>")
    assert page.title() == "calm"
    context.close()


def test_legend_picks_out_a_curve(visit):
    """A click on an entry of the legend fades the other curves."""
    page = visit(CHAPTER)
    chart = page.locator(".vega-embed").filter(has_text="error").first
    redrawn(chart, chart.locator(".role-legend-symbol path").first.click)


@pytest.mark.parametrize(
    "name", [p for p in pages() if "notebooks" in p and "reading" not in p]
)
def test_solutions_are_folded(visit, name):
    """Every exercise has a solution, which opens on a click."""
    page = visit(name)
    solutions = page.locator("div.solution.dropdown")
    assert solutions.count() == page.locator("div.exercise").count()
    if "workshop" in name and not solutions.count():
        return  # a page of the workshop need not have any
    assert solutions.count() >= (2 if ROAD.match(name) else 1)
    body = solutions.first.locator("pre").first
    expect(body).not_to_be_visible()
    solutions.first.locator(".admonition-title, summary").first.click()
    expect(body).to_be_visible()


@pytest.mark.parametrize("where", ["disk", "server"])
def test_search_finds_the_chapter(visit, served, where):
    """Searching for a word of the chapter finds it."""
    base = DISK if where == "disk" else served
    page = visit("search", base=base)
    page.goto(f"{base}/search.html?q=equivariance")
    results = page.locator("#search-results")
    expect(results.locator("li a").first).to_be_visible()
    assert "Positions" in results.inner_text()


@pytest.mark.parametrize(
    ("query", "chapter"),
    [
        ("attention", "03_attention"),
        ("multi-head attention", "03_attention"),
        ("3.2.2", "03_attention"),
        ("layer normalization", "04_layers"),
        ("residual connection", "04_layers"),
        ("positional encoding", "06_positions"),
        ("byte pair encoding", "09_text"),
        ("warmup", "12_optimizer"),
        ("label smoothing", "13_loss"),
        ("dropout", "13_loss"),
        ("beam search", "15_decoding"),
        ("BLEU", "16_evaluation"),
    ],
)
def test_first_hit_is_the_chapter(visit, query, chapter):
    """What students type leads to the chapter, not to a test or an API."""
    page = visit("search")
    page.goto(f"{DISK}/search.html?q={query.replace(' ', '+')}")
    first = page.locator("#search-results li a").first
    expect(first).to_be_visible()
    assert chapter in first.get_attribute("href")


@pytest.mark.parametrize("name", [CHAPTER, "notebooks/20_looking"])
def test_a_page_is_light(visit, served, name):
    """A chapter takes at most 1.5 MB, packed as servers send it."""
    page = visit("book/cite", base=served)  # has neither charts nor formulas
    sizes = {}
    page.on(
        "response",
        lambda r: sizes.update({r.url: len(gzip.compress(r.body()))}),
    )
    page.goto(f"{served}/{name}.html", wait_until="networkidle")
    assert sum(sizes.values()) < 1.5e6, sorted(sizes.items())


def test_paper_is_white(visit):
    """Printed from dark mode, text is dark and the menus stay away."""
    page = visit(CHAPTER, "dark")
    page.emulate_media(media="print", color_scheme="dark")
    for part in (".bd-sidebar-primary", ".bd-header-article"):
        for box in page.locator(part).all():
            expect(box).not_to_be_visible()
    colour = "box => getComputedStyle(box).color.match(/\\d+/g).map(Number)"
    for part in ("article p", "article h2", "article pre"):
        assert max(page.locator(part).first.evaluate(colour)) < 128, part


def test_charts_are_called_by_their_captions(visit):
    """A screen reader says what a chart shows, not that Vega drew it."""
    page = visit(CHAPTER)
    for figure in page.locator("figure:has(svg.marks)").all():
        name = figure.locator("svg.marks").first.get_attribute("aria-label")
        caption = figure.locator(".caption-text").inner_text()
        assert name.split()[:3] == caption.split()[:3]


def test_citation_is_copied(visit, served):
    """The button beside the BibTeX puts it on the clipboard."""
    page = visit("book/cite", base=served)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    block = page.locator("div.highlight").filter(has_text="@software").last
    block.hover()
    block.locator("button.copybtn").click()
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied.startswith("@software{transformer_annotated")


def test_figure_1_leads_to_the_chapter(visit):
    """A click on a box of the diagram opens the chapter that builds it."""
    page = visit("book/index")
    page.locator("svg.fig1 a[href*='03_attention']").first.click()
    page.wait_for_url("**/03_attention.html*")
    expect(page.locator("article.bd-article h1")).to_contain_text("Attention")


def test_works_from_a_server(visit, served):
    """What works from disk works from localhost as well."""
    page = visit(CHAPTER, base=served)
    assert page.locator("mjx-container").count() > 50
    assert page.locator("svg.marks").count() >= 4
