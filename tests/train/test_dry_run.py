"""Every recipe can be tried: the network, the pipeline on generated files, a step, what comes after."""

from dataclasses import replace
from functools import cache

import pytest
import torch
from rich.console import Console
from training_runs import recipe

from trueshift.train import dry_run, list_recipes, parse_arguments
from trueshift.train.checkpoint import _leaves
from trueshift.train.data.augment import ClassificationTransform
from trueshift.train.network import build_network, build_segmenter, preparation_for
from trueshift.train.optimization import build_optimizer, build_schedule

each_folder = pytest.mark.parametrize("folder", sorted({name.rpartition("/")[0] for name in list_recipes()}))


def tried(*words: str) -> int:
    return dry_run(
        parse_arguments([*words, "--device", "cpu", "--log.tensorboard", "false"]).config, Console(quiet=True)
    )


SMALL_SWIN = "embed_dim: 16, depths: [1, 1], num_heads: [1, 2]"
SMALL_SCENES = (
    *("--model.name", "a_swin_mini", "--model.arguments", f"{{{SMALL_SWIN}}}"),
    *("--segmentation.decoder", "{channels: 8, bins: [1, 2]}", "--segmentation.scale", "[32, 32]"),
    *("--segmentation.augment.crop", "[32, 32]", "--data.workers", "0"),
)


@pytest.mark.parametrize(
    "words",
    [
        ("cifar10/a_swin_tiny_standard", "--config", "options/swin_augmentation", "--model.name", "a_swin_mini"),
        ("cifar10/cvt_13_adapted_10_epochs", "--model.name", "a_cvt_mini"),  # without the run it starts from
        ("tiny_imagenet/a_swin_mini_crops", "--distill.teacher", "not/there/yet"),  # of 100 classes and 64 pixels
        ("ade20k/a_swin_tiny_circular", *SMALL_SCENES),  # without the published weights it starts from
        ("fields/navier_stokes_a_swinv2", "--model.arguments", f"{{{SMALL_SWIN}}}"),
        ("fields/shallow_water_swinv2", "--model.arguments", f"{{circular: width, {SMALL_SWIN}}}"),
    ],
    ids=["augmented", "adapted", "distilled", "scenes", "fields", "fields on a sphere"],
)
def test_a_recipe(tmp_path, words):
    """The minis stand in for the tiny networks: what differs between recipes otherwise is the same."""
    assert tried("--config", *words, "--output", str(tmp_path / "untouched")) == 0
    assert not (tmp_path / "untouched").exists()


def test_processes_of_torchrun_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="a dry run has one process, not 4: leave out torchrun"):
        tried("--config", "cifar10/a_swin_tiny_standard")


@each_folder
def test_every_recipe_can_be_built(folder):
    """The network, what images are prepared and changed by, and what it learns by; all without memory."""
    networks = {}
    for name in (name for name in list_recipes() if name.rpartition("/")[0] == folder):
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


@cache
def asks_for(name: str) -> set[object]:
    """What takes a path of its own: words, whether a number is 0, and what of it goes with which network."""
    values = dict(_leaves(recipe(name).to_dict()))
    for key, value in values.items():
        if not isinstance(value, str | list) or key in ("model.start_from", "distill.teacher"):
            values[key] = bool(value)
    network, start = values["model.name"], values["model.start_from"]
    words = {(key, str(value)) for key, value in values.items() if key not in ("output", "data.path")}
    return words | {(network, values["task"]), (network, start)}


@cache
def enough() -> list[str]:
    """Recipes in which everything occurs that any of them asks for."""
    left, names = set().union(*map(asks_for, list_recipes())), []
    while left:
        names.append(max(list_recipes(), key=lambda name: len(asks_for(name) & left)))
        left.difference_update(asks_for(names[-1]))
    return names


@pytest.mark.slow
@each_folder
def test_whole_recipes(folder):
    chosen = [name for name in enough() if name.rpartition("/")[0] == folder]
    if not chosen:
        pytest.skip("all that these recipes ask for occurs in others")
    for name in chosen:
        assert tried("--config", name) == 0, name
