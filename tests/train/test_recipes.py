"""Recipes: each names what exists and holds what the paper says; twins differ in nothing else."""

import json
import re
from dataclasses import replace
from itertools import chain, product
from pathlib import Path

import pytest
from training_runs import recipe

from trueshift import create_model
from trueshift.eval.protocols.registry import find_protocols
from trueshift.recipes import about
from trueshift.train import list_recipes
from trueshift.train.checkpoint import differences

OPTIONS = [name for name in list_recipes() if name.startswith("options/")]
RUNS = [name for name in list_recipes() if name not in OPTIONS]
MODELS = {"swin_tiny": "Swin-T", "swinv2_tiny": "SwinV2-T", "cvt_13": "CvT-13", "mvitv2_tiny": "MViTv2-T"}
MODELS |= {f"a_{name}": f"A-{title}" for name, title in MODELS.items()}
SEGMENTERS = {name: title for name, title in MODELS.items() if "swin" in name}
SHIFTS = ("circular", "standard")
GRIDS = ("model.grid_drop_rate", "model.arguments.border")
CRITERION = ("model.arguments.criterion", "model.arguments.anchor")
LONGER = ("schedule.epochs", "augment.auto_augment", "data.workers", "distill.teacher", *GRIDS)
TUNED = ("model.name", "schedule", "optimizer.lr", "augment.cutmix", *GRIDS, *CRITERION)
SAYS = {  # by the end of a name: all that may differ from the recipe without it
    **dict.fromkeys(["_adapted_10_epochs", "_adapted_20_epochs", "_anchored_20_epochs", "_spot_20_epochs"], TUNED),
    "_adapted_random_grids": TUNED,
    **dict.fromkeys(["_longer", "_longest", "_distilled", "_300_epochs"], LONGER),
    **dict.fromkeys(["_learned", "_input_norm", "_no_anchor", "_no_a_token", "_no_a_wsa", "_no_a_pmerge"], CRITERION),
    **{"_random_grids": GRIDS, "_spot": (*GRIDS, *CRITERION), "_consistency": ("augment.consistency", *GRIDS)},
    **{"_da_circular": "augment.circular_shift", "_crops": "augment.", "_200_epochs": "schedule.epochs"},
    **{"_96": "batch_size", **dict.fromkeys(["_mixed", "_augmented", "_unmixed"], ("batch_size", "augment."))},
}


def there(stem):
    """The recipe of that name, if any; where both kinds of shifts have one, that of circular shifts."""
    return next((name for name in (stem, f"{stem}_circular") if name in RUNS), None)


TWINS = [(name, there(re.sub(r"(?<=[/_])a_(?=[csmv])", "", name))) for name in RUNS if re.search("[/_]a_", name)]
NAMED = [(name, there(name.removesuffix(end)), SAYS[end]) for name in RUNS for end in filter(name.endswith, SAYS)]


def changes(name, like):
    """The values that make another training."""
    return [line.split(":")[0] for line in differences(recipe(like).to_dict(), recipe(name).to_dict())]


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_finds_what_it_needs_and_says_what_it_costs_and_what_to_expect(name):
    assert re.search(rf"^  trueshift train (--config \S+ )?--config {name}$", about(name), re.MULTILINE)
    hours = r"[\d.]+ on an H200" if name.startswith("cifar10_small") else r"\S"  # the longest is started first
    assert re.search(rf"^(.*\. )?Hardware, hours: .*{hours}", about(name), re.MULTILINE)
    assert re.search(r"^Expected: \S", about(name), re.MULTILINE)
    config = recipe(name)
    if name in OPTIONS:
        assert {key.split(".")[0] for key in changes(name, "cifar10/a_swin_tiny_standard")} == {"augment"}
        return
    assert find_protocols(config.evaluate.protocols) or config.task == "fields"
    assert config.output == f"runs/{name}"  # so no two write to the same folder
    assert not (config.compile and "swinv2" in name)  # which would not learn
    assert config.augment.circular_shift is name.endswith("_da_circular")  # the paper's baseline alone
    for run in filter(None, (config.model.start_from, config.distill.teacher)):
        assert recipe(run.removeprefix("runs/").removesuffix("/final")).data.kind == config.data.kind


@pytest.mark.parametrize(("name", "twin"), [pair for pair in TWINS if pair[1]])
def test_an_adaptive_network_is_trained_as_its_ordinary_twin(name, twin):
    different = {"model.name", "model.padding", "model.arguments.criterion", *GRIDS}
    assert different.issuperset(changes(name, twin))
    assert ("model.padding" in changes(name, twin)) == twin.endswith("_standard")


@pytest.mark.parametrize(("name", "like", "different"), [given for given in NAMED if given[1]])
def test_a_recipe_differs_in_what_its_name_says_alone(name, like, different):
    assert changes(name, like)
    assert all(key.startswith(different) for key in changes(name, like)), changes(name, like)


