"""The built pages as files: links lead somewhere, nothing comes from afar."""

from collections import Counter
from functools import cache
from urllib.parse import unquote, urlsplit

import pytest
from bs4 import BeautifulSoup
from placeholder import PLACEHOLDER

from tests.site import ROOT, SITE, pages

pytestmark = pytest.mark.site
EACH_PAGE = pytest.mark.parametrize("name", [*pages(), "search", "genindex"])


@pytest.fixture(scope="module")
def soup():
    """Parses a built page, once."""
    parsed = {}

    def parse(path):
        if path not in parsed:
            html = path.read_text(encoding="utf-8")
            parsed[path] = BeautifulSoup(html, "lxml")
        return parsed[path]

    return parse


@pytest.fixture(scope="module")
def anchors(soup):
    """A function that collects the ids of a page, once."""

    @cache
    def collect(path):
        return {tag["id"] for tag in soup(path).find_all(id=True)}

    return collect


@EACH_PAGE
def test_links_lead_somewhere(soup, anchors, name):
    """Every link inside the site names a file, and an anchor, that exist."""
    page = SITE / f"{name}.html"
    for link in soup(page).select("a[href]:not([hidden])"):
        target = urlsplit(link["href"])
        if target.scheme or target.netloc:
            continue
        path = page.parent / unquote(target.path) if target.path else page
        assert path.is_file(), link["href"]
        anchor = unquote(target.fragment)
        if anchor and path.suffix == ".html":
            assert anchor in anchors(path), link["href"]


@EACH_PAGE
def test_page_asks_nothing_of_other_hosts(soup, name):
    """Scripts, styles, images and fonts are files of the site."""
    page = soup(SITE / f"{name}.html")
    loaded = [tag["src"] for tag in page.find_all(src=True)]
    loaded += [tag["href"] for tag in page.find_all("link", href=True)]
    for address in loaded:
        assert not urlsplit(address).netloc, address


@EACH_PAGE
def test_directives_are_not_shown(soup, name):
    """No line such as ``#| export`` reaches a reader, except as an example."""
    page = soup(SITE / f"{name}.html")
    for code in page.select("div.highlight pre"):
        assert "#|" not in code.get_text()


def test_front_page_leads_to_the_book():
    """The site opens with the front page, from file:// too."""
    html = (SITE / "index.html").read_text(encoding="utf-8")
    assert "url=book/index.html" in html


def test_figure_1_has_a_link_in_every_box(soup):
    """Each box of the redrawn figure leads to the chapter that builds it."""
    figure = soup(SITE / "book/index.html").select_one("svg.fig1")
    links = [a["href"] for a in figure.find_all("a")]
    chapters = Counter(link.split("/")[-1].split(".")[0] for link in links)
    assert chapters == {
        "03_attention": 3,
        "05_embeddings": 4,
        "06_positions": 1,
        "04_layers": 7,
        "07_model": 2,
    }


@pytest.mark.parametrize("name", [p for p in pages() if "notebooks" in p])
def test_chapters_can_be_launched_and_downloaded(soup, name):
    """A download, and Colab and Binder once the project has an address."""
    hrefs = [a["href"] for a in soup(SITE / f"{name}.html").select("a[href]")]
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    placed = PLACEHOLDER not in config
    for host in ("colab.research.google.com", "mybinder.org"):
        links = [host in h and name in unquote(h) for h in hrefs]
        assert any(links) == placed, host
    assert placed or not any(PLACEHOLDER in h for h in hrefs)
    (download,) = [h for h in hrefs if h.endswith(f"_sources/{name}.ipynb")]
    assert (SITE / name).parent.joinpath(download).is_file()


def test_equations_and_figures_are_numbered(soup):
    """The paper's equation has the paper's number; figures have ours."""
    page = soup(SITE / "notebooks/03_attention.html")
    equations = [each.text for each in page.select("div.math")]
    assert sum(r"\tag{1}" in text for text in equations) == 1
    captions = page.select("figure.nb-figure .caption-number")
    assert len(captions) == len(page.select("figure.nb-figure")) >= 4
