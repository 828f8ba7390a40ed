"""Make the README's picture of Figure 1, light and dark.

The site colours the drawing with a style sheet that follows its theme. An
image in a README stands alone, so each of the two carries its own style.
"""

import re
from pathlib import Path

BOOK = Path(__file__).resolve().parent
DARK = 'html[data-theme="dark"] '


def picture(theme: str) -> str:
    """Figure 1 as an image that needs nothing else: ``light`` or ``dark``."""
    css = (BOOK / "_static" / "drawings.css").read_text(encoding="utf-8")
    css = css[: css.index("@media")]  # what follows is for the page
    css = re.sub(r"/\*.*?\*/", "", css, flags=re.DOTALL)
    rules = re.findall(r"[^{}]+\{[^{}]*\}", css)
    kept = [
        rule.strip().replace(DARK, "")
        for rule in rules
        if theme == "dark" or DARK not in rule
    ]
    style = "\n".join(["svg { font-family: system-ui, sans-serif; }", *kept])
    svg = (BOOK / "figures" / "figure1.svg").read_text(encoding="utf-8")
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r' href="[^"]*"', "", svg)  # an image has no links
    return svg.replace("<defs>", f"<style>\n{style}\n</style>\n<defs>", 1)


if __name__ == "__main__":
    for theme in ("light", "dark"):
        path = BOOK / "figures" / f"readme-{theme}.svg"
        path.write_text(picture(theme), encoding="utf-8")
