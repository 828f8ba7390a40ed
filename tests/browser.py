"""The browser of the tests: the first Chromium that this machine has."""

import os
import shutil
import sys

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
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
    own = playwright.chromium.executable_path
    found = [shutil.which(name) for name in NAMES]
    return next(filter(None, [*found, own if os.path.exists(own) else None]), None)


if __name__ == "__main__":
    with sync_playwright() as playwright:
        sys.exit(executable(playwright) is None)
