"""Give the project another address: rewrites it wherever it stands."""

import re
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent


def current() -> str:
    """The address in ``_config.yml``, the one place that counts."""
    config = (ROOT / "_config.yml").read_text(encoding="utf-8")
    return yaml.safe_load(config)["repository"]["url"]


def main(new: str) -> None:
    """Replace the current address by ``new`` in every tracked file."""
    if not re.fullmatch(r"https://[\w.-]+/[\w.-]+/[\w.-]+", new):
        sys.exit(
            f"not a repository's address: {new!r}; expected URL=https://host/owner/name"
        )
    old = current()
    tracked = subprocess.check_output(
        ["git", "ls-files", "-z"], cwd=ROOT, text=True
    )
    for name in filter(None, tracked.split("\0")):
        path = ROOT / name
        content = path.read_bytes()
        if old.encode() in content:
            path.write_bytes(content.replace(old.encode(), new.encode()))
            print(f"{name}: {old} -> {new}")


if __name__ == "__main__":
    main(sys.argv[1])
