"""The recipes of the small models: all that the tables need, and ordinary and adaptive networks trained alike."""

import re
from functools import cache

import pytest
import torch
from training_runs import run_here, same, weights

from trueshift import create_model
from trueshift.eval.protocols.registry import find_protocols
from trueshift.train import list_recipes, parse_arguments
from trueshift.train.recipe import about

FAMILIES = ("swin", "swinv2", "cvt", "mvitv2")
MODELS = [f"{prefix}{family}_mini" for family in FAMILIES for prefix in ("", "a_")]
TWICE = ("cvt_mini", "mvitv2_mini")  # padded convolutions that are not circular anyway
ABLATIONS = {"a_token": "tokenize", "a_wsa": "align", "a_pmerge": "merge"}
MAIN = [
    *(model for model in MODELS if model not in TWICE),
    *(f"{model}_{shifts}" for model in TWICE for shifts in ("circular", "standard")),
]
OTHERS = [
    *(f"a_swin_mini_no_{module}" for module in (*ABLATIONS, "anchor")),
    *(f"a_swin_mini_{criterion}" for criterion in ("input_norm", "learned")),
    "a_swinv2_mini_learned",
    *(f"{model}_200_epochs" for model in ("swinv2_mini", "a_swinv2_mini")),
    *(f"cvt_mini_adapted_{epochs}_epochs" for epochs in (10, 20)),
    *(f"{family}_mini_da_circular" for family in ("swin", "swinv2", "cvt", "mvitv2")),
    *(f"{model}_random_grids" for model in MODELS if model.startswith("a_")),
]
SHIPPED = [f"shipped/{model}" for model in MODELS]
ALL = [*MAIN, *OTHERS, *SHIPPED]


@cache
def parsed(name):
    return parse_arguments(["--config", f"cifar10_small/{name}"]).config


@cache
def input_size(model):
    return create_model(model).pretrained_cfg["input_size"]


def values(name, *without):
    """All values, those left out that are meant to differ."""
    config = parsed(name).to_dict()
    for key in ("output", *without):
        *path, last = key.split(".")
        part = config
        for step in path:
            part = part[step]
        del part[last]
    return config


def test_all_are_there():
    there = [name.removeprefix("cifar10_small/") for name in list_recipes() if name.startswith("cifar10_small/")]
    assert there == sorted(ALL)
    assert len(ALL) == 37


@pytest.mark.parametrize("name", ALL)
def test_images_stay_as_they_are_and_little_interrupts(name):
    config = parsed(name)
    assert input_size(config.model.name) == (3, 32, 32)
    assert (config.data.kind, config.data.crop_pct, config.data.img_size) == ("cifar10", 1.0, None)
    assert (config.precision, config.compile, config.log.tensorboard) == ("bf16", False, False)
    assert config.evaluate.every_epochs >= 5
    assert config.checkpoint.every_steps == 0
    assert config.output == f"runs/cifar10_small/{name}"
    assert config.augment.label_smoothing == 0.1
    assert config.augment.auto_augment is None  # only the loader does it
    rate = config.optimizer.lr * config.batch_size / config.optimizer.lr_batch_size
    assert 0 < rate <= 2e-3
    assert find_protocols(config.evaluate.protocols)
    assert re.search(r"[\d.]+ on an H200", about(f"cifar10_small/{name}"))  # by which the longest run is known


@pytest.mark.parametrize("name", [name for name in [*MAIN, *OTHERS] if not name.endswith("_epochs")])
def test_the_tables_are_learned_as_in_the_paper_but_for_the_batch(name):
    config = parsed(name)
    augment = config.augment
    assert (config.schedule.epochs, config.schedule.name, config.batch_size) == (100, "cosine", 512)
    assert augment.flip == 0.5
    assert augment.pad_crop == augment.mixup == augment.cutmix == augment.erasing == 0
    assert augment.circular_shift == name.endswith("_da_circular")
    assert augment.crop_scale is None


@pytest.mark.parametrize("model", [model for model in MODELS if model.startswith("a_")])
def test_an_adaptive_network_is_trained_as_its_ordinary_twin(model):
    ordinary = model.removeprefix("a_")
    twins = [f"{ordinary}_{shifts}" for shifts in ("circular", "standard")] if ordinary in TWICE else [ordinary]
    for twin in twins:
        different = ("model.name", *(("model.padding", "evaluate") if twin.endswith("_standard") else ()))
        assert values(model, *different) == values(twin, *different)
    assert values(f"shipped/{model}", "model.name") == values(f"shipped/{ordinary}", "model.name")