@pytest.mark.parametrize(("data", "model", "shifts"), [*product(("cifar10", "cifar100", "imagenet"), MODELS, SHIFTS)])
def test_classifiers_are_trained_as_the_appendix_says(data, model, shifts):
    config, imagenet = recipe(f"{data}/{model}_{shifts}"), data == "imagenet"
    augment, circular = config.augment, shifts == "circular"
    assert (config.model.name, config.data.kind, config.data.crop_pct) == (model, data, 0.875)  # 256 to 224
    assert config.model.padding == ("circular" if circular or model.startswith("a_") else "zeros")
    assert config.evaluate.protocols == ("circular" if circular else f"{data.rstrip('10')}-standard",)
    assert (config.schedule.epochs, config.optimizer.weight_decay) == (300 if imagenet else 100, 0.05)
    assert config.batch_size == ((256 if "mvit" in model else 1024) if imagenet else 48)
    for_one_image = config.optimizer.lr / config.optimizer.lr_batch_size
    assert for_one_image == pytest.approx(2.5e-4 / 256 if "cvt" in model else 1e-3 / 1024)
    own = ({"act_layer": "quick_gelu"}, False) if "cvt" in model else ({}, True)  # as in CvT's code
    assert (config.model.arguments, config.schedule.scale_min_lr) == own
    assert (augment.flip, augment.crop_scale, augment.pad_crop, augment.label_smoothing) == (0.5, None, 0, 0.1)
    kind = "rand-m10-n6-mstd0.5-inc1" if "mvitv2" in model else "rand-m9-mstd0.5-inc1"
    assert (augment.auto_augment, augment.erasing) == ((kind, 0.25) if imagenet and not circular else (None, 0))


@pytest.mark.parametrize(("module", "place"), [("a_token", "tokenize"), ("a_wsa", "align"), ("a_pmerge", "merge")])
def test_an_ablation_fixes_one_place_and_has_no_anchor(module, place):
    config, whole = recipe(f"ablations/a_swin_tiny_no_{module}"), recipe("cifar10/a_swin_tiny_circular")
    same = replace(config.model, arguments={}), config.augment, config.optimizer, config.schedule
    assert same == (whole.model, whole.augment, whole.optimizer, whole.schedule)
    choices = create_model("a_swin_mini", **config.model.arguments).config
    assert [each for each in ("tokenize", "align", "merge") if not choices.adaptive(each)] == [place]
    assert not choices.anchored


@pytest.mark.parametrize(("model", "shifts"), list(product(SEGMENTERS, SHIFTS)))
def test_segmenters_are_trained_as_the_appendix_says(model, shifts):
    config, circular = recipe(f"ade20k/{model}_{shifts}"), shifts == "circular"
    wanted = config.segmentation
    assert (config.model.name, config.model.pretrained, config.data.kind) == (model, True, "ade20k")
    assert config.model.padding == ("circular" if circular or model.startswith("a_") else "zeros")
    # Swin under circular shifts at a size that its windows divide
    crop, scale = (448, (1792, 448)) if circular and "swinv2" not in model else (512, (2048, 512))
    assert (wanted.augment.crop, wanted.scale, wanted.fit) == ((crop, crop), scale, "resize" if circular else "pad")
    assert (config.schedule.steps, config.schedule.name, config.optimizer.lr) == (160_000, "poly", 6e-5)
    assert (config.batch_size, config.sync_batchnorm, wanted.decoder["channels"]) == (16, True, 512)
    assert config.evaluate.protocols == (f"ade20k-{shifts}",)


def test_accuracies_are_those_of_the_paper():
    paper = Path(__file__).parents[2] / "results" / "paper_results.json"
    tables = {name: table["rows"] for name, table in json.loads(paper.read_text())["tables"].items()}

    def expected(name):
        numbers = r"(?:Top-1|mIoU) ([\d.]+)(?: ± [\d.]+)?, (?:[CS]-Cons\.|mAS[CS]C) ([\d.]+)"
        return [*map(float, re.search(rf"^Expected: {numbers}", about(name), re.MULTILINE).groups())]

    def printed(table, row, count=None):
        return [number for number, _ in tables[table][row][:count]]

    for model, title in MODELS.items():
        cifar = [expected(f"{data}/{model}_{shifts}") for shifts in SHIFTS for data in ("cifar10", "cifar100")]
        assert [*chain(*cifar)] == printed("cifar", title)
        for data in ("imagenet", "ade20k") if model in SEGMENTERS else ("imagenet",):
            assert [*chain(*(expected(f"{data}/{model}_{shifts}") for shifts in SHIFTS))] == printed(data, title)
    for name, table, row in (
        ("cifar10/swin_tiny_da_circular", "erased", "Swin-T DA"),
        ("cifar10/cvt_13_adapted_10_epochs", "adapt", "CvT-13 + Adapt (10 epoch Fine-tuning)"),
        ("cifar10/cvt_13_adapted_20_epochs", "adapt", "CvT-13 + Adapt (20 epoch Fine-tuning)"),
        ("ablations/a_swin_tiny_no_a_token", "ablation", "(i) No A-token"),
        ("ablations/a_swin_tiny_no_a_wsa", "ablation", "(ii) No A-WSA"),
        ("ablations/a_swin_tiny_no_a_pmerge", "ablation", "(iii) No A-PMerge"),
    ):
        assert expected(name) == printed(table, row, 2), name
