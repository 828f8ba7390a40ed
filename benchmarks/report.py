"""What benchmarks and experiments write: numbers, and how they were made."""

import json
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def write_result(
    name: str,
    rows: list[dict] | dict,
    libraries: Sequence[str],
    seed: int | Sequence[int] | None,
    **about: object,
) -> None:
    """Write what was measured, and what it takes to measure it again.

    Args:
        name: Of the file in ``results/``.
        rows: What was measured.
        libraries: Those whose versions matter.
        seed: Of all that is drawn; None = nothing is.
        about: What else there is to say.
    """
    report = {
        "command": shlex.join(["python", *sys.orig_argv[1:]]),
        "date": date.today().isoformat(),
        "seed": seed,
        "machine": f"{platform.system()}, {platform.machine()}, "
        f"{os.cpu_count()} cores",
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in libraries},
        **about,
        "rows": rows,
    }
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, "utf-8")
    for row in rows if isinstance(rows, list) else [rows]:
        print(*(f"{key}: {value}" for key, value in row.items()), sep=", ")
