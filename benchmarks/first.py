"""The first sentence from the command line: seconds and memory.

    python -m benchmarks.first [--rounds 7]

Starts the command anew each time, with a shipped model, beside a process that
imports PyTorch and does nothing, since most of the time goes there. Rounds are
interleaved. Writes results/first-sentence.json.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.report import megabytes, write_result

MODEL, SENTENCE = "tatoeba-de-en", "Meine Schwester schlief, weil sie müde war."
COMMANDS = {
    "import torch": ("-c", "import torch"),
    "translate": (
        *("-m", "transformer_annotated", "translate"),
        *("--model", MODEL, SENTENCE),
    ),
}


def measure(command: Sequence[str]) -> tuple[float, float]:
    """Seconds by the clock, and most megabytes, of one run of Python."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command}: exit code {process.returncode}")
    return time.perf_counter() - begun, megabytes(usage)


def main() -> None:
    """Start each of them several times, and write down the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    found = {name: [] for name in COMMANDS}
    for number in range(options.rounds + 1):  # the first one warms the disk
        for name, command in COMMANDS.items():
            run = measure(command)
            if number:
                found[name].append(run)
    rows = []
    for name, runs in found.items():
        seconds, memory = map(statistics.median, zip(*runs, strict=True))
        row = {"seconds": round(seconds, 2), "megabytes": round(memory)}
        rows.append({"what": name, **row})
    write_result("first-sentence", rows, ("torch",), seed=None, model=MODEL)


if __name__ == "__main__":
    main()
