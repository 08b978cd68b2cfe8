"""Models whose consistency is known, what they answer, and small scenes in memory."""

from dataclasses import replace

import numpy as np
import torch
from model_checks import perturb_norms
from PIL import Image
from torch import Tensor, nn

from trueshift import FieldNet
from trueshift.data import EmbeddedSample, Preparation, Sample, ScenePreparation, read_ahead
from trueshift.eval import EvalModel, EvalOptions, find_protocols, margin_of, measure
from trueshift.eval.models.eval_model import PixelLogits, pixel_forward

TINY = Preparation((32, 32), 1.0, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
SMALL = ScenePreparation((64, 16), (8, 8), "resize", (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))


class Watched:
    """A forward pass that keeps the batches it is shown; by default all answers are zero."""

    def __init__(self, forward=lambda images: torch.zeros(len(images), 2)) -> None:
        self.forward, self.batches = forward, []

    def __call__(self, images: Tensor) -> Tensor:
        self.batches.append(images.clone())
        return self.forward(images)

    @property
    def shown(self) -> int:
        return sum(map(len, self.batches))


class Constant(nn.Module):
    num_classes = 10

    def forward(self, images: Tensor) -> Tensor:
        return torch.eye(10)[3].expand(len(images), 10)


class ReadsOnePixel(nn.Module):
    """Says whether the first pixel is brighter than the middle."""

    num_classes = 2

    def forward(self, images: Tensor) -> Tensor:
        value = images[:, :, 0, 0].sum(1)
        return torch.stack([-value, value], 1)


def subject(module: nn.Module, name: str = "model", preparation: Preparation = TINY) -> EvalModel:
    classes = getattr(module, "num_classes", None)
    return EvalModel(name, module.eval(), preparation, "made up", num_classes=classes, module=module)


def answers_to(forward, names, shifts, images=range(4), preparation=TINY, source=None, seed=0, batch_size=32):
    """Records of a model on the first images of the sample."""
    protocols = find_protocols(list(names))
    source = source or EmbeddedSample()
    pictures = read_ahead(source, images, preparation, margin_of(protocols, preparation.size))
    numbers = {protocol.name: shifts for protocol in protocols}
    return list(measure(forward, pictures, protocols, preparation, numbers, seed, batch_size)), protocols


# segmentation


class ByPixel(nn.Module):
    """A 1 x 1 convolution: each pixel's own brightest colour, wherever it lies."""

    num_classes, size_multiple = 3, (8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(3, 3, 1, bias=False)
        nn.init.dirac_(self.mix.weight)

    def forward(self, images: Tensor) -> Tensor:
        return self.mix(images)


class ByPlace(nn.Module):
    """The upper half is one class, the lower another, whatever is there."""

    num_classes, size_multiple = 3, (1, 1)

    def forward(self, images: Tensor) -> Tensor:
        logits = torch.zeros(len(images), 3, *images.shape[2:])
        logits[:, 0, : images.shape[2] // 2] = logits[:, 1, images.shape[2] // 2 :] = 1
        return logits


class HalfSize(nn.Module):
    """Gives logits for every second pixel, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv2d(3, 5, 3, 2, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        return {"out": self.mix(images)}


class Reversed(EmbeddedSample):
    """The sample, as if in folders whose names sort the other way around."""

    def __init__(self):
        super().__init__()
        self.classes = self.classes[::-1]

    def __getitem__(self, index):
        picture = super().__getitem__(index)
        return replace(picture, target=9 - picture.target)


def save_onnx(path, looks: Tensor, batch="batch", external=None):
    """A linear model of images of 32 x 32, whose weights are ``looks``; ``external`` names a file of their own."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["images"], ["flat"]),
            helper.make_node("MatMul", ["flat", "looks"], ["logits"]),
        ],
        "linear",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [batch, 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, looks.shape[1]])],
        [numpy_helper.from_array(looks.numpy(), "looks")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(made, path, save_as_external_data=external is not None, location=external)


class Scenes:
    """Scenes in memory; one that is an exception cannot be read."""

    title = "made up"

    def __init__(self, scenes, classes=("red", "green", "blue")):
        self.scenes = scenes
        self.classes = list(classes) if classes else None

    def __len__(self):
        return len(self.scenes)

    def name(self, index):
        return f"scene {index}"

    def __getitem__(self, index):
        image, mask = self.scenes[index]
        if isinstance(image, Exception):
            raise image
        return Sample(image, self.name(index), mask)


def noise(count=4, size=(16, 24), seed=0):
    """Images of one colour in each pixel, with masks that name it."""
    generator = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        mask = generator.integers(0, 3, size).astype(np.int32)
        made.append((Image.fromarray((255 * np.eye(3)[mask]).astype(np.uint8)), mask))
    return made


def segmenter(module, name="model", scenes=SMALL, precision="float32"):
    module = module.eval()
    return EvalModel(
        name,
        pixel_forward(PixelLogits(module, module.size_multiple), EvalOptions(precision=precision)),
        scenes,
        "made up",
        num_classes=module.num_classes,
        module=module,
        dense=True,
    )


# fields


def save_field_net(folder, name="a_swin_mini", *, known=((3.0, -1.0), (0.7, 2.0)), **changes):
    """A small network of two channels, with the mean and deviation that it knows."""
    torch.manual_seed(0)
    small = {"embed_dim": 8, "depths": (1, 1), "num_heads": (1, 1), "decoder_depth": 1, "kernel_size": 3}
    net = perturb_norms(FieldNet(name, 2, **{**small, "residual": True, **changes}))
    if known:
        net.pretrained_cfg |= {key: list(values) for key, values in zip(("mean", "std"), known, strict=True)}
    return str(net.save_pretrained(folder))
