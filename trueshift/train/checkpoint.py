"""Checkpoints that are whole or not there: a killed process or a full disk leaves those that were written before."""

import errno
import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..utils.files import json_text, write_whole

_ABOUT, _WEIGHTS, _AVERAGE, _STATE = "about.json", "model.safetensors", "ema.safetensors", "training.pt"


@dataclass
class Snapshot:
    """All that a run needs to go on as if it had never stopped. Random numbers follow from seed and step.

    Args:
        step: updates made so far.
        epoch: that the next update belongs to.
        step_in_epoch: updates made in it.
        weights: of the network, buffers included.
        average: averaged weights, if there are any.
        state: of optimizer and gradient scaler, the best result so far, and the time taken.
        config: of the run.
        data: what it learns from, in numbers that must stay.
    """

    step: int
    epoch: int
    step_in_epoch: int
    weights: dict[str, Tensor]
    average: dict[str, Tensor] | None
    state: dict[str, Any]
    config: dict[str, Any]
    data: dict[str, Any]


class CheckpointFolder:
    """The checkpoints of a run, newest last; each is a folder of its own.

    Args:
        keep: how many of the newest stay.
    """

    def __init__(self, path: Path, keep: int = 2) -> None:
        self.path, self.keep = path, keep

    def all(self) -> list[Path]:
        """Oldest first, damaged ones too; one that is being replaced comes before the one in its place."""
        found = self.path.glob("step_[0-9]*") if self.path.is_dir() else []
        return sorted(found, key=lambda folder: (folder.stem, not folder.suffix))

    def save(self, snapshot: Snapshot) -> Path:
        """Write a checkpoint; when it is whole, remove those that are too many."""
        target = self.path / f"step_{snapshot.step:08d}"
        draft = self.path / f".draft-{target.name}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._remove_drafts()
            self._write(snapshot, draft)
            self._put(draft, target)
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            raise self._not_saved(error, snapshot) from error
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        there = self.all()
        here = there.index(target)
        # those behind it are of steps that are made again
        for other in [*there[: max(0, here + 1 - self.keep)], *there[here + 1 :]]:
            shutil.rmtree(other, ignore_errors=True)
        return target

    def _write(self, snapshot: Snapshot, folder: Path) -> None:
        folder.mkdir()
        try:
            save_file(_plain(snapshot.weights), folder / _WEIGHTS, metadata={"format": "pt"})
            if snapshot.average is not None:
                save_file(_plain(snapshot.average), folder / _AVERAGE, metadata={"format": "pt"})
            torch.save(snapshot.state, folder / _STATE)
        except OSError:
            raise
        except Exception as error:  # torch and safetensors hide what the disk said
            raise OSError(_reason_behind(error, folder), str(error)) from error
        files = {file.name: _digest(file) for file in sorted(folder.iterdir())}
        for name in files:
            with (folder / name).open("rb") as file:
                os.fsync(file.fileno())
        about = {
            "step": snapshot.step,
            "epoch": snapshot.epoch,
            "step_in_epoch": snapshot.step_in_epoch,
            "data": snapshot.data,
            "config": snapshot.config,
            "files": files,
        }
        write_whole(folder / _ABOUT, json_text({**about, "digest": _digest_of(about)}))
        _sync_folder(folder)

    def _put(self, draft: Path, target: Path) -> None:
        """Give a draft its name; an older one of the same step goes only when that is done."""
        aside = target.with_suffix(".replaced")
        if target.exists():
            shutil.rmtree(aside, ignore_errors=True)
            os.replace(target, aside)
        os.replace(draft, target)
        _sync_folder(self.path)
        shutil.rmtree(aside, ignore_errors=True)

    def _remove_drafts(self) -> None:
        """What a killed process left."""
        for draft in self.path.glob(".draft-*"):
            shutil.rmtree(draft, ignore_errors=True)

    def _not_saved(self, error: OSError, snapshot: Snapshot) -> OSError:
        before = self.all()
        last = f"the last whole one is {before[-1].name}" if before else "there is none yet"
        need = sum(value.nbytes for value in snapshot.weights.values()) * (4 if snapshot.average else 3) / 2**20
        remedy = f"free about {max(1, need):.0f} MiB" if error.errno == errno.ENOSPC else "make the folder writable"
        return OSError(
            error.errno,
            f"the checkpoint of step {snapshot.step} could not be written to {self.path} "
            f"({os.strerror(error.errno or errno.EIO)}); {last}: {remedy} and start again with the same command",
        )

    def newest(self) -> tuple[Snapshot | None, list[str]]:
        """The newest checkpoint that is whole, if any, and what is wrong with newer ones."""
        damaged: list[str] = []
        for folder in reversed(self.all()):
            try:
                return read_checkpoint(folder), damaged
            except (ValueError, OSError) as error:
                damaged.append(str(error))
        return None, damaged


def read_checkpoint(folder: Path) -> Snapshot:
    """A checkpoint, every file of it checked."""
    try:
        about = json.loads((folder / _ABOUT).read_text())
        if about.pop("digest") != _digest_of(about):
            raise ValueError(f"{_ABOUT} has changed since it was written")
        files = about["files"]
        for name, digest in files.items():
            if _digest(folder / name) != digest:
                raise ValueError(f"{name} has changed since it was written")
        return Snapshot(
            step=about["step"],
            epoch=about["epoch"],
            step_in_epoch=about["step_in_epoch"],
            weights=load_file(folder / _WEIGHTS),
            average=load_file(folder / _AVERAGE) if _AVERAGE in files else None,
            # plain containers and tensors only: a checkpoint from elsewhere cannot run code
            state=torch.load(folder / _STATE, map_location="cpu", weights_only=True),
            config=about["config"],
            data=about["data"],
        )
    except Exception as error:  # a damaged file can raise nearly anything
        raise ValueError(f"{folder} is not a whole checkpoint ({error})") from error


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _digest_of(about: dict[str, Any]) -> str:
    return hashlib.sha256(json_text(about).encode()).hexdigest()


def _reason_behind(error: Exception, folder: Path) -> int:
    """A full disk, if it is one, else an input/output error."""
    if shutil.disk_usage(folder).free < 1 << 20 or "No space left" in str(error):
        return errno.ENOSPC
    return errno.EIO


def _sync_folder(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
