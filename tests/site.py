"""Where the project and its built website are, for the tests."""

from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "_build" / "html"
SCREENSHOTS = ROOT / "_build" / "screenshots"


def pages() -> list[str]:
    """The pages of the table of contents, in reading order."""
    text = (ROOT / "book" / "_toc.yml").read_text(encoding="utf-8")
    toc = yaml.safe_load(text)
    chapters = [c["file"] for part in toc["parts"] for c in part["chapters"]]
    return [toc["root"], *chapters]
