"""Make the page of records from ``results/*.json``.

One row for each result: command, date, seeds, time, memory, machine, journals
and outputs. Below it the speed of training, wherever it was measured, and the
curves of trainings that are stored.
"""

import html
import json
from pathlib import Path

from ledger import list_table

from transformer_annotated.charts.common import line_chart
from transformer_annotated.workshop.report import duration

PAGE, PLACEHOLDER = "book/records", "{{records}}"
HEAD = ("Result and command", "Date and seeds", "Time and machine", "Stored")
MISSING = "not recorded"


def load(folder: Path) -> dict[str, dict]:
    """All results, by name."""
    return {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.json"))
    }


def seeds(found: dict) -> str:
    """The seeds of a result; some draw nothing."""
    seed = found.get("seed", MISSING)
    if seed is None:
        return "no seed: nothing is drawn"
    if isinstance(seed, list):
        return f"seeds: {', '.join(map(str, seed))}"
    return f"seed: {seed}"


def training_hours(found: dict) -> float | None:
    """The hours of all trainings behind a result, if they are known."""
    logs = found.get("seeds") or found.get("logs", {}).values()
    hours = [log.get("hours") for log in logs]
    if hours and None not in hours:
        return sum(hours)
    facts = found["rows"] if isinstance(found["rows"], dict) else {}
    return facts.get("hours")


def time_cell(found: dict) -> str:
    """How long it took, how much memory, on which machine."""
    seconds, memory = found.get("seconds"), found.get("peak_megabytes")
    spent = MISSING if seconds is None else duration(seconds)
    parts = [f"command: {spent}"]
    if hours := training_hours(found):
        parts.append(f"training: {duration(3600 * hours)}")
    parts.append(f"memory: {f'{memory:,} MB' if memory else MISSING}")
    return "<br>".join([*parts, found.get("machine", MISSING)])


def stored_cell(found: dict) -> str:
    """The journals and outputs beside a result."""
    parts = []
    for log in found.get("logs", {}).values():
        speed = log.get("tokens_per_second") or MISSING
        parts.append(
            f"`{log['file']}`: {log['updates']:,} updates, {speed} tokens/s"
        )
    parts += [
        f"`{output['file']}`: {output['lines']:,} lines"
        for output in found.get("outputs", {}).values()
    ]
    few = parts[:4]
    if len(parts) > len(few):
        few.append(f"and {len(parts) - len(few)} more")
    return "<br>".join(few) or f"journals and outputs: {MISSING}"


def record_rows(results: dict[str, dict]) -> list[tuple[str, ...]]:
    """A row of the table for each result."""
    rows = []
    for name, found in results.items():
        command = found.get("command")
        versions = ", ".join(
            f"{library} {number}"
            for library, number in found.get("versions", {}).items()
        )
        rows.append(
            (
                f"**{name}**<br>" + (f"`{command}`" if command else MISSING),
                f"{found.get('date', MISSING)}<br>{seeds(found)}<br>"
                + (versions or f"versions: {MISSING}"),
                time_cell(found),
                stored_cell(found),
            )
        )
    return rows


def speed_rows(results: dict[str, dict]) -> list[tuple[str, ...]]:
    """Target tokens a second, of benchmarks and of trainings."""
    rows = []
    for name, found in results.items():
        for row in found["rows"] if name.startswith("training-") else ():
            if row["model"] == "this book":
                what = ", ".join([name, *filter(None, [row.get("precision")])])
                threads = (found | row).get("threads", MISSING)
                rows.append((what, threads, row["tokens_per_second"]))
        for run, log in found.get("logs", {}).items():
            if log.get("tokens_per_second"):
                threads = found.get("torch_threads", MISSING)
                what = f"{name}, {run}"
                rows.append((what, threads, log["tokens_per_second"]))
    return [(name, str(cores), f"{speed:,}") for name, cores, speed in rows]


def curve(name: str, found: dict) -> str:
    """The figure of a training whose curves are stored, one for each seed."""
    rows = [
        {"update": step, "NLL (nats)": nll, "of": f"seed {run['seed']}"}
        for run in found["seeds"]
        for step, nll in run["curve"]
    ]
    late = [row for row in rows if row["update"] >= rows[-1]["update"] / 6]
    chart = line_chart(late, "update", "NLL (nats)", "of")
    chart.encoding.y.scale = {"zero": False}
    text = (
        f"The likelihood of {name} on its validation part, in nats for each "
        "token, after the first sixth of its updates."
    )
    return (
        f'<figure class="nb-figure">{chart._repr_mimebundle_()["text/html"]}'
        '<figcaption><p><span class="caption-text">'
        f"{html.escape(text)}</span></p></figcaption></figure>"
    )


def page_text(results: dict[str, dict]) -> str:
    """All that takes the place of the placeholder."""
    table = list_table(
        [HEAD, *record_rows(results)], ":class: ledger", ":widths: 34 20 24 22"
    )
    head = ("Training", "Threads", "Target tokens a second")
    speed = list_table([head, *speed_rows(results)])
    drawn = [
        f"```{{raw}} html\n{curve(name, found)}\n```\n"
        for name, found in results.items()
        if found.get("seeds")
    ]
    parts = ["## All results", table, "## Speed of training", speed]
    return "\n\n".join([*parts, *(["## Curves", *drawn] if drawn else [])])


def read(app, docname, source):
    """Put the tables in the place of the placeholder."""
    if docname == PAGE:
        folder = Path(app.srcdir) / "results"
        source[0] = source[0].replace(PLACEHOLDER, page_text(load(folder)))
        for file in (*folder.glob("*.json"), folder, __file__):
            app.env.note_dependency(str(file))


def setup(app):
    """Register with Sphinx."""
    app.connect("source-read", read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
