"""Learning the class of every pixel."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from ..data import Unreadable
from ..data.segmentation import open_scenes
from ..data.source import IGNORED, Source
from ..data.subset import evenly_spread, hold_out
from ..data.transforms import ScenePreparation
from ..eval.metrics.consistency import MeanIoU
from ..eval.protocols.registry import PROTOCOLS
from ..eval.runner.read_scenes import PreparedScene, read_scenes
from ..eval.runner.segment import labels_at
from ..layers.tokenize import check_size
from ..ops.geometry.shift import Pair
from ..tasks import UperNet
from ..tasks.inference import segment_whole
from .config import SCENES, TrainConfig
from .data.batch import Batch, Feed, Share
from .data.loader import Augmented, Finish, LoaderFeed
from .data.photometric import Distortion, distort
from .data.sampler import BatchOrder
from .data.scene_augment import SceneDraws, SceneTransform, padding
from .network import build_segmenter
from .task import Measured, Surroundings


@dataclass(frozen=True)
class SceneData:
    """Two sources with the same classes."""

    train: Source
    test: Source
    classes: list[str]

    @property
    def identity(self) -> dict[str, Any]:
        """What must stay the same for a checkpoint to go on."""
        return {"images": len(self.train), "classes": len(self.classes)}


def open_scene_data(config: TrainConfig) -> SceneData:
    """What a configuration names; whatever is wrong with it is told now, not after the first epoch."""
    asked = config.data
    if not Path(asked.path).exists():
        raise FileNotFoundError(f"there is no data at {asked.path}: name where it is with --data.path")
    train = open_scenes(asked.path, asked.train_split)
    if asked.holdout:
        train, test = hold_out(train, asked.holdout)
    else:
        test = open_scenes(asked.path, asked.test_split)
        if train.name(0) == test.name(0):  # names have the folder of their split
            raise ValueError(
                f"{asked.path} has the same scenes to learn from and to measure on: needs folders such as train and "
                "val in images and in masks, or --data.holdout 0.2 to keep a part of the scenes for that"
            )
    classes = list(train.classes or [])  # one list for all splits
    wanted = SCENES.get(asked.kind)
    if wanted is not None and len(classes) != wanted:
        raise ValueError(
            f"{asked.path} has {len(classes)} classes: this recipe is for {asked.kind}, which has {wanted}; for your "
            "own data use --data.kind any"
        )
    return SceneData(evenly_spread(train, asked.limit), evenly_spread(test, config.evaluate.limit), classes)


@dataclass(frozen=True)
class AugmentedScenes(Augmented):
    """Scenes of which the class of each pixel is learned."""

    source: Source
    transform: SceneTransform

    def read(self, epoch: int, index: int) -> tuple[UInt8[Tensor, "3 H W"], Int[Tensor, "..."]]:
        """The pixels of one in one epoch, and what is to be learned of them."""
        return self.transform(self.source[index], epoch, index)

    def finisher(self, device: torch.device | str) -> Finish:
        """Other colours, and values as the network knows them."""
        draws, preparation = self.transform.draws, self.transform.preparation
        normalise = preparation.normaliser(device)

        def finish(pixels: Tensor, labels: Tensor, epoch: int, indices: np.ndarray) -> Tensor:
            if draws.augment.photometric:
                drawn = Distortion.drawn(draws.seed, epoch, indices, device)
                pixels = distort(pixels, drawn, padding(pixels, labels, preparation))
            return normalise(pixels)

        return finish


class Segmentation:
    """See :class:`~trueshift.train.task.Task`."""

    score_name = "mean_iou"
    preparation: ScenePreparation
    transform: SceneTransform

    def __init__(self, config: TrainConfig, fetch: bool) -> None:
        self.config = config
        self.data = open_scene_data(config)

    def check_order(self, order: BatchOrder) -> None:
        """Refuse batches that cannot be learned from."""
        if order.batch_size // order.parts < 2:
            raise ValueError(
                f"batch_size {order.batch_size} in {order.parts} parts: batch norm over whole pictures needs at least "
                f"2 images in each, e.g. --batch_size {2 * order.parts}"
            )

    def build_network(self) -> nn.Module:
        """What is trained."""
        network = build_segmenter(self.config, len(self.data.classes))
        asked, known = self.config.segmentation, network.pretrained_cfg
        if asked.fit == "resize":  # otherwise crops are padded, as whole pictures are
            _check_crop(asked.augment.crop, network)
        colours: dict[str, Any] = {key: tuple(known[key]) for key in ("mean", "std") if key in known}
        self.preparation = ScenePreparation(asked.scale, network.size_multiple, asked.fit, **colours)
        self.transform = SceneTransform(self.preparation, SceneDraws(asked.augment, self.config.seed))
        return network

    def start(self, order: BatchOrder, share: Share, device: torch.device) -> Feed:
        """What is learned from."""
        scenes = AugmentedScenes(self.data.train, self.transform)
        return LoaderFeed(scenes, order, share, device, self.config.data.workers)

    def input_told(self) -> str:
        """Size of the input, and how it is fed, in words."""
        crop, frame = self.config.segmentation.augment.crop, self.transform.frame
        padded = f" padded to {frame[0]} x {frame[1]}" if frame != crop else ""
        return f"{crop[0]} x {crop[1]}{padded} ({self.config.data.workers} workers)"

    def loss(self, model: nn.Module, batch: Batch) -> Float[Tensor, ""]:
        """The mean over the labelled pixels of a batch."""
        return model(batch.images, batch.labels)

    def measure(self, model: nn.Module, where: Surroundings) -> Measured | None:
        """mIoU at the masks' own sizes."""
        was_training = model.training
        model.eval()
        try:
            return self._measure(model, where)
        finally:
            model.train(was_training)

    @torch.inference_mode()
    def _measure(self, model: nn.Module, where: Surroundings) -> Measured | None:
        metric, seen, stopped = MeanIoU(len(self.data.classes), IGNORED), 0, False
        normalise = self.preparation.normaliser(where.device)
        for scenes in self._alike(where):
            canvases = torch.stack([scene.canvases[self.preparation.fit] for scene in scenes]).to(where.device)
            with where.autocast():
                logits = segment_whole(model, normalise(canvases)).float()  # type: ignore[arg-type]
            for scene, answer in zip(scenes, logits, strict=True):
                assert scene.mask is not None  # the others were left out
                labels = labels_at(answer, (scene.mask.shape[0], scene.mask.shape[1]))
                metric.update(labels[None].cpu(), torch.from_numpy(scene.mask)[None])
                seen += 1
            if stopped := where.stop():
                break
        ends = torch.tensor([seen, stopped], dtype=torch.float64)
        if dist.is_initialized():
            dist.all_reduce(ends)  # one process that stops stops all
        all_seen, any_stopped = ends.tolist()
        if any_stopped:
            return None
        if not all_seen:
            raise ValueError("none of the scenes to measure on could be read")
        score = float(metric.compute())
        if isnan(score):
            raise ValueError("none of the scenes to measure on has a labelled pixel: needs masks that are not all void")
        values = {"mean_iou": score, "pixel_accuracy": metric.pixel_accuracy(), "images": int(all_seen)}
        return Measured(score, values, f"mIoU {100 * score:.2f} %")

    def _alike(self, where: Surroundings) -> Iterator[list[PreparedScene]]:
        """Scenes of this process in order, together as long as they are of one size."""
        mine = range(where.share.rank, len(self.data.test), where.share.processes)
        fits = [PROTOCOLS["ade20k-standard"]]  # as the network is used: resized or padded
        readable: list[PreparedScene] = []
        for scene in read_scenes(self.data.test, mine, self.preparation, fits, workers=self.config.data.workers):
            if isinstance(scene, Unreadable) or scene.mask is None:
                reason = scene.reason if isinstance(scene, Unreadable) else "it has no label file"
                where.left_out.add(f"{scene.name}: {reason}")
                continue
            shape = scene.canvases[self.preparation.fit].shape
            full = len(readable) == self.config.evaluate.batch_size
            if readable and (full or readable[0].canvases[self.preparation.fit].shape != shape):
                yield readable
                readable = []
            readable.append(scene)
        if readable:
            yield readable

    def write(self, model: nn.Module, folder: Path) -> Path:
        """The network as a folder."""
        assert isinstance(model, UperNet)
        model.pretrained_cfg = {
            **model.pretrained_cfg,
            "label_names": list(self.data.classes),
            "scene": self.preparation.to_dict(),
            "crop": list(self.config.segmentation.augment.crop),
        }
        return model.save_pretrained(folder)


def _check_crop(crop: Pair, network: UperNet) -> None:
    """Refuse crops that would have to be padded, where whole pictures are not."""
    try:
        check_size(crop, network.size_multiple)
    except ValueError as error:
        raise ValueError(f"segmentation.augment.crop, {error}, or --segmentation.fit pad") from None
