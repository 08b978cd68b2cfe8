"""Every recipe can be tried: the network, the pipeline on files of the right layout, a step, what comes after."""

import pytest
from rich.console import Console

from trueshift.data import open_data
from trueshift.data.segmentation import open_scenes
from trueshift.data.source import IGNORED
from trueshift.train import dry_run, list_recipes, parse_arguments
from trueshift.train.config import CLASSES, WITH_MASKS
from trueshift.train.dry_run import write_cifar, write_image_folders, write_masked_images


def tried(*words: str) -> int:
    return dry_run(
        parse_arguments([*words, "--device", "cpu", "--log.tensorboard", "false"]).config, Console(quiet=True)
    )


def test_a_recipe_with_all_kinds_of_augmentation(tmp_path):
    """The mini stands in for the tiny network: what differs between recipes otherwise is the same."""
    assert tried(
        *("--config", "cifar10/a_swin_tiny_standard", "--config", "options/swin_augmentation"),
        *("--model.name", "a_swin_mini", "--output", str(tmp_path / "untouched")),
    ) == 0  # fmt: skip
    assert not (tmp_path / "untouched").exists()


def test_fine_tuning_is_tried_without_the_run_it_starts_from():
    assert tried("--config", "cifar10/cvt_13_adapted_10_epochs", "--model.name", "a_cvt_mini") == 0


@pytest.mark.parametrize("classes", [10, 100])
def test_made_up_cifar_is_read_as_the_real_one(tmp_path, classes):
    write_cifar(tmp_path, classes)
    for split in ("train", "test"):
        source = open_data(tmp_path, split)
        assert source.classes is not None
        assert len(source.classes) == classes
        assert len(source) >= 16


def test_made_up_folders_are_read_as_imagenet(tmp_path):
    write_image_folders(tmp_path, 3)
    assert open_data(tmp_path, "train").classes == open_data(tmp_path, "test").classes
    assert len(open_data(tmp_path, "test")) == 3


@pytest.mark.parametrize("kind", WITH_MASKS)
def test_made_up_scenes_are_read_as_the_real_ones(tmp_path, kind):
    write_masked_images(tmp_path, kind)
    names = set()
    for split in ("train", "test"):
        source = open_scenes(tmp_path, split)
        assert source.title.lower().startswith(kind)
        assert source.classes is not None
        assert len(source.classes) == CLASSES[kind]
        assert len(source) == 16
        assert source[0].target.min() != IGNORED
        assert source[0].target.max() < CLASSES[kind]
        names |= {source.name(index) for index in range(16)}
    assert len(names) == 32


SMALL_SCENES = (
    *("--model.name", "a_swin_mini", "--model.arguments", "{embed_dim: 16, depths: [1, 1], num_heads: [1, 2]}"),
    *("--segmentation.decoder", "{channels: 8, bins: [1, 2]}", "--segmentation.scale", "[32, 32]"),
    *("--segmentation.augment.crop", "[32, 32]", "--data.workers", "0"),
)


def test_a_recipe_for_scenes(tmp_path):
    """The mini stands in here too; nothing is fetched for a recipe that starts from published weights."""
    assert tried("--config", "ade20k/a_swin_tiny_circular", *SMALL_SCENES, "--output", str(tmp_path / "untouched")) == 0
    assert not (tmp_path / "untouched").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--config", "ade20k/a_swin_tiny_standard", "--segmentation.augment.crop", "[40, 24]"),
        ("--config", "camvid/swin_tiny", "--model.name", "swin_mini"),
        ("--config", "camvid/a_swin_tiny", "--data.kind", "cityscapes", "--accumulate", "2"),
        ("--config", "camvid/a_swin_tiny", "--model.start_from", "not/there/yet", "--model.arguments", "{}"),
    ],
)
def test_small_recipes_for_scenes(words):
    assert tried(*words[:2], *SMALL_SCENES, *words[2:]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe(name):
    base = ["--config", "cifar10/a_swin_tiny_standard"] if name.startswith("options/") else []
    assert tried(*base, "--config", name) == 0
