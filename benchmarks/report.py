"""What benchmarks and experiments write: numbers, and how they were made."""

import json
import os
import platform
import resource
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from transformer_annotated.workshop.files import write_atomically

RESULTS = Path(__file__).resolve().parents[1] / "results"
BEGAN = time.monotonic()  # all import this first
WIDTH = 120  # of a line in a result


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def machine() -> str:
    """System, processor, cores and memory, as far as they can be told."""
    parts = [platform.system(), platform.machine(), f"{os.cpu_count()} cores"]
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.exists() else []
    models = [line.partition(":")[2].strip() for line in lines]
    names = [
        m
        for m, line in zip(models, lines, strict=True)
        if line.startswith("model name")
    ]
    if names and names[0] != "unknown":
        parts.append(names[0])
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return ", ".join([*parts, f"{pages / 2**30:.0f} GiB"])


def megabytes(usage: resource.struct_rusage) -> float:
    """The most memory of what a usage is about; systems differ in the unit."""
    return usage.ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def peak_megabytes() -> int:
    """The most memory that this process, or one that it started, has had."""
    who = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return round(max(megabytes(resource.getrusage(one)) for one in who))


def peak_bytes(run: Callable[[], object]) -> int:
    """Most bytes held at one time by the tensors that a run allocates."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as log:
        run()
    events = log.profiler.kineto_results.events()
    memory = [event for event in events if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(memory, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def lay_out(value: object, depth: int = 0) -> str:
    """JSON for people: what fits on a line is one, and short things share one.

    So a hundred numbers are a few lines, and a change to one shows as such.
    """
    text = json.dumps(value, ensure_ascii=False)
    if len(text) + depth <= WIDTH or not isinstance(value, list | dict):
        return text
    pad = "\n" + " " * (depth + 1)
    if isinstance(value, dict):
        parts = [
            f"{json.dumps(str(key), ensure_ascii=False)}: "
            f"{lay_out(part, depth + 1)}"
            for key, part in value.items()
        ]
        return f"{{{pad}{f',{pad}'.join(parts)}\n{' ' * depth}}}"
    lines = [""]
    for part in (lay_out(part, depth + 1) for part in value):
        short = len(part) <= WIDTH // 3
        fits = len(lines[-1]) + len(part) + depth + 3 <= WIDTH
        if lines[-1] and not (short and fits and "\n" not in part):
            lines.append("")
        lines[-1] += f", {part}" if lines[-1] else part
    return f"[{pad}{f',{pad}'.join(lines)}\n{' ' * depth}]"


def write_result(
    name: str,
    rows: list[dict] | dict,
    libraries: Sequence[str],
    seed: int | Sequence[int] | None,
    **about: object,
) -> None:
    """Write what was measured, and what it takes to measure it again.

    ``seconds`` is the time since the command began.

    Args:
        name: Of the file in ``results/``.
        rows: What was measured.
        libraries: Those whose versions matter.
        seed: Of all that is drawn; None = nothing is.
        about: What else there is to say.
    """
    words = [
        os.path.relpath(w) if os.path.isabs(w) else w for w in sys.orig_argv[1:]
    ]  # a reader has other folders
    report = {
        "command": shlex.join(["python", *words]),
        "date": date.today().isoformat(),
        "seed": seed,
        "machine": machine(),
        "seconds": round(time.monotonic() - BEGAN, 1),
        "peak_megabytes": peak_megabytes(),
        "versions": {"python": platform.python_version()}
        | {name: _version(name) for name in libraries},
        **about,
        "rows": rows,
    }
    text = lay_out(report) + "\n"
    write_atomically(RESULTS / f"{name}.json", text)
    for row in rows if isinstance(rows, list) else [rows]:
        print(*(f"{key}: {value}" for key, value in row.items()), sep=", ")
