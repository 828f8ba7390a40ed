"""Results with all that bears them out: journals, outputs, and a check.

A training takes hours, and what was measured on it is believed only if it can
be checked without training again. So an experiment stores, beside
``results/NAME.json``, the journal of each training and what the model wrote::

    results/NAME/RUN.jsonl.gz     the lines of the run's metrics
    results/NAME/OUTPUT.txt.xz    translations, one a line

and ``python -m experiments.NAME --check`` computes from these, within seconds,
the numbers in the result again.
"""

import gzip
import hashlib
import json
import lzma
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import report
from transformer_annotated.charts.runs import median_speed
from transformer_annotated.evaluation import compare
from transformer_annotated.workshop.files import write_atomically
from transformer_annotated.workshop.journal import read_metrics

# What, stored, computed, and how far apart they may be; or what alone, if it
# cannot be checked here.
Checked = tuple


def pack(lines: Iterable[str], suffix: str) -> bytes:
    """Lines, compressed: the same bytes each time."""
    text = "".join(f"{line}\n" for line in lines).encode()
    if suffix == ".gz":
        return gzip.compress(text, mtime=0)
    return lzma.compress(text, preset=9)


def unpack(path: Path) -> list[str]:
    """The lines of a file that :func:`pack` has made."""
    opened = gzip.open if path.suffix == ".gz" else lzma.open
    with opened(path, "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


def digest(lines: Iterable[str]) -> str:
    """A fingerprint of lines, for those who want to compare."""
    text = "".join(f"{line}\n" for line in lines)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def facts(rows: Sequence[dict]) -> dict:
    """What a journal says of a training as a whole."""
    valid = [row["valid_nll"] for row in rows if "valid_nll" in row]
    speed = median_speed(rows)
    return {
        "updates": rows[-1]["step"],
        "epochs": rows[-1]["epoch"],
        "hours": round(rows[-1]["seconds"] / 3600, 3),
        "tokens_per_second": round(speed) if speed else None,
        "best_valid_nll": round(min(valid), 4) if valid else None,
        "last_valid_nll": round(valid[-1], 4) if valid else None,
    }


def write_record(
    name: str,
    rows: list[dict] | dict,
    libraries: Sequence[str],
    seed: int | Sequence[int] | None,
    runs: Mapping[str, Path | Sequence[dict]] | None = None,
    outputs: Mapping[str, Sequence[str]] | None = None,
    **about: object,
) -> None:
    """Write a result, the journals of its runs, and what was translated.

    Args:
        name: Of the result.
        rows: What was measured.
        libraries: Those whose versions matter.
        seed: Of all that is drawn; None = nothing is.
        runs: Folders of the trainings, or their journals, by a name for each.
        outputs: Lines that models wrote, by a name for each.
        about: What else there is to say.
    """
    folder, logs, written = report.RESULTS / name, {}, {}
    for run, place in (runs or {}).items():
        metrics = read_metrics(place) if isinstance(place, Path) else place
        lines = [json.dumps(row) for row in metrics]
        store(folder / f"{run}.jsonl.gz", lines)
        logs[run] = {"file": f"{name}/{run}.jsonl.gz", **facts(metrics)}
    for output, lines in (outputs or {}).items():
        store(folder / f"{output}.txt.xz", lines)
        written[output] = {
            "file": f"{name}/{output}.txt.xz",
            "lines": len(lines),
            "sha256": digest(lines),
        }
    more = {"logs": logs, "outputs": written}
    about |= {key: value for key, value in more.items() if value}
    report.write_result(name, rows, libraries, seed, **about)


def store(path: Path, lines: Sequence[str]) -> None:
    """Write lines, compressed, whole or not at all."""
    if any("\n" in line or "\r" in line for line in lines):
        raise ValueError(f"{path}: a line has an end of line inside")
    path.parent.mkdir(parents=True, exist_ok=True)
    packed = pack(lines, path.suffix)
    write_atomically(path, lambda draft: draft.write_bytes(packed))


def load_record(name: str) -> dict:
    """What is written in ``results/NAME.json``."""
    return json.loads((report.RESULTS / f"{name}.json").read_text("utf-8"))


def journal(found: dict, run: str) -> list[dict]:
    """The stored metrics of one of a result's trainings."""
    lines = unpack(report.RESULTS / found["logs"][run]["file"])
    return [json.loads(line) for line in lines]


def output(found: dict, name: str) -> list[str]:
    """The stored lines of one of a result's outputs."""
    return unpack(report.RESULTS / found["outputs"][name]["file"])


def paired_test(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    tokenize: str = "13a",
) -> dict[str, float]:
    """What one set of translations has more BLEU than another, and p."""
    test = compare(first, second, references, tokenize=tokenize)
    difference = test.first.value - test.second.value
    return {"difference": round(difference, 2), "p": round(test.p_value, 4)}


def cached(file: Path, make: Callable, *given: object) -> object:
    """What a file holds, made if it is not there; so a stopped run goes on.

    What is made comes back as JSON has it, with lists for tuples.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(make(*given), ensure_ascii=False))
    return json.loads(file.read_text("utf-8"))


def data_folder() -> Path | None:
    """Where corpora lie on this machine, if it has been said."""
    named = os.environ.get("TRANSFORMER_ANNOTATED_DATA")
    return Path(named) if named else None


def check_stored(found: dict) -> Iterator[Checked]:
    """That journals and outputs are those that a result was made from."""
    for run, stored in found.get("logs", {}).items():
        for key, value in facts(journal(found, run)).items():
            yield f"{run}, {key}", stored[key], value
    for name, stored in found.get("outputs", {}).items():
        lines = output(found, name)
        yield f"{name}, lines", stored["lines"], len(lines)
        yield f"{name}, digest", stored["sha256"], digest(lines)


def verdicts(checked: Iterable[Checked]) -> Iterator[tuple[str, bool | None]]:
    """Each statement with its numbers, and whether these agree.

    None = it cannot be told, for want of outputs or of a corpus.
    """
    for name, *values in checked:
        if not values:
            yield name, None
            continue
        stored, computed, *within = values
        same = stored == computed
        if within and isinstance(stored, int | float):
            same = math.isclose(stored, computed, rel_tol=0, abs_tol=within[0])
        yield f"{name}: stored {stored}, computed {computed}", same


def start(main: Callable[[], None], check: Callable[[], Iterable]) -> None:
    """Run an experiment; with ``--check``, compute its result again."""
    if "--check" not in sys.argv[1:]:
        main()
        return
    seen = list(verdicts(check()))
    for line, same in seen:
        if not same:
            print(f"{'not checked' if same is None else 'wrong'}: {line}")
    told = [same for _, same in seen if same is not None]
    print(f"{len(told)} numbers checked, {told.count(False)} wrong")
    sys.exit(False in told)