@pytest.mark.parametrize("model", [model for model in MODELS if model.startswith("a_")])
def test_random_grids_are_all_that_a_recipe_with_them_changes(model):
    name, rate = f"{model}_random_grids", "model.grid_drop_rate"
    assert (parsed(model).model.grid_drop_rate, parsed(name).model.grid_drop_rate) == (None, 0.5)
    assert values(name, rate) == values(model, rate)


def test_only_what_the_shifts_change_is_trained_twice():
    for name in MAIN:
        config = parsed(name)
        assert config.model.padding == ("zeros" if name.endswith("_standard") else "circular")
        assert config.evaluate.protocols == (
            ("cifar-standard",) if name.endswith("_standard") else ("circular", "cifar-standard")
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_makes_no_difference_where_one_training_is_for_both(tmp_path, family):
    sizes = {
        "swin": "{embed_dim: 16, depths: [1, 1], num_heads: [1, 2]}",
        "swinv2": "{embed_dim: 16, depths: [1, 1], num_heads: [1, 2], pretrained_window_sizes: [0, 0]}",
        "cvt": "{embed_dim: [8, 16, 16], depths: [1, 1, 1], num_heads: [1, 1, 1]}",
        "mvitv2": "{embed_dim: [8, 16, 16], depths: [1, 1, 1], num_heads: [1, 1, 1]}",
    }
    for padding in ("circular", "zeros"):
        tiny = {"model__name": f"{family}_mini", "model__arguments": sizes[family], "model__padding": padding}
        assert run_here(tmp_path / padding, schedule__epochs=1, optimizer__lr=0.01, data__limit=32, **tiny) == 0
    equal = same(*(weights(tmp_path / padding) for padding in ("circular", "zeros")))
    assert equal == (f"{family}_mini" not in TWICE)


@pytest.mark.parametrize(("module", "place"), ABLATIONS.items())
def test_an_ablation_fixes_one_place_and_has_no_anchor(module, place):
    name = f"a_swin_mini_no_{module}"
    assert parsed(name).model.arguments == {"criterion": {place: "fixed"}, "anchor": False}
    assert values(name, "model.arguments") == values("a_swin_mini", "model.arguments")


@pytest.mark.parametrize(
    ("network", "name", "arguments"),
    [
        ("a_swin_mini", "no_anchor", {"anchor": False}),
        ("a_swin_mini", "input_norm", {"criterion": "input_norm"}),
        ("a_swin_mini", "learned", {"criterion": "learned"}),
        ("a_swinv2_mini", "learned", {"criterion": "learned"}),
    ],
)
def test_one_thing_is_changed(network, name, arguments):
    assert parsed(f"{network}_{name}").model.arguments == arguments
    assert values(f"{network}_{name}", "model.arguments") == values(network, "model.arguments")


@pytest.mark.parametrize("model", ["swinv2_mini", "a_swinv2_mini"])
def test_twice_as_long_is_all_that_is_changed(model):
    assert parsed(f"{model}_200_epochs").schedule.epochs == 2 * parsed(model).schedule.epochs
    assert values(f"{model}_200_epochs", "schedule.epochs") == values(model, "schedule.epochs")


@pytest.mark.parametrize("criterion", ["input_norm", "learned"])
def test_every_criterion_learns_in_bf16(criterion):
    model = create_model("a_swin_mini", criterion=criterion, embed_dim=8, depths=(1, 1), num_heads=(1, 2)).train()
    with torch.autocast("cpu", torch.bfloat16):
        model(torch.randn(2, 3, 32, 32)).logsumexp(1).sum().backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in model.parameters())


@pytest.mark.parametrize("epochs", [10, 20])
def test_an_adapted_network_starts_from_the_ordinary_one(epochs):
    config, first = parsed(f"cvt_mini_adapted_{epochs}_epochs"), parsed("cvt_mini_circular")
    assert config.model.start_from == f"{first.output}/final"
    assert (config.model.name, config.schedule.epochs) == ("a_cvt_mini", epochs)
    assert config.optimizer.lr == first.optimizer.lr / 10


def test_the_augmented_baseline_differs_in_that_alone():
    assert values("swin_mini_da_circular", "augment") == values("swin_mini", "augment")


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_weights_are_trained_at_least_as_long_and_on_more(name):
    config = parsed(name)
    assert (config.schedule.epochs, config.batch_size) == (200 if "mvitv2" in name else 100, 512)
    assert (config.augment.pad_crop, config.augment.cutmix) == (4, 1.0)
    assert config.model.padding == "circular"
    assert config.evaluate.protocols == ("circular", "cifar-standard")
