"""The icons of the theme, without the 1.5 MB that carry all the others.

The theme loads every icon of Font Awesome as a script. We take the paths of
those that it uses from that script, and draw them with a style sheet.
"""

import re
from pathlib import Path

import pydata_sphinx_theme
from sphinx.util.osutil import ensuredir

SCRIPT = "scripts/fontawesome.js"
NAMES = (
    "angle-left",
    "angle-right",
    "arrow-up",
    "bars",
    "chevron-down",
    "circle-half-stroke",
    "code",
    "download",
    "expand",
    "file",
    "file-pdf",
    "github",
    "lightbulb",
    "list",
    "magnifying-glass",
    "moon",
    "pencil",
    "rocket",
    "sun",
)
ALIASES = {"pencil": "pencil-alt"}
COMMON = """:is(.fa-solid, .fas, .fa-brands, .fab)::before {
  content: "";
  display: inline-block;
  width: 1.1em;
  height: 1em;
  vertical-align: -0.125em;
  background: currentColor;
  mask: var(--icon) center / contain no-repeat;
}
.theme-switch.fa-lg { font-size: 1em; }
@media print { .fa-solid, .fas, .fa-brands, .fab { display: none; } }
"""


def rule(script: str, name: str) -> str:
    """The style of one icon, from its outline in Font Awesome's script."""
    entry = rf'[{{,]"?{name}"?:\[(\d+),(\d+),\[[^\]]*\],"\w+","([^"]+)"\]'
    width, height, path = re.search(entry, script).groups()
    svg = (
        "%3Csvg xmlns='http://www.w3.org/2000/svg' "
        f"viewBox='0 0 {width} {height}'%3E%3Cpath d='{path}'/%3E%3C/svg%3E"
    )
    names = [name, ALIASES.get(name, name)]
    selector = ", ".join(f".fa-{n}" for n in dict.fromkeys(names))
    return f'{selector} {{ --icon: url("data:image/svg+xml,{svg}"); }}\n'


def generate(app, config):
    """Write the style sheet among the static files."""
    theme = Path(pydata_sphinx_theme.__file__).parent
    static = "theme/pydata_sphinx_theme/static"
    script = (theme / static / SCRIPT).read_text(encoding="utf-8")
    out = Path(app.doctreedir).parent / "offline"
    ensuredir(out)
    rules = (rule(script, name) for name in NAMES)
    (out / "icons.css").write_text(COMMON + "".join(rules), encoding="utf-8")
    app.add_css_file("icons.css")


def drop_script(app, error):
    """Leave an empty script where the theme asks for the large one."""
    if not error and app.builder.format == "html":
        script = Path(app.outdir) / "_static" / SCRIPT
        script.write_text("/* see icons.css */\n", encoding="utf-8")
        script.with_name(f"{script.name}.map").unlink(missing_ok=True)


def setup(app):
    """Register with Sphinx."""
    app.connect("config-inited", generate)
    app.connect("build-finished", drop_script)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
