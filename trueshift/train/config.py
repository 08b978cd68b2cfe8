"""All settings of a training run. A recipe is a file with some of these values; the others keep their defaults."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any, Literal

from ..utils.checks import check_at_least, check_seed
from .dense_config import FieldsConfig, SegmentationConfig

# classes of each known dataset; 'any' is the user's own
CLASSES = {"cifar10": 10, "cifar100": 100, "imagenet": 1000, "tiny_imagenet_100": 100}
CLASSES |= {"ade20k": 150, "cityscapes": 19, "camvid": 11}
WITH_MASKS = ("ade20k", "cityscapes", "camvid")


@dataclass(frozen=True)
class ModelConfig:
    """The network.

    Args:
        name: of trueshift.list_models() or of timm's; for fields also transformers/swin or transformers/swinv2.
        pretrained: start from published weights.
        start_from: start from a folder written by save_pretrained, such as the final/ of another run. If the network
            named is adaptive and the folder holds the ordinary one, it is adapted.
        padding: of convolutions, circular or zeros; timm's own networks have no such choice.
        drop_path_rate: stochastic depth; by default the network's own.
        grid_drop_rate: how often a choice is replaced by a random grid in training; by default never.
        arguments: further arguments of create_model, such as criterion or anchor; for transformers' networks those of
            its configuration and of adapt.
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
    """The images, and how they become the network's input.

    Args:
        path: 'sample', CIFAR files, tar shards, parquet files, an .npz, or a folder of images by class; for
            segmentation, images with masks as ADE20K, Cityscapes or CamVid have them, or as docs/training.md says.
        kind: the dataset the recipe is for; 'any' for your own.
        download: fetch the data to the path first, if it is not there (cifar10, cifar100).
        train_split: the split to train on.
        test_split: the split to measure on after each epoch.
        holdout: share of the training images to measure on instead, where there is no split for that.
        limit: training images at most, evenly spread; 0 for all.
        img_size: height and width; by default the network's.
        crop_pct: share of the resized image that the center crop keeps; by default the network's.
        on_device: keep all pixels on the training device and augment there; auto: on a GPU, if the images are small
            and no augmentation needs the loader.
        workers: processes that read and augment images; 0 reads in the main process.
    """

    path: str = "sample"
    kind: Literal["any", "cifar10", "cifar100", "imagenet", "tiny_imagenet_100", "ade20k", "cityscapes", "camvid"] = (
        "any"
    )
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
    """Random changes, seeded by epoch and sample: the same on any number of processes.

    Args:
        flip: how often an image is mirrored.
        vertical_flip: how often it is turned upside down.
        crop_scale: least and largest share of the area that a random crop takes, e.g. [0.08, 1]; by default the
            center crop of the resized image, as in the paper.
        pad_crop: shift by up to so many pixels: a random crop of the image padded by as many with the mean color.
        circular_shift: how often an image is shifted circularly by a random offset; true, always, for the paper's
            data-augmented baseline.
        auto_augment: timm's name for RandAugment and its like, e.g. rand-m9-mstd0.5-inc1; or trivial, torchvision's
            TrivialAugment, which works on batches and so on pixels that are kept on the device.
        color_jitter: strength, where there is no auto_augment.
        erasing: how often a rectangle is replaced by noise.
        mixup: alpha; 0 for none.
        cutmix: alpha; 0 for none.
        mix_probability: how often a batch is mixed at all.
        switch_probability: how often by cutmix, where both are asked for.
        label_smoothing: how much of a label is spread over all classes.
        consistency: weight of a loss between the predictions for two random crops of each image, their symmetric KL
            divergence; needs crop_scale or pad_crop, and takes two passes through the network. 0 for none.
    """

    flip: float = 0.5
    vertical_flip: float = 0.0
    crop_scale: tuple[float, float] | None = None
    pad_crop: int = 0
    circular_shift: bool | float = False
    auto_augment: str | None = None
    color_jitter: float = 0.0
    erasing: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0
    mix_probability: float = 1.0
    switch_probability: float = 0.5
    label_smoothing: float = 0.0
    consistency: float = 0.0


@dataclass(frozen=True)
class DistillConfig:
    """Knowledge distillation: learn from the predictions of a trained network beside the labels.

    Args:
        teacher: the network, of the same classes and input: a model such as swin_mini.cifar10, or the final/ of another
            run. None for no distillation.
        weight: share of the loss that is the teacher's; the rest is the labels'.
        temperature: divides the logits of both before they are compared.
    """

    teacher: str | None = None
    weight: float = 0.9
    temperature: float = 4.0


