"""Run the tests as on other machines: other instructions, threads, folders.

``make test-anywhere`` runs all settings below; ``make test`` the first that is
not this machine's own, on the tests that compute. Order is random, with the
seed shown, so that a failure can be repeated.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parent.parent
NUMERIC = (
    "attention layers embeddings positions model batching optimizer loss "
    "training decoding"
)


def instructions(aten: str, onednn: str, mkl: str, threads: int) -> dict:
    """What tells PyTorch's three libraries to do with an older processor."""
    return {
        "ATEN_CPU_CAPABILITY": aten,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
        "OMP_NUM_THREADS": str(threads),
    }


SETTINGS = {
    "SSE4, one thread": instructions("default", "SSE41", "SSE4_2", 1),
    "AVX2, two threads": instructions("avx2", "AVX2", "AVX2", 2),
    "this machine, four threads": {"OMP_NUM_THREADS": "4"},
}


def run(name: str, folder: Path, changes: dict, *options: str) -> bool:
    """Run the tests in a folder; whether all passed."""
    began, seed = time.monotonic(), time.time_ns() % 2**32
    command = [
        sys.executable,
        *("-m", "pytest", "-q", "-n", "2", "-m", "not site"),
        *("-p", "randomly", f"--randomly-seed={seed}"),
        *("-p", "no:cacheprovider", *options),
    ]
    print(f"\n{name}:", *(f"{k}={v}" for k, v in changes.items()), *command[1:])
    done = subprocess.run(command, cwd=folder, env=os.environ | changes)
    print(f"{name}: {time.monotonic() - began:.0f} s")
    return done.returncode == 0


def elsewhere() -> bool:
    """Run the tests of a copy of the project, on a path with a space."""
    with tempfile.TemporaryDirectory(prefix="a path with a space ") as folder:
        copy = Path(folder) / ROOT.name
        subprocess.run(["git", "clone", "-q", ROOT, copy], check=True)
        return run("another folder", copy, {"PYTHONPATH": str(copy)})


def main() -> None:
    """Run one setting, or all of them, and say which failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", action="store_true", help="only a foreign one")
    if parser.parse_args().one:
        native = torch.backends.cpu.get_cpu_capability()
        name = next(n for n in SETTINGS if native.lower() not in n.lower())
        files = [f"tests/test_{part}.py" for part in NUMERIC.split()]
        sys.exit(not run(name, ROOT, SETTINGS[name], *files))
    failed = [n for n, s in SETTINGS.items() if not run(n, ROOT, s)]
    if not elsewhere():
        failed.append("another folder")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
