"""Where a run goes on from, and whether it may."""

from pathlib import Path
from typing import Any

from .checkpoint import CheckpointFolder, Snapshot, read_checkpoint
from .config import TrainConfig, differences


def snapshot_to_go_on_from(
    checkpoints: CheckpointFolder, config: TrainConfig, data: dict[str, Any]
) -> tuple[Snapshot | None, list[str]]:
    """The checkpoint to go on from, if there is one, and what a user should know of the choice."""
    if config.resume == "never":
        if checkpoints.all():
            raise ValueError(
                f"{config.output} holds checkpoints of an earlier run: needs another --output, or --resume auto"
            )
        return None, []
    snapshot, damaged = checkpoints.newest()
    told = [f"{each}; another is used" for each in damaged]
    if config.resume != "auto":
        asked = _asked_for(config, snapshot)
        if snapshot is None or snapshot.step <= asked.step:
            snapshot = asked
        else:
            told.append(
                f"{checkpoints.path} has a newer checkpoint than --resume {config.resume}: going on from step "
                f"{snapshot.step}; with another --output it would be from the one asked for"
            )
    elif damaged and snapshot is None:
        raise ValueError(f"no checkpoint in {checkpoints.path} is whole ({damaged[0]}): move them away to start anew")
    if snapshot is not None:
        _refuse_another(snapshot, config, data)
    return snapshot, told


def _asked_for(config: TrainConfig, newest: Snapshot | None) -> Snapshot:
    """The one checkpoint that a configuration names."""
    try:
        return read_checkpoint(Path(config.resume))
    except ValueError as error:
        if newest is not None and newest.config.get("resume") == config.resume:
            return newest  # the same command got this far, and removed the one it began from
        raise ValueError(f"--resume: {error}: needs auto, never or the folder of one") from error


def _refuse_another(snapshot: Snapshot, config: TrainConfig, data: dict[str, Any]) -> None:
    """A checkpoint of another training, with the difference in words."""
    told = differences(snapshot.config, config.to_dict())
    told += [
        f"data: {before} {what} before, now {data[what]}"
        for what, before in snapshot.data.items()
        if before != data[what]
    ]
    if told:
        raise ValueError(
            f"the checkpoint of step {snapshot.step} for {config.output} belongs to another configuration: "
            + "; ".join(told)
            + ". Give the same values, or another --output"
        )