@dataclass(frozen=True)
class OptimizerConfig:
    """The optimizer. All learning rates are given for one batch size and scaled to the run's.

    Args:
        name: any optimizer of timm's.
        lr: the highest learning rate, at lr_batch_size images in a step.
        lr_batch_size: batch size the learning rates are given for; they scale in proportion. 0: no scaling.
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
    """Length and learning rate schedule.

    Args:
        epochs: passes over the data, cooldown included.
        steps: length in steps instead of epochs, as usual for segmentation; 0 counts epochs. The last step is always
            measured, also within an epoch.
        name: any scheduler of timm's that follows a curve: cosine, tanh, linear (poly of power 1), poly, step.
        warmup_epochs: of a learning rate that grows from warmup_lr.
        warmup_steps: the same in steps, where the length is.
        warmup_lr: where it starts, at lr_batch_size.
        curve_after_warmup: start the curve where the warm-up ends; otherwise both start at step 0.
        min_lr: where it ends, at lr_batch_size.
        scale_min_lr: scale that with the batch size, too.
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
    scale_min_lr: bool = True
    cooldown_epochs: int = 0
    decay_rate: float = 1.0
    decay_epochs: float = 30.0


@dataclass(frozen=True)
class EvaluateConfig:
    """Evaluation.

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
    """Checkpoints.

    Args:
        every_steps: between checkpoints within an epoch; 0 for none. There is always one after each measurement, and
            one when the run is asked to stop.
        keep: number of newest checkpoints to keep; the best weights are kept as well.
    """

    every_steps: int = 1000
    keep: int = 2


@dataclass(frozen=True)
class LogConfig:
    """Logging.

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
        task: classification, segmentation with UperNet on the network, or fields with FieldNet on it.
        model: the network.
        data: the images.
        augment: random changes for classification.
        distill: knowledge distillation, for classification.
        segmentation: preparation, random changes and decoder for segmentation.
        fields: random changes and decoder for fields.
        optimizer: the optimizer.
        schedule: length and learning rate schedule.
        evaluate: evaluation.
        checkpoint: checkpoints.
        log: logging.
        output: folder for checkpoints, logs and weights.
        resume: auto: from the newest whole checkpoint in the output folder; never: start anew, and refuse a folder
            that has checkpoints; or the folder of one checkpoint, until the output folder has a newer one.
        batch_size: images in a step, over all processes and accumulated gradients.
        accumulate: passes whose gradients are accumulated to a step.
        precision: of the forward pass; on a CPU without instructions for bf16, that is computed in float32.
        compile: use torch.compile.
        cuda_graph: replay each step as one CUDA graph, where the host is slower than the GPU; see docs/training.md.
        deterministic: allow only algorithms that reproduce their bits, on a GPU too; slower there.
        sync_batchnorm: batch statistics over all processes.
        ema_decay: of averaged weights, kept and measured as well; 0 for none.
        grad_checkpointing: recompute activations instead of keeping them.
        device: cpu, cuda, cuda:1, or auto.
        seed: of weights, order, augmentation and stochastic depth.
        max_steps: stop after so many, for a trial; 0 for all.
    """

    task: Literal["classification", "segmentation", "fields"] = "classification"
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    distill: DistillConfig = field(default_factory=DistillConfig)
    segmentation: SegmentationConfig = field(default_factory=SegmentationConfig)
    fields: FieldsConfig = field(default_factory=FieldsConfig)
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
    cuda_graph: bool = False
    deterministic: bool = False
    sync_batchnorm: bool = False
    ema_decay: float = 0.0
    grad_checkpointing: bool = False
    device: str = "auto"
    seed: int = 0
    max_steps: int = 0

    def __post_init__(self) -> None:
        for least, names in _AT_LEAST.items():
            for name in names.split():
                check_at_least(name, attrgetter(name)(self), least)
        check_seed(self.seed)
        for name in _SHARES.split():
            if not 0 <= ((share := attrgetter(name)(self)) or 0) <= 1:
                raise ValueError(f"{name} is {share}: needs a part of 1, e.g. 0.5")
        for wrong, message in (*self._check_values(), *self._check_length(), *self._check_task()):
            if wrong:
                raise ValueError(message)

    def _check_values(self) -> Iterator[tuple[bool, str]]:
        """Whether something is wrong, and what, for each rule."""
        decay, holdout, crop = self.schedule.decay_epochs, self.data.holdout, self.augment.crop_scale or (1, 1)
        yield decay <= 0, f"schedule.decay_epochs is {decay}: needs more than 0, e.g. 30"
        yield not 0 <= self.ema_decay < 1, f"ema_decay is {self.ema_decay}: needs at least 0 and less than 1"
        yield not 0 <= holdout < 1, f"data.holdout is {holdout}: needs a part of the images, e.g. 0.2"
        wanted = "needs two parts of the area in order, e.g. [0.08, 1]"
        yield not 0 < crop[0] <= crop[1] <= 1, f"augment.crop_scale is {crop}: {wanted}"
        consistency, cropped = self.augment.consistency, self.augment.crop_scale or self.augment.pad_crop
        wanted = "needs random crops to compare, e.g. --augment.pad_crop 4"
        yield consistency > 0 and not cropped, f"augment.consistency is {consistency}: {wanted}"
        temperature = self.distill.temperature
        yield temperature <= 0, f"distill.temperature is {temperature}: needs more than 0, e.g. 4"
        for name in self.model.arguments:
            own = "data" if name == "img_size" else "model"
            twice = name in vars(self.model) or (name == "img_size" and self.task != "fields")
            yield twice, f"model.arguments.{name}: needs {own}.{name} instead"
            yield name in _OF_THE_TASK, f"model.arguments.{name} follows from the task and its data: leave it out"
        change = self.segmentation.augment
        (least, most), share, name = change.scale_range, change.max_class_share, "segmentation.augment"
        yield not 0 < least <= most, f"{name}.scale_range is {[least, most]}: needs the least factor first, above 0"
        yield min(change.crop) < 1, f"{name}.crop is {change.crop}: needs a positive height and width"
        yield not 0 < share <= 1, f"{name}.max_class_share is {share}: needs a part of 1, above 0"

    def _check_length(self) -> Iterator[tuple[bool, str]]:
        """Lengths are in epochs or in steps, never in both."""
        given = self.schedule
        steps, warmup, cooldown = given.steps, given.warmup_epochs, given.cooldown_epochs
        in_epochs = "schedule.warmup_epochs and cooldown_epochs"
        if steps:
            both = f"schedule.steps {steps} and schedule.epochs {given.epochs}"
            yield given.epochs != ScheduleConfig.epochs, f"{both}: needs one of them; --schedule.steps 0 counts epochs"
            yield given.name == "step", "schedule.name step counts epochs between its steps: needs e.g. poly"
            yield warmup + cooldown > 0, f"{in_epochs} go with epochs: needs warmup_steps beside schedule.steps"
            unfit = f"schedule.warmup_steps {given.warmup_steps} does not fit into {steps} steps"
            yield given.warmup_steps >= steps, unfit
            return
        yield given.warmup_steps > 0, "schedule.warmup_steps goes with schedule.steps: needs warmup_epochs here"
        moving = given.epochs - cooldown
        unfit = f"{in_epochs}, {warmup} and {cooldown}, do not fit into {given.epochs} epochs: make them shorter"
        yield moving < max(1, warmup) or (given.curve_after_warmup and moving <= warmup), unfit

    def _check_task(self) -> Iterator[tuple[bool, str]]:
        """Values of another task would be ignored silently."""
        kind, masks, data = self.data.kind, "is for images with masks: needs --task segmentation", self.data
        yield self.task != "fields" and self.fields != FieldsConfig(), "fields is for fields: needs --task fields"
        yield self.task != "segmentation" and self.segmentation != SegmentationConfig(), f"segmentation {masks}"
        if self.task == "classification":
            yield kind in WITH_MASKS, f"data.kind {kind} {masks}"
            yield self.model.arguments.get("global_pool") == "", "model.arguments.global_pool '': needs e.g. avg"
            return
        here = {"segmentation": "--segmentation.augment", "fields": "--fields.random_rolls"}[self.task]
        yield self.augment != AugmentConfig(), f"augment is for classification: needs {here} here"
        yield self.distill.teacher is not None, "distill.teacher is for classification: leave it out"
        yield data.crop_pct is not None, "data.crop_pct is for classification: leave it out"
        if self.task == "fields":
            yield kind != "any", f"data.kind {kind} has no fields: needs any, or to be left out"
            yield (
                data.img_size is not None or data.download,
                "data.img_size and download are for images: leave them out",
            )
            yield self.model.pretrained, "model.pretrained: published weights are for images; needs model.start_from"
            yield bool(self.evaluate.protocols), "evaluate.protocols are for images: leave them out"
            columns_alone = self.model.arguments.get("circular") == "width"
            yield columns_alone and self.fields.random_rolls is True, "fields.random_rolls true rolls rows: needs width"
            return
        other = "is for classification: leave it out; --segmentation.scale sets the size"
        yield kind not in (*WITH_MASKS, "any"), f"data.kind {kind} has no masks: needs {', '.join(WITH_MASKS)} or any"
        yield data.on_device == "yes", f"data.on_device {other}"
        yield data.download, "data.download: images with masks are not downloaded; needs them at --data.path"

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for a file."""
        return json.loads(json.dumps(asdict(self)))


_OF_THE_TASK = ("num_classes", "in_chans", "features_only", "out_indices")
_AT_LEAST = {
    1: "batch_size accumulate schedule.epochs evaluate.every_epochs evaluate.batch_size checkpoint.keep "
    "log.every_steps data.img_size segmentation.multiple",
    0: "schedule.steps schedule.warmup_epochs schedule.warmup_steps schedule.cooldown_epochs schedule.warmup_lr "
    "schedule.min_lr optimizer.lr_batch_size optimizer.lr optimizer.weight_decay optimizer.clip_grad "
    "checkpoint.every_steps data.workers data.limit evaluate.limit augment.pad_crop augment.color_jitter augment.mixup "
    "augment.cutmix augment.consistency max_steps",
}
_SHARES = (
    "augment.flip augment.vertical_flip augment.circular_shift augment.erasing augment.mix_probability "
    "augment.switch_probability augment.label_smoothing distill.weight segmentation.augment.flip model.drop_path_rate"
)
