"""The browser of the tests: the first Chromium that this machine has."""

import shutil
import sys

from playwright.sync_api import sync_playwright

NAMES = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
)
FLAGS = (
    "--no-sandbox",  # containers run as root
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def executable(playwright) -> str | None:
    """The path of an installed browser, or None."""
    places = [*NAMES, playwright.chromium.executable_path]
    return next(filter(None, map(shutil.which, places)), None)


if __name__ == "__main__":
    with sync_playwright() as playwright:
        sys.exit(executable(playwright) is None)
