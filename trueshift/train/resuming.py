"""Where a run goes on from, and whether it may."""

from pathlib import Path
from typing import Any

from .checkpoint import CheckpointFolder, Snapshot, read_checkpoint
from .config import TrainConfig, differences


def snapshot_to_go_on_from(
    checkpoints: CheckpointFolder, config: TrainConfig, data: dict[str, Any]
) -> tuple[Snapshot | None, list[str]]:
    """The checkpoint a configuration asks for, if there is one, and what is wrong with newer ones."""
    if config.resume == "never":
        if checkpoints.all():
            raise ValueError(
                f"{config.output} holds checkpoints of an earlier run: needs another --output, or --resume auto"
            )
        return None, []
    if config.resume == "auto":
        snapshot, damaged = checkpoints.newest()
        if damaged and snapshot is None:
            raise ValueError(
                f"no checkpoint in {checkpoints.path} is whole ({damaged[0]}): move them away to start anew"
            )
    else:
        snapshot, damaged = read_checkpoint(Path(config.resume)), []
    if snapshot is not None:
        _refuse_another(snapshot, config, data)
    return snapshot, damaged


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
