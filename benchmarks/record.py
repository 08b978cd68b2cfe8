"""Write a result together with everything needed to make it again."""

import json
import os
import platform
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"


def write(name: str, result: dict[str, Any], seed: int) -> Path:
    """Save ``results/name.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**_circumstances(seed), "result": result}, indent=2) + "\n")
    return path


def _circumstances(seed: int) -> dict[str, Any]:
    return {
        "command": shlex.join(["python", str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *sys.argv[1:]]),
        "commit": _commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in ("torch", "timm")}},
        "seed": seed,
    }


def _commit() -> str:
    """The commit, with a plus if code has changed since; TRUESHIFT_COMMIT where only a copy of the tree is at hand."""
    given = os.environ.get("TRUESHIFT_COMMIT")
    return given or _git("rev-parse", "HEAD") + (
        "+" if _git("status", "--porcelain", "trueshift", "benchmarks") else ""
    )


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=ROOT, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {"processor": processor(), "threads": torch.get_num_threads(), "gpu": gpu}


def processor() -> str:
    try:
        done = subprocess.run(["lscpu"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in done.stdout.splitlines() if line.startswith("Model name")]
    return names[0] if names else platform.machine()
