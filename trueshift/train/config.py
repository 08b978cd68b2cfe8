"""Everything a training run can be told. A recipe is a file with some of these values; the rest is as here."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ..utils.checks import check_at_least, check_seed
from .data.scene_augment import SceneAugmentConfig


@dataclass(frozen=True)
class ModelConfig:
    """The network.

    Args:
        name: of trueshift.list_models() or of timm's.
        pretrained: start from published weights.
        start_from: start from a folder written by save_pretrained, such as the final/ of another run. If the network
            named is adaptive and the folder holds the ordinary one, it is adapted.
        padding: of convolutions, circular or zeros; timm's own networks have no such choice.
        drop_path_rate: stochastic depth; by default the network's own.
        grid_drop_rate: how often, while learning, a choice is replaced by a random grid; by default never.
        arguments: further arguments of create_model, such as criterion or anchor.
    """

    name: str = "a_swin_tiny"
    pretrained: bool = False
    start_from: str | None = None
    padding: Literal["circular", "zeros"] | None = None
    drop_path_rate: float | None = None
    grid_drop_rate: float | None = None
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataConfig:
    """The pictures, and how they become the network's input.

    Args:
        path: 'sample', CIFAR files, tar shards, parquet files, a compact archive, or a folder of images by class; for
            segmentation, images with masks as ADE20K, Cityscapes or CamVid have them, or as docs/training.md says.
        kind: what the path must hold, if a recipe is for one data set; 'any' for your own.
        download: fetch the data to the path first, if it is not there (cifar10, cifar100).
        train_split: what is learned from.
        test_split: what is measured on after each epoch.
        holdout: part of the images that is not learned from but measured on, where there is no split for that.
        limit: images to learn from at most, evenly spread; 0 for all.
        img_size: height and width; by default the network's.
        crop_pct: how much of the resized picture the crop in its middle keeps; by default the network's.
        on_device: keep all pixels on the training device and resize, crop, flip and shift there; auto: on a GPU, if
            the images are small and nothing is asked for that only the loader does.
        workers: processes that read and augment pictures; 0 reads in the main process.
    """

    path: str = "sample"
    kind: Literal["any", "cifar10", "cifar100", "imagenet", "ade20k", "cityscapes", "camvid"] = "any"
    download: bool = False
    train_split: str = "train"
    test_split: str = "test"
    holdout: float = 0.0
    limit: int = 0
    img_size: int | None = None
    crop_pct: float | None = None
    on_device: Literal["auto", "yes", "no"] = "auto"
    workers: int = 8


@dataclass(frozen=True)
class AugmentConfig:
    """What is changed at random, seeded by epoch and picture: the same on any number of processes.

    Args:
        flip: how often a picture is mirrored.
        vertical_flip: how often it is turned upside down.
        crop_scale: least and largest part of the area that a random crop takes, e.g. [0.08, 1]; by default no random
            crop but the middle of the resized picture, as in the paper.
        pad_crop: shift by up to so many pixels, as a random crop of the picture padded by as many; what comes in has
            the mean colour, which is zero once it is normalised.
        circular_shift: shift circularly by any offset, for the paper's data-augmented baseline.
        auto_augment: timm's name for RandAugment and its like, e.g. rand-m9-mstd0.5-inc1.
        color_jitter: strength, where there is no auto_augment.
        erasing: how often a rectangle is replaced by noise.
        mixup: alpha; 0 for none.
        cutmix: alpha; 0 for none.
        mix_probability: how often a batch is mixed at all.
        switch_probability: how often by cutmix, where both are asked for.
        label_smoothing: how much of a label is spread over all classes.
    """

    flip: float = 0.5
    vertical_flip: float = 0.0
    crop_scale: tuple[float, float] | None = None
    pad_crop: int = 0
    circular_shift: bool = False
    auto_augment: str | None = None
    color_jitter: float = 0.0
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_probability: float = 1.0
    switch_probability: float = 0.5
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class SegmentationConfig:
    """What is only told to a network that learns the class of every pixel.

    Args:
        scale: longest and shortest side, at most, that pictures are resized to, their ratio kept.
        fit: how whole pictures are brought to a size the network takes: resize (for circular shifts, as the paper
            does) or pad (for standard shifts).
        decoder: arguments of UperNet, such as channels or auxiliary.
        augment: what is changed at random.
    """

    scale: tuple[int, int] = (2048, 512)
    fit: Literal["resize", "pad"] = "resize"
    decoder: dict[str, Any] = field(default_factory=dict)
    augment: SceneAugmentConfig = field(default_factory=SceneAugmentConfig)


@dataclass(frozen=True)
class OptimizerConfig:
    """How weights follow gradients. All learning rates are given for one batch size and scaled to the run's.

    Args:
        name: any optimizer of timm's.
        lr: the highest learning rate, at lr_batch_size images in a step.
        lr_batch_size: for which the learning rates are given; they grow in proportion. 0: they are used as they are.
        weight_decay: of all weights but biases, norms and what the network exempts.
        layer_decay: factor of the learning rate from each layer to the one before it.
        arguments: further arguments, such as betas or eps.
        clip_grad: largest norm of the gradient; 0 for any.
    """

    name: str = "adamw"
    lr: float = 5e-4
    lr_batch_size: int = 512
    weight_decay: float = 0.05
    layer_decay: float | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    clip_grad: float = 5.0


@dataclass(frozen=True)
class ScheduleConfig:
    """How long, and how the learning rate moves.

    Args:
        epochs: passes over the data, cooldown included.
        steps: the length in steps instead of epochs, as segmentation counts it; 0 counts epochs. The last step need
            not be the last of an epoch; it is measured all the same.
        name: any scheduler of timm's that follows a curve: cosine, tanh, linear (poly of power 1), poly, step.
        warmup_epochs: of a learning rate that grows from warmup_lr.
        warmup_steps: the same in steps, where the length is.
        warmup_lr: where it starts, at lr_batch_size.
        curve_after_warmup: the curve begins where the warm-up ends; otherwise both begin at once, and the learning rate
            drops a little where it joins the curve.
        min_lr: where it ends, at lr_batch_size.
        cooldown_epochs: at min_lr, at the end.
        decay_rate: of step and poly.
        decay_epochs: between steps.
    """

    epochs: int = 100
    steps: int = 0
    name: Literal["cosine", "tanh", "poly", "step"] = "cosine"
    warmup_epochs: float = 0.0
    warmup_steps: int = 0
    warmup_lr: float = 0.0
    curve_after_warmup: bool = True
    min_lr: float = 0.0
    cooldown_epochs: int = 0
    decay_rate: float = 1.0
    decay_epochs: float = 30.0


@dataclass(frozen=True)
class EvaluateConfig:
    """What is measured.

    Args:
        every_epochs: between measurements of accuracy on the test split; the last epoch is always measured.
        batch_size: images in a batch of a process.
        protocols: of trueshift eval, run on the final weights when training is done.
        limit: test images at most; 0 for all.
    """

    every_epochs: int = 1
    batch_size: int = 256
    protocols: tuple[str, ...] = ()
    limit: int = 0


@dataclass(frozen=True)
class CheckpointConfig:
    """What is kept, so that nothing is lost.

    Args:
        every_steps: between checkpoints within an epoch; 0 for none. There is one after each measurement, and one when
            the run is told to stop.
        keep: newest checkpoints that stay; the best weights are kept beside them.
    """

    every_steps: int = 1000
    keep: int = 2


@dataclass(frozen=True)
class LogConfig:
    """What is told.

    Args:
        every_steps: between lines of log.jsonl.
        tensorboard: write TensorBoard's files too.
        wandb: a project of Weights & Biases to write to.
    """

    every_steps: int = 50
    tensorboard: bool = True
    wandb: str | None = None


@dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Args:
        task: what is learned, the class of a picture or, with UperNet on the network, of each of its pixels.
        model: the network.
        data: the pictures.
        augment: what is changed at random.
        segmentation: how pictures and masks are prepared and changed, and the decoder, if that is the task.
        optimizer: how weights follow gradients.
        schedule: how long, and how the learning rate moves.
        evaluate: what is measured.
        checkpoint: what is kept.
        log: what is told.
        output: folder for checkpoints, logs and weights.
        resume: auto goes on from the newest whole checkpoint in the output folder; never starts anew and refuses a
            folder that has checkpoints; or the folder of one checkpoint, until the output folder has a newer one.
        batch_size: images in a step, over all processes and accumulated gradients.
        accumulate: passes whose gradients are added up to a step.
        precision: of the forward pass.
        compile: by torch.compile.
        deterministic: only algorithms that give the same bits again, on a GPU too; slower there.
        sync_batchnorm: batch statistics over all processes.
        ema_decay: of averaged weights that are kept and measured beside the others; 0 for none.
        grad_checkpointing: compute activations again instead of keeping them.
        device: cpu, cuda or auto.
        seed: of weights, order, augmentation and stochastic depth.
        max_steps: stop after so many, for a trial; 0 for all.
    """

    task: Literal["classification", "segmentation"] = "classification"
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    segmentation: SegmentationConfig = field(default_factory=SegmentationConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    output: str = "runs/untitled"
    resume: str = "auto"
    batch_size: int = 128
    accumulate: int = 1
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    compile: bool = False
    deterministic: bool = False
    sync_batchnorm: bool = False
    ema_decay: float = 0.0
    grad_checkpointing: bool = False
    device: str = "auto"
    seed: int = 0
    max_steps: int = 0

    def __post_init__(self) -> None:
        for name, value, least in (
            ("batch_size", self.batch_size, 1),
            ("accumulate", self.accumulate, 1),
            ("schedule.epochs", self.schedule.epochs, 1),
            ("schedule.steps", self.schedule.steps, 0),
            ("schedule.warmup_epochs", self.schedule.warmup_epochs, 0),
            ("schedule.warmup_steps", self.schedule.warmup_steps, 0),
            ("schedule.cooldown_epochs", self.schedule.cooldown_epochs, 0),
            ("schedule.warmup_lr", self.schedule.warmup_lr, 0),
            ("schedule.min_lr", self.schedule.min_lr, 0),
            ("optimizer.lr_batch_size", self.optimizer.lr_batch_size, 0),
            ("optimizer.lr", self.optimizer.lr, 0),
            ("optimizer.weight_decay", self.optimizer.weight_decay, 0),
            ("optimizer.clip_grad", self.optimizer.clip_grad, 0),
            ("evaluate.every_epochs", self.evaluate.every_epochs, 1),
            ("evaluate.batch_size", self.evaluate.batch_size, 1),
            ("checkpoint.keep", self.checkpoint.keep, 1),
            ("checkpoint.every_steps", self.checkpoint.every_steps, 0),
            ("log.every_steps", self.log.every_steps, 1),
            ("data.workers", self.data.workers, 0),
            ("data.limit", self.data.limit, 0),
            ("data.img_size", self.data.img_size, 1),
            ("evaluate.limit", self.evaluate.limit, 0),
            ("augment.pad_crop", self.augment.pad_crop, 0),
            ("max_steps", self.max_steps, 0),
        ):
            check_at_least(name, value, least)
        check_seed(self.seed)
        if self.schedule.decay_epochs <= 0:
            raise ValueError(f"schedule.decay_epochs is {self.schedule.decay_epochs}: needs more than 0, e.g. 30")
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay is {self.ema_decay}: needs at least 0 and less than 1, e.g. 0.9999")
        parts = {f"augment.{name}": getattr(self.augment, name) for name in _PARTS}
        for name, part in {**parts, "model.drop_path_rate": self.model.drop_path_rate or 0.0}.items():
            if not 0 <= part <= 1:
                raise ValueError(f"{name} is {part}: needs a part of 1, e.g. 0.5")
        self._check_units()
        self._check_task()
        moving = self.schedule.epochs - self.schedule.cooldown_epochs
        warming = self.schedule.warmup_epochs
        if moving < max(1, warming) or (self.schedule.curve_after_warmup and moving <= warming):
            raise ValueError(
                f"schedule.warmup_epochs {self.schedule.warmup_epochs} and cooldown_epochs "
                f"{self.schedule.cooldown_epochs} do not fit into {self.schedule.epochs} epochs: make them shorter, "
                "e.g. --schedule.warmup_epochs 0"
            )
        if not 0 <= self.data.holdout < 1:
            raise ValueError(f"data.holdout is {self.data.holdout}: needs a part of the images, e.g. 0.2")
        crop = self.augment.crop_scale
        if crop is not None and not 0 < crop[0] <= crop[1] <= 1:
            raise ValueError(f"augment.crop_scale is {crop}: needs two parts of the area in order, e.g. [0.08, 1]")

    def _check_units(self) -> None:
        """A length is counted in epochs or in steps, never in both."""
        schedule = self.schedule
        if not schedule.steps:
            if schedule.warmup_steps:
                raise ValueError("schedule.warmup_steps goes with schedule.steps: needs warmup_epochs here")
            return
        if schedule.epochs != ScheduleConfig.epochs:
            raise ValueError(
                f"schedule.steps {schedule.steps} and schedule.epochs {schedule.epochs}: needs one of them, e.g. "
                "--schedule.steps 0 to count epochs"
            )
        if schedule.name == "step":
            raise ValueError("schedule.name step counts epochs between its steps: needs e.g. poly with schedule.steps")
        if schedule.warmup_epochs or schedule.cooldown_epochs:
            raise ValueError(
                "schedule.warmup_epochs and cooldown_epochs go with epochs: needs warmup_steps beside schedule.steps"
            )
        if schedule.warmup_steps >= schedule.steps:
            raise ValueError(
                f"schedule.warmup_steps {schedule.warmup_steps} does not fit into {schedule.steps} steps: make it "
                "shorter"
            )

    def _check_task(self) -> None:
        """What is only for the other task is refused: it would be left out silently."""
        data = self.data
        if self.task == "classification":
            if self.segmentation != SegmentationConfig() or data.kind in SCENES:
                told = f"data.kind {data.kind}" if data.kind in SCENES else "segmentation"
                raise ValueError(f"{told} is for pictures with masks: needs --task segmentation")
            return
        if self.augment != AugmentConfig():
            raise ValueError("augment is for whole pictures: needs --segmentation.augment for pictures with masks")
        if data.kind not in (*SCENES, "any"):
            raise ValueError(f"data.kind {data.kind} has no masks: needs {', '.join(SCENES)} or any")
        if data.crop_pct is not None or data.on_device == "yes":
            told = "data.on_device" if data.crop_pct is None else "data.crop_pct"
            raise ValueError(f"{told} is for whole pictures: needs to be left out; --segmentation.scale tells the size")
        if data.download:
            raise ValueError("data.download: pictures with masks are not fetched; needs them at --data.path")

    def to_dict(self) -> dict[str, Any]:
        """In plain values, for a file."""
        return _plain(asdict(self))


# data sets of pictures with masks, and how many classes each has
SCENES = {"ade20k": 150, "cityscapes": 19, "camvid": 11}
# of augment: how often, or how much
_PARTS = ("flip", "vertical_flip", "erasing", "mix_probability", "switch_probability", "label_smoothing")


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


# Neither the weights nor what is measured of them depend on these: a checkpoint goes on if they change.
_WITHOUT_EFFECT = (
    "output",
    "resume",
    "device",
    "log",
    "checkpoint",
    "data.path",
    "data.download",
    "data.workers",
    "data.on_device",
    "evaluate",
    "model.start_from",
    "grad_checkpointing",
    "compile",
    "max_steps",
)


def differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Values that make another training, in words: ``"optimizer.lr: 0.001 before, now 0.002"``."""
    told = []
    old, new = dict(_leaves(before)), dict(_leaves(now))
    for key in sorted(old.keys() | new.keys()):
        free = any(key == name or key.startswith(f"{name}.") for name in _WITHOUT_EFFECT)
        if not free and old.get(key) != new.get(key):
            told.append(f"{key}: {old.get(key)} before, now {new.get(key)}")
    return told


def _leaves(value: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, each in value.items():
        found += _leaves(each, f"{prefix}{key}.") if isinstance(each, dict) else [(prefix + key, each)]
    return found
