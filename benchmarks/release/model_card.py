"""The card of shipped weights, written from their JSON file and nothing else."""

from textwrap import fill
from typing import Any

FAMILIES = {"swin": "Swin", "swinv2": "SwinV2", "cvt": "CvT", "mvitv2": "MViTv2"}


def card(about: dict[str, Any]) -> str:
    """The text of ``NAME.TAG.md``."""
    name, tag, measured = about["architecture"], about["tag"], about["measured"]
    return f"""---
license: {about["pretrained_cfg"]["license"]}
library_name: trueshift
datasets: [cifar10]
pipeline_tag: image-classification
tags: [vision-transformer, shift-equivariance]
---

# {name}.{tag}

{_what(about)}

```python
import trueshift

model = trueshift.create_model("{name}.{tag}", pretrained=True).eval()  # no network is used
print(model.pretrained_cfg["label_names"])
```

`timm.create_model("{name}", pretrained=True)` gives the same after `import trueshift`.
`trueshift audit {name}` measures it on images that come with the package.

## Numbers

| {measured["data"]} | |
|---|---|
| Top-1 | {_percent(measured["top1"])} |
| C-Cons.: two random circular shifts get the same answer | {_percent(measured["c_cons"])} |
| S-Cons.: two random standard shifts get the same answer | {_percent(measured["s_cons"])} |

{_rounding(about)}

## Training

{_training(about)}

## Limits

{_limits(about)}

## Licence

{_LICENCE}

SHA-256 of `{about["weights"]["file"]}`: `{about["weights"]["sha256"]}`
"""


def _what(about: dict[str, Any]) -> str:
    name, (rows, columns) = about["architecture"], about["pretrained_cfg"]["input_size"][1:]
    family = FAMILIES[name.removeprefix("a_").partition("_")[0]]
    if _adaptive(about):
        kind = f"A truly shift-equivariant {family} (*Making Vision Transformers Truly Shift-Equivariant*, CVPR 2024)"
    else:
        kind = f"An ordinary {family}, to compare `a_{name}` with,"
    return _paragraph(f"""{kind} with {about["weights"]["parameters"]:,} parameters, for images of {rows} x {columns}
        pixels, trained on {about["training"]["data"]}.""")


def _rounding(about: dict[str, Any]) -> str:
    weights, checked = about["weights"], about["verified"]
    kept = " and ".join(f"{count:,} in {kind}" for kind, count in weights["stored"].items() if kind != "int64")
    text = f"""Measured with the weights as they were trained. What is shipped is rounded: of its numbers {kept}; they
        are loaded as float32. Of the {checked["images"]} test images that come with the package,
        {checked["images"] - checked["same_answers"]} get another answer than from the {checked["compared_with"]}
        weights that were kept of the training; {_percent(checked["top1"])} of the answers are right."""
    if _adaptive(about):
        text += f""" As they are shipped, its logits for {checked["shifted_views"]:,} circularly shifted views were
        those of the unshifted images, bit for bit."""
    return _paragraph(text)


def _training(about: dict[str, Any]) -> str:
    training, cfg = about["training"], about["pretrained_cfg"]
    arguments = ", ".join(f"`{key}={value!r}`" for key, value in about["arguments"].items()) or "nothing"
    made = f"""Recipe `{training["recipe"]}`, seed {training["seed"]}, {training["epochs"]} epochs, at commit
        `{training["commit"]}`, on {training["machine"]}."""
    needed = f"""Beside its name the network must be told {arguments}, which `create_model` does. Images are scaled to
        0..1, then normalised by mean {tuple(cfg["mean"])} and std {tuple(cfg["std"])}."""
    return f"{_paragraph(made)}\n\n{_paragraph(needed)}"


def _limits(about: dict[str, Any]) -> str:
    classes = ", ".join(about["pretrained_cfg"]["label_names"])
    moving = "Its answer changes when the picture moves: C-Cons. and S-Cons. say how often."
    if _adaptive(about):
        moving = """The answer is guaranteed to stay under circular shifts. Under ordinary ones, where content leaves
            and new content comes in, it may change: S-Cons. says how often."""
    points = (
        f"""Ten classes of small pictures ({classes}): a demonstration, and a start for fine-tuning on small images, not
        a classifier for photographs. Any other picture gets one of these ten answers.""",
        moving,
        "Not examined for bias, corruption or adversarial images.",
    )
    return "\n".join(_paragraph(point, "- ") for point in points)


def _paragraph(text: str, bullet: str = "") -> str:
    return fill(" ".join(text.split()), 120, initial_indent=bullet, subsequent_indent=" " * len(bullet))


def _adaptive(about: dict[str, Any]) -> bool:
    return about["architecture"].startswith("a_")


def _percent(rate: float | None) -> str:
    return "not measured" if rate is None else f"{100 * rate:.2f} %"


_LICENCE = _paragraph("""The weights are under the project's licence, Apache-2.0. They were trained on CIFAR-10 (Alex
    Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*, 2009), which is published without a licence
    text, for research with that citation.""")
