"""What reproduces a result: command, commit, machine, versions, seed."""

import os
import platform
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

_PACKAGES = ("trueshift", "torch", "timm")


def circumstances(seed: int, packages: tuple[str, ...] = _PACKAGES) -> dict[str, Any]:
    """Command, commit, date, machine, versions and seed."""
    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "commit": commit(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": processor(),
            "threads": torch.get_num_threads(),
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        "seed": seed,
    }


def commit() -> str:
    """The commit of this code, with a plus if code has changed since; "unknown" outside of a checkout.

    TRUESHIFT_COMMIT overrides it, for copies without a repository.
    """
    if given := os.environ.get("TRUESHIFT_COMMIT"):
        return given
    head = _git("rev-parse", "HEAD")
    return head + ("+" if head != "unknown" and _git("status", "--porcelain", "trueshift", "benchmarks") else "")


def _git(*arguments: str) -> str:
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():  # installed: whatever repository lies above is not ours
        return "unknown"
    with suppress(OSError, subprocess.CalledProcessError):
        return subprocess.run(["git", *arguments], capture_output=True, text=True, cwd=root, check=True).stdout.strip()
    return "unknown"


def _version(name: str) -> str | None:
    with suppress(PackageNotFoundError):
        return version(name)
    return None


def device_name(device: torch.device | str) -> str:
    """The chip behind a device."""
    device = torch.device(device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else processor()


def has_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU has instructions for bf16, as far as Linux says so; without them it is slower than float32."""
    with suppress(OSError):
        return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(cpuinfo.read_text().split())
    return False


def processor() -> str:
    """The processor's name."""
    with suppress(OSError, subprocess.CalledProcessError):
        shown = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
        if found := re.search(r"^Model name:\s*(.*\S)", shown, re.MULTILINE):
            return found[1]
    return platform.processor() or platform.machine()
