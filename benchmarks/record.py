"""Write a result together with everything needed to make it again."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from trueshift.utils.provenance import circumstances, processor

__all__ = ["RESULTS", "ROOT", "machine", "processor", "write"]

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"


def write(name: str, result: dict[str, Any], seed: int) -> Path:
    """Save ``results/name.json``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    command = shlex.join(["python", str(Path(sys.argv[0]).resolve().relative_to(ROOT)), *sys.argv[1:]])
    said = {**circumstances(seed, ("torch", "timm", "transformers", "triton")), "command": command}
    path.write_text(json.dumps({**said, "result": result}, indent=2) + "\n")
    return path


def machine(recorded: dict[str, Any], device: str = "cuda") -> str:
    """Where a result was measured, in words; on the processor if so said, or where there is nothing else."""
    where = recorded["machine"]
    gpu = where["gpu"] if device == "cuda" else None
    name = gpu or f"{where['processor']}, {where['threads']} threads"
    return f"{name}, torch {recorded['versions']['torch']}"
