"""Every recipe can be tried: the network, the pipeline on generated files, a step, what comes after."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console
from training_runs import recipe

from trueshift.train import dry_run, list_recipes, parse_arguments
from trueshift.train.data.augment import ClassificationTransform
from trueshift.train.network import build_network, build_segmenter, preparation_for
from trueshift.train.optimization import build_optimizer, build_schedule


def tried(*words: str) -> int:
    config = parse_arguments([*words, "--device", "cpu", "--log.tensorboard", "false"]).config
    return dry_run(config, Console(quiet=True))


SMALL_SWIN = "embed_dim: 16, depths: [1, 1], num_heads: [1, 2]"
SMALL_SCENES = (
    *("--model.name", "a_swin_mini", "--model.arguments", f"{{{SMALL_SWIN}}}"),
    *("--segmentation.decoder", "{channels: 8, bins: [1, 2]}", "--segmentation.scale", "[32, 32]"),
    *("--segmentation.augment.crop", "[32, 32]", "--data.workers", "0", "--evaluate.protocols", "[]"),
)


@pytest.mark.parametrize(
    "words",
    [
        ("cifar10/a_swin_tiny_standard", "--config", "options/swin_augmentation", "--model.name", "a_swin_mini"),
        ("cifar10/cvt_13_adapted_10_epochs", "--model.name", "a_cvt_mini"),  # without the run it starts from
        ("tiny_imagenet/a_swin_mini_crops", "--distill.teacher", "not/there/yet"),  # of 100 classes and 64 pixels
        ("ade20k/a_swin_tiny_circular", *SMALL_SCENES),  # without the published weights it starts from
        ("fields/shallow_water_swinv2", "--model.arguments", f"{{circular: width, {SMALL_SWIN}}}"),
    ],
    ids=["augmented", "adapted", "distilled", "scenes", "fields"],
)
def test_a_recipe(tmp_path, words):
    """The minis stand in for the tiny networks: what differs between recipes otherwise is the same."""
    assert tried("--config", *words, "--output", str(tmp_path / "untouched")) == 0
    assert not (tmp_path / "untouched").exists()


def test_processes_of_torchrun_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="a dry run has one process, not 4: leave out torchrun"):
        tried("--config", "cifar10/a_swin_tiny_standard")


ALONE = [name for name in list_recipes() if not name.startswith("options/")]  # options go with another recipe


@pytest.mark.slow
@pytest.mark.parametrize("name", {str(recipe(name).model): name for name in ALONE}.values())
def test_whole_recipes(name):
    """One of those that share a network."""
    assert tried("--config", name) == 0


def test_every_recipe_can_be_built():
    """The network, what images are prepared and changed by, and what it learns by; all without memory."""
    networks = {}
    for name in list_recipes():
        config = recipe(name)
        config = replace(config, model=replace(config.model, start_from=None, pretrained=False))
        build = build_segmenter if config.task == "segmentation" else build_network
        key = str((build, config.model, config.data.img_size))
        if key not in networks:
            with torch.device("meta"):
                networks[key] = build(config, 10)
        build_schedule(config, build_optimizer(config, networks[key]), 10)
        if config.task == "classification":
            ClassificationTransform(preparation_for(config, networks[key]), config.augment, 0)
