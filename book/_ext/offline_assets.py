"""Serve MathJax and Vega from the book itself: no page needs a network.

* MathJax is one file (SVG output, so no fonts to fetch), taken from the
  distribution ``sphinx-mathjax-offline``; it works from ``file://`` too.
* Vega, Vega-Lite and vega-embed are the bundle inside ``vl-convert-python``.
"""

import importlib.util
import json
import shutil
from pathlib import Path

import altair
import vl_convert

from transformer_annotated.charts.page import THEME, vega_bundle

MATHJAX = "mathjax/tex-svg-full.js"
VERSIONS = {
    "vega": altair.VEGA_VERSION,
    "vegalite": altair.VEGALITE_VERSION,
    "vegaembed": altair.VEGAEMBED_VERSION,
}
# A page from disk may not read other pages, so it finds but does not quote.
QUIET_SEARCH = """if (location.protocol === "file:")
  DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;"""
# A function keeps the bundle's thousands of names out of the global scope.
WRAPPED = """(function (stub) {{
{bundle}
const embed = window.vegaEmbed; window.vegaEmbed = stub;
document.dispatchEvent(new CustomEvent("vega-bundle", {{detail: embed}}));
}})(window.vegaEmbed);
"""


def generate(app, config):
    """Write the assets to ``_build/offline``, a folder of static files."""
    out = Path(app.doctreedir).parent / "offline"
    (out / "mathjax").mkdir(parents=True, exist_ok=True)
    source = importlib.util.find_spec("sphinx-mathjax-offline").origin
    shutil.copyfile(Path(source).parent / "static" / MATHJAX, out / MATHJAX)

    lite = ".".join(altair.VEGALITE_VERSION.split(".")[:2])
    bundle = out / f"vega-{vl_convert.__version__}-{lite}.js"
    if not bundle.exists():
        draft = bundle.with_suffix(".draft")
        code = WRAPPED.format(bundle=vega_bundle())
        draft.write_text(code, encoding="utf-8")
        draft.replace(bundle)
    app.vega_bundle = bundle.name
    config.html_static_path.append(str(out))
    config.mathjax_path = MATHJAX


def page_assets(app, pagename, templatename, context, doctree):
    """Load the scripts that a page needs: only some have charts."""
    if pagename == "search":
        app.add_js_file(None, body=QUIET_SEARCH)
    if "vegaEmbed" in context.get("body", ""):
        known = {"vegaVersions": VERSIONS, "vegaTheme": THEME}
        body = "".join(
            f"window.{k} = {json.dumps(v)};" for k, v in known.items()
        )
        app.add_js_file(None, body=body, priority=99)
        app.add_js_file("charts.js", priority=100)
        app.add_js_file(app.vega_bundle, loading_method="defer")


def drop_thebe(app, pagename, templatename, context, doctree):
    """Leave out sphinx-thebe, which Jupyter Book loads from a CDN."""
    context["script_files"] = [
        file
        for file in context["script_files"]
        if "thebe"
        not in f"{file.filename} {file.attributes.get('body', '')}".lower()
    ]


def setup(app):
    """Register with Sphinx."""
    app.connect("config-inited", generate)
    app.connect("html-page-context", page_assets)
    app.connect("html-page-context", drop_thebe, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
