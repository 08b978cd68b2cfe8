"""Checkpoints that are whole or absent, and the rules for resuming from them.

accelerate's ``save_state`` guarantees less: it writes in place, so a killed process or a full disk leaves half a
checkpoint, nothing detects damaged files, and loading may run code.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from ..utils.files import json_text, sha256_of, write_whole
from .config import TrainConfig

_ABOUT, _WEIGHTS, _AVERAGE, _STATE = "about.json", "model.safetensors", "ema.safetensors", "training.pt"
_VALUES = ("step", "epoch", "step_in_epoch", "data", "config")  # of a snapshot, in about.json


@dataclass
class Snapshot:
    """All that a run needs to resume exactly. Random numbers follow from seed and step."""

    step: int  # updates made so far
    epoch: int  # of the next update
    step_in_epoch: int  # updates made in that epoch
    weights: dict[str, Tensor]  # of the network, buffers included
    average: dict[str, Tensor] | None
    state: dict[str, Any]  # of optimizer and gradient scaler, the best score so far, and the time taken
    config: dict[str, Any]
    data: dict[str, Any]  # sizes, which must not change


class CheckpointFolder:
    """The checkpoints of a run, each in its own folder; ``keep`` is how many of the newest stay."""

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path, self.keep = path, keep

    def all(self) -> list[Path]:
        """Oldest first, damaged ones included; one that is being replaced comes before its replacement."""
        return sorted(self.path.glob("step_[0-9]*"), key=lambda folder: (folder.stem, not folder.suffix))

    def save(self, snapshot: Snapshot) -> Path:
        """Write a checkpoint; once it is whole, remove old ones."""
        target = self.path / f"step_{snapshot.step:08d}"
        draft = self.path / f".draft-{target.name}"
        needed = sum(value.nbytes for value in snapshot.weights.values()) * (4 if snapshot.average else 3)
        with self.reporting(f"the checkpoint of step {snapshot.step}", self.path, needed):
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                for left in self.path.glob(".draft-*"):  # by a killed process
                    shutil.rmtree(left, ignore_errors=True)
                _write(snapshot, draft)
                aside = target.with_suffix(".replaced")  # an older checkpoint of the same step, removed only afterwards
                if target.exists():
                    shutil.rmtree(aside, ignore_errors=True)
                    os.replace(target, aside)
                os.replace(draft, target)
                _sync(self.path)
                shutil.rmtree(aside, ignore_errors=True)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        there = self.all()
        here = there.index(target)
        # later ones belong to steps that are made again
        for other in [*there[: max(0, here + 1 - self.keep)], *there[here + 1 :]]:
            shutil.rmtree(other, ignore_errors=True)
        return target

    @contextmanager
    def reporting(self, what: str, folder: Path, needed: int) -> Iterator[None]:
        """Errors of the system while a run writes, with the checkpoint to resume from and what to do.

        Args:
            what: is written into ``folder``.
            needed: bytes that it takes.
        """
        try:
            yield
        except (OSError, SafetensorError) as error:
            hidden = errno.ENOSPC if "No space left" in str(error) else errno.EIO  # by safetensors
            code = getattr(error, "errno", None) or hidden
            before = self.all()
            last = f"the last whole checkpoint is {before[-1].name}" if before else "there is no checkpoint yet"
            full = f"free about {max(1, needed / 2**20):.0f} MiB"
            remedy = full if code == errno.ENOSPC else "make the folder writable"
            raise OSError(
                code,
                f"{what} could not be written to {folder} ({os.strerror(code)}); {last}: {remedy} and start again "
                "with the same command",
            ) from error

    def newest(self) -> tuple[Snapshot | None, list[str]]:
        """The newest whole checkpoint, if any, and what is wrong with newer ones."""
        damaged: list[str] = []
        for folder in reversed(self.all()):
            try:
                return read_checkpoint(folder), damaged
            except (ValueError, OSError) as error:
                damaged.append(str(error))
        return None, damaged


def _write(snapshot: Snapshot, folder: Path) -> None:
    folder.mkdir()
    files = {}
    for name, content in _contents(snapshot):
        write_whole(folder / name, content)
        files[name] = hashlib.sha256(content).hexdigest()
    about = {**{name: getattr(snapshot, name) for name in _VALUES}, "files": files}
    write_whole(folder / _ABOUT, json_text({**about, "digest": _digest_of(about)}))
    _sync(folder)


def _contents(snapshot: Snapshot) -> Iterator[tuple[str, bytes]]:
    """Names and contents of its files, made one at a time: each may be as large as the network."""
    for name, tensors in ((_AVERAGE, snapshot.average), (_WEIGHTS, snapshot.weights)):
        if tensors is not None:
            plain = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
            yield name, save(plain, metadata={"format": "pt"})
    state = BytesIO()
    torch.save(snapshot.state, state)
    yield _STATE, state.getvalue()


def read_checkpoint(folder: Path) -> Snapshot:
    """Read a checkpoint, and verify every file."""
    try:
        about = json.loads((folder / _ABOUT).read_text())
        if about.pop("digest") != _digest_of(about):
            raise ValueError(f"{_ABOUT} has changed since it was written")
        files = about.pop("files")
        for name, digest in files.items():
            if sha256_of(folder / name) != digest:
                raise ValueError(f"{name} has changed since it was written")
        return Snapshot(
            **about,
            weights=load_file(folder / _WEIGHTS),
            average=load_file(folder / _AVERAGE) if _AVERAGE in files else None,
            # plain containers and tensors only: a foreign checkpoint cannot run code
            state=torch.load(folder / _STATE, map_location="cpu", weights_only=True),
        )
    except Exception as error:  # a damaged file can raise nearly anything
        raise ValueError(f"{folder} is not a whole checkpoint ({error})") from error


def _digest_of(about: dict[str, Any]) -> str:
    return hashlib.sha256(json_text(about).encode()).hexdigest()


def _sync(path: Path) -> None:
    """Wait until a file or a folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def find_snapshot(
    checkpoints: CheckpointFolder, config: TrainConfig, data: dict[str, Any]
) -> tuple[Snapshot | None, list[str]]:
    """The checkpoint to resume from, if any, and notes for the user."""
    if config.resume == "never":
        if checkpoints.all():
            raise ValueError(
                f"{config.output} holds checkpoints of an earlier run: needs another --output, or --resume auto"
            )
        return None, []
    snapshot, damaged = checkpoints.newest()
    notes = [f"{each}; another is used" for each in damaged]
    if config.resume != "auto":
        try:
            named = read_checkpoint(Path(config.resume))
        except ValueError as error:
            if snapshot is None or snapshot.config.get("resume") != config.resume:
                raise ValueError(f"--resume: {error}: needs auto, never or the folder of one") from error
            named = snapshot  # the same command got this far, and removed the one it started from
        if snapshot is not None and snapshot.step > named.step:
            notes.append(
                f"{checkpoints.path} has a newer checkpoint than --resume {config.resume}: resuming from step "
                f"{snapshot.step}; use another --output to resume from the named one"
            )
        else:
            snapshot = named
    if snapshot is None:
        if damaged:
            raise ValueError(
                f"no checkpoint in {checkpoints.path} is whole ({damaged[0]}): move them away to start anew"
            )
        return None, []
    if config.max_steps and snapshot.step > config.max_steps:
        at_least = "needs max_steps of that at least, or another --output"
        raise ValueError(f"{config.output} is at step {snapshot.step}: {at_least}")
    changes = differences(snapshot.config, config.to_dict())
    sizes = {what: (before, data[what]) for what, before in snapshot.data.items() if what in data}  # of this task
    changes += [f"data: {before} {what} before, now {now}" for what, (before, now) in sizes.items() if before != now]
    if changes:
        raise ValueError(
            f"the checkpoint of step {snapshot.step} for {config.output} belongs to another configuration: "
            f"{'; '.join(changes)}. Give the same values, or another --output"
        )
    return snapshot, notes


# neither the weights nor their measurements depend on these: they may change when a run is resumed
_FREE = (
    *("output", "resume", "device", "log", "checkpoint", "data.path", "data.download", "data.workers"),
    *("data.on_device", "evaluate", "model.start_from", "grad_checkpointing", "compile", "cuda_graph"),
    "max_steps",
)


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Values that change the training, in words: ``"optimizer.lr: 0.001 before, now 0.002"``."""
    # a value that is newer than the checkpoint had its default
    old, new = dict(_leaves(TrainConfig().to_dict())) | dict(_leaves(before)), dict(_leaves(now))
    return [
        f"{key}: {old.get(key)} before, now {new.get(key)}"
        for key in sorted(old.keys() | new.keys())
        if old.get(key) != new.get(key) and not f"{key}.".startswith(tuple(f"{name}." for name in _FREE))
    ]


def _leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, each in value.items():
        if isinstance(each, dict):
            yield from _leaves(each, f"{prefix}{key}.")
        else:
            yield prefix + key, each
