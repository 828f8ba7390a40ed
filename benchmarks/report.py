"""What benchmarks and experiments write: numbers, and how they were made."""

import json
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _command() -> str:
    """How this program was started, to start it again."""
    module = sys.modules["__main__"].__spec__  # None, unless by python -m
    name = ["-m", module.name] if module else sys.argv[:1]
    return shlex.join(["python", *name, *sys.argv[1:]])


def write(
    path: Path, rows: list[dict] | dict, libraries: tuple = (), **about: object
) -> None:
    """Write rows with command, machine and versions, and print them."""
    report = {
        "command": _command(),
        "machine": f"{platform.system()}, {platform.machine()}",
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in libraries},
        **about,
        "rows": rows,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(report, indent=1) + "\n")
    for row in rows if isinstance(rows, list) else [rows]:
        print(*(f"{key}: {value}" for key, value in row.items()), sep=", ")
