"""The recipes of the paper and of the small models: all there, as the paper says, and each says what it is for."""

import json
import re
from functools import cache
from itertools import product
from operator import attrgetter
from pathlib import Path

import pytest
from training_runs import recipe

from trueshift import create_model
from trueshift.eval.protocols.registry import find_protocols
from trueshift.models.registry import resolve_name
from trueshift.recipes import FOLDER, about
from trueshift.train import list_recipes
from trueshift.train.checkpoint import _leaves

PREFIXES, SHIFTS = ("", "a_"), ("circular", "standard")
FAMILIES = ("swin_tiny", "swinv2_tiny", "cvt_13", "mvitv2_tiny")
MODELS = [prefix + family for family in FAMILIES for prefix in PREFIXES]
SETTINGS = list(product(("cifar10", "cifar100", "imagenet"), SHIFTS))
MATRIX = [f"{data}/{model}_{shifts}" for data, shifts in SETTINGS for model in MODELS]
ABLATIONS = {"a_token": "tokenize", "a_wsa": "align", "a_pmerge": "merge"}
MIXED = {"augment.mixup": 0.8, "augment.cutmix": 1.0}
AUGMENTED = MIXED | {"augment.auto_augment": "rand-m9-mstd0.5-inc1", "augment.erasing": 0.25}
HOW = {"_mixed": MIXED, "_mixed_96": MIXED, "_96": {}, "_augmented": AUGMENTED}  # the paper's recipe may be read
READINGS = {f"cifar10/{name}{how}": changes for name in ("swin_tiny", "a_swin_tiny") for how, changes in HOW.items()}
OTHERS = [
    *READINGS,
    "cifar10/a_swin_tiny_mixed_random_grids",
    "cifar10/swin_tiny_da_circular",
    *(f"cifar10/cvt_13_adapted_{epochs}_epochs" for epochs in (10, 20)),
    *(f"ablations/a_swin_tiny_no_{module}" for module in ABLATIONS),
]
SEGMENTERS = MODELS[:4]
ADE20K = [f"ade20k/{model}_{shifts}" for model in SEGMENTERS for shifts in SHIFTS]
CAMVID = [f"camvid/{model}" for model in SEGMENTERS]
FIELDS = [f"fields/{task}_{model}" for task in ("navier_stokes", "shallow_water") for model in ("swinv2", "a_swinv2")]
OPTIONS = ["options/mvitv2_augmentation", "options/swin_augmentation"]
TITLES = {"swin_tiny": "Swin-T", "swinv2_tiny": "SwinV2-T", "cvt_13": "CvT-13", "mvitv2_tiny": "MViTv2-T"}
# the small models, in cifar10_small/
MINIS = [f"{prefix}{family}_mini" for family in ("swin", "swinv2", "cvt", "mvitv2") for prefix in PREFIXES]
ADAPTIVE = MINIS[1::2]
TWICE = ("cvt_mini", "mvitv2_mini")  # padded convolutions that are not circular anyway
MAIN = [name for name in MINIS if name not in TWICE] + [f"{model}_{shifts}" for model in TWICE for shifts in SHIFTS]
CRITERION, ANCHOR = "model.arguments.criterion", "model.arguments.anchor"
CHANGED = {  # in one thing alone
    **{f"a_swin_mini_no_{name}": {f"{CRITERION}.{at}": "fixed", ANCHOR: False} for name, at in ABLATIONS.items()},
    "a_swin_mini_no_anchor": {ANCHOR: False},
    "a_swin_mini_input_norm": {CRITERION: "input_norm"},
    **{f"{model}_learned": {CRITERION: "learned"} for model in ("a_swin_mini", "a_swinv2_mini")},
    **{f"{model}_da_circular": {"augment.circular_shift": True} for model in MINIS[::2]},
    **{f"{model}_random_grids": {"model.grid_drop_rate": 0.5} for model in ADAPTIVE},
}
LONGER = {f"{model}_200_epochs": {"schedule.epochs": 200} for model in ("swinv2_mini", "a_swinv2_mini")}
ADAPTED = [f"cvt_mini_adapted_{n}_epochs" for n in (10, 20)] + [f"{m}_adapted_random_grids" for m in MINIS[::2]]
TUNING = {"optimizer.lr": 5e-4, "schedule.epochs": 20, "schedule.warmup_epochs": 1, "model.arguments.border": "closed"}
TABLES = [*MAIN, *CHANGED]
SHIPPED = [f"shipped/{model}" for model in MINIS]
FINE_TUNED = [f"shipped/{model}_{how}_20_epochs" for model in MINIS[::2] for how in ("adapted", "anchored", "spot")]
LONGEST = [f"{name}_mini_longest" for name in ("cvt", "a_cvt", "mvitv2", "a_mvitv2")]
HERE, SHIP = "cifar10_small/", "cifar10_small/shipped/"
DISTILLED = {"a_swin_mini": "swin_mini", "a_swinv2_mini": "swinv2_mini", "a_cvt_mini": "cvt_mini_longest"}  # by whom
LIKE, CONSISTENT = ["swin_mini", "a_swin_mini_random_grids"], ["swin_mini_consistency", "a_swin_mini_consistency"]
TRAINED_ON = ("mvitv2_mini_longer", "swin_mini_200_epochs", "cvt_mini_300_epochs", "a_cvt_mini_300_epochs", *LONGEST)
TRAINED_ON += (*(f"{model}_distilled" for model in DISTILLED), *CONSISTENT)
TRAINED_ON += (*(f"{model}_random_grids" for model in ADAPTIVE), "a_swin_mini_random_grids_200_epochs")
TRAINED_ON += tuple(f"{model}_spot" for model in ADAPTIVE)
VIT = ["vit_mini", "vit_mini_da_circular", "a_vit_mini_random_grids", "shipped/vit_mini", "shipped/a_vit_mini"]
PLAIN, GRIDS = ("{}", "{}_da_circular", "{}_crops"), ("random_grids", "crops", "crops_random_grids", "crops_spot")
TINY = [
    f"tiny_imagenet/{name.format(model)}"
    for model in ("swin_mini", "swinv2_mini")
    for name in (*PLAIN, *(f"a_{{}}_{how}" for how in GRIDS))
]
SMALL = [f"cifar10_small/{name}" for name in (*TABLES, *LONGER, *ADAPTED, *SHIPPED, *FINE_TUNED, *VIT)]
SMALL += [f"cifar10_small/shipped/{name}" for name in TRAINED_ON]


def plain(name):
    """The small model that another one is made of."""
    model = re.match(r"\w+?_mini", name)[0]
    return f"{HERE}{model}_circular" if model in TWICE else f"{HERE}{model}"


DIFFERENT = [  # a recipe, the one that it is like, and the values that differ
    *(
        (name, re.sub("_tiny.*", "_tiny_circular", name), {"batch_size": 96 if name.endswith("_96") else 256} | changes)
        for name, changes in READINGS.items()
    ),
    *(
        (f"{SHIP}{model}_distilled", f"{SHIP}{like}", {"distill.teacher": f"runs/{SHIP}{teacher}/final"})
        for model, teacher in DISTILLED.items()
        for like in [f"{model}_longest" if "longest" in teacher else f"{model}_random_grids"]
    ),
    *((f"{SHIP}{a}_spot", f"{SHIP}{a}_random_grids", {"model.arguments.criterion": "spot"}) for a in ADAPTIVE),
    *(
        (f"{HERE}{model}_adapted_random_grids", f"{HERE}a_{model}_random_grids", TUNING | {"model.start_from": run})
        for model in MINIS[::2]
        for run in [f"runs/{plain(model)}/final"]
    ),
    *((f"{SHIP}{a}", f"{SHIP}{b}", {"augment.consistency": 1.0}) for a, b in zip(CONSISTENT, LIKE, strict=True)),
    *((HERE + name, plain(name), changes) for name, changes in (CHANGED | LONGER).items()),
]
TWINS = [  # an adaptive network, its ordinary twin, and what differs if that is padded by zeros
    *((name, name.replace("/a_", "/"), ["model.padding"]) for name in [*MATRIX, *ADE20K, *CAMVID] if "/a_" in name),
    *((name, name.replace("_a_", "_"), []) for name in FIELDS[1::2]),
    *(
        (f"{HERE}a_{re.match('[a-z0-9]+_mini', name)[0]}", f"{HERE}{name}", ["model.padding", "evaluate"])
        for name in MAIN
        if not name.startswith("a_")
    ),
    *((f"{SHIP}{model}", f"{SHIP}{model.removeprefix('a_')}", []) for model in ADAPTIVE),
]
PAPER = Path(__file__).parents[2] / "results" / "paper_results.json"  # checked by test_small_tables.py
each_setting = pytest.mark.parametrize(("data", "shifts"), SETTINGS)


def small(name):
    return recipe(f"cifar10_small/{name}")


def apart(one, other, *different):
    """Values of a recipe that are not those of another, except where they are meant to differ."""
    values, others = (dict(_leaves(recipe(name).to_dict())) for name in (one, other))
    changed = {key: values.get(key) for key in values.keys() | others.keys() if values.get(key) != others.get(key)}
    meant = tuple(f"{each}." for each in ("output", *different))
    return {key: value for key, value in changed.items() if not f"{key}.".startswith(meant)}


@cache
def input_size(model):
    return create_model(model).pretrained_cfg["input_size"]


def expected(name):
    """Accuracy and consistency that a recipe promises."""
    numbers = r"(?:Top-1|mIoU) ([\d.]+)(?: ± [\d.]+)?, (?:[CS]-Cons\.|mAS[CS]C) ([\d.]+)"
    return tuple(map(float, re.search(rf"^Expected: {numbers}", about(name), re.MULTILINE).groups()))


def title_of(model):
    return TITLES[model] if model in TITLES else f"A-{TITLES[model.removeprefix('a_')]}"


def test_all_are_there():
    assert (len(MATRIX), len(ADE20K), len(CAMVID), len(SMALL)) == (48, 8, 4, 80)
    assert list_recipes() == sorted([*MATRIX, *OTHERS, *ADE20K, *CAMVID, *SMALL, *FIELDS, *TINY, *OPTIONS])


@pytest.mark.parametrize("name", [name for name in list_recipes() if name not in OPTIONS])
def test_a_recipe_is_a_training_that_exists(name):
    config, timms = recipe(name), name.removeprefix("cifar10_small/") in VIT
    assert timms or resolve_name(config.model.name)
    assert bool(find_protocols(config.evaluate.protocols)) == (name not in FIELDS)
    assert config.output == f"runs/{name}"  # so no two write to the same folder
    assert config.precision == ("float32" if name in FIELDS else "bf16")
    assert (config.model.padding is None) == timms  # it has nothing to pad
    assert not (config.compile and "swinv2" in name)  # which would not learn
    assert config.compile == ("swinv2" not in name) or name not in MATRIX + OTHERS


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_says_how_to_run_it_what_it_costs_and_what_to_expect(name):
    comments = about(name)
    assert re.search(rf"^  trueshift train (--config \S+ )?--config {name}$", comments, re.MULTILINE)
    assert re.search(r"^(.*\. )?Hardware, hours: \S", comments, re.MULTILINE)
    assert re.search(r"^Expected: \S", comments, re.MULTILINE)
    assert all(len(line) <= 120 for line in (FOLDER / f"{name}.yaml").read_text().splitlines())
    if name in SMALL:
        assert re.search(r"[\d.]+ on an H200", comments)  # by which the longest run is known


@pytest.mark.parametrize(("name", "twin", "different"), TWINS)
def test_an_adaptive_network_is_trained_as_its_ordinary_twin(name, twin, different):
    assert not apart(name, twin, "model.name", *(different if twin.endswith("_standard") else ()))


@pytest.mark.parametrize("name", FIELDS)
def test_fields_are_learned_by_small_networks(name):
    model = recipe(name).model
    assert model.name == f"{'a_' * ('_a_' in name)}swinv2_mini"
    assert model.arguments == ({"circular": "width"} if "shallow_water" in name else {})


@pytest.mark.parametrize("name", TINY)
def test_tiny_imagenet_is_learned_as_cifar_10(name):
    """Twice the pixels, twice the patch; an adaptive network as its ordinary twin, but for random grids."""
    config, crops = recipe(name), "_crops" in name
    assert (config.data.kind, config.data.img_size) == ("tiny_imagenet_100", 64)
    spot = {"criterion": "spot", "border": "closed"} if name.endswith("_spot") else {}
    assert config.model.arguments == {"patch_size": 4, **spot}
    assert (config.augment.pad_crop, config.augment.cutmix) == ((8, 1.0) if crops else (0, 0.0))
    like = f"cifar10_small/{'shipped/' if crops else ''}swin_mini"
    for part in ("optimizer.lr", "batch_size", "model.drop_path_rate", "augment.flip", "augment.label_smoothing"):
        assert attrgetter(part)(config) == attrgetter(part)(recipe(like))
    if "/a_" in name:
        ordinary = name.replace("/a_", "/").removesuffix("_random_grids").removesuffix("_spot")
        assert not apart(
            name, ordinary, "model.name", "model.grid_drop_rate", *(f"model.arguments.{key}" for key in spot)
        )
        assert config.model.grid_drop_rate == (0.5 if name.endswith(("_random_grids", "_spot")) else None)


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_added_to_a_recipe(name):
    plain = recipe("cifar10/a_swin_tiny_standard")
    both = recipe(name)
    assert both.augment != plain.augment
    assert {**vars(both), "augment": None} == {**vars(plain), "augment": None}


@each_setting
@pytest.mark.parametrize("model", MODELS)
def test_the_matrix_is_what_the_names_and_the_appendix_say(model, data, shifts):
    config, imagenet = recipe(f"{data}/{model}_{shifts}"), data == "imagenet"
    more = {"act_layer": "quick_gelu"} if "cvt" in model else {}
    assert (config.model.name, config.data.kind, config.model.arguments) == (model, data, more)
    assert config.data.crop_pct == 0.875  # 256 to 224, 292 to 256
    assert config.model.padding == ("circular" if shifts == "circular" or model.startswith("a_") else "zeros")
    assert config.schedule.epochs == (300 if imagenet else 100)
    protocol = "circular" if shifts == "circular" else f"{'imagenet' if imagenet else 'cifar'}-standard"
    assert config.evaluate.protocols == (protocol,)
    title = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}[data]
    assert about(f"{data}/{model}_{shifts}").splitlines()[0] == f"{title_of(model)} on {title}, {shifts} shifts."
    assert config.batch_size == ((256 if "mvit" in model else 1024) if imagenet else 48)
    for_one_image = config.optimizer.lr / config.optimizer.lr_batch_size
    assert for_one_image == pytest.approx(2.5e-4 / 256 if "cvt" in model else 1e-3 / 1024)
    assert config.schedule.scale_min_lr != ("cvt" in model)
    assert config.optimizer.weight_decay == 0.05
    augment = config.augment
    assert augment.flip == 0.5
    # "no shift or resizing augmentation is applied"
    assert augment.crop_scale is None
    assert augment.circular_shift == augment.vertical_flip == augment.color_jitter == 0
    if imagenet and shifts == "standard":
        assert augment.auto_augment == ("rand-m10-n6-mstd0.5-inc1" if "mvitv2" in model else "rand-m9-mstd0.5-inc1")
        assert augment.erasing == 0.25
    else:
        assert augment.auto_augment is None
        assert augment.erasing == augment.mixup == augment.cutmix == 0


def test_circularly_shifted_images_are_the_baselines_alone():
    different = ("augment", "evaluate.protocols")  # also erased and flipped images
    assert not apart("cifar10/swin_tiny_da_circular", "cifar10/swin_tiny_circular", *different)
    shifted = [name for name in [*MATRIX, *OTHERS, *SMALL, *TINY] if recipe(name).augment.circular_shift]
    assert shifted == [name for name in [*OTHERS, *SMALL, *TINY] if name.endswith("_da_circular")]


@pytest.mark.parametrize("epochs", [10, 20])
@pytest.mark.parametrize("model", ["cifar10/cvt_13", "cifar10_small/cvt_mini"])
def test_an_adapted_network_starts_from_the_ordinary_one(model, epochs):
    config, first = recipe(f"{model}_adapted_{epochs}_epochs"), recipe(f"{model}_circular")
    assert (config.schedule.epochs, config.model.padding) == (epochs, "circular")
    assert config.model.name == f"a_{first.model.name}"
    assert config.model.start_from == f"{first.output}/final"
    assert config.optimizer.lr <= first.optimizer.lr / (10 if "mini" in model else 1.01)


@pytest.mark.parametrize(("module", "place"), ABLATIONS.items())
def test_an_ablation_fixes_one_place_and_has_no_anchor(module, place):
    config, whole = recipe(f"ablations/a_swin_tiny_no_{module}"), recipe("cifar10/a_swin_tiny_circular")
    assert config.model.arguments == small(f"a_swin_mini_no_{module}").model.arguments
    assert (config.augment, config.optimizer, config.schedule) == (whole.augment, whole.optimizer, whole.schedule)
    choices = create_model("a_swin_mini", **config.model.arguments).config
    assert [each for each in ABLATIONS.values() if not choices.adaptive(each)] == [place]
    assert not choices.anchored


@pytest.mark.parametrize("name", [*ADE20K, *CAMVID])
def test_a_recipe_for_scenes_is_what_the_paper_says(name):
    config = recipe(name)
    folder, _, rest = name.partition("/")
    model, _, shifts = rest.rpartition("_") if folder == "ade20k" else (rest, "", "circular")
    circular, swin = shifts == "circular", "swinv2" not in model
    assert (config.task, config.model.name, config.data.kind) == ("segmentation", model, folder)
    assert config.batch_size == 16
    assert (config.optimizer.name, config.optimizer.lr_batch_size) == ("adamw", 16)
    assert (config.schedule.name, config.schedule.decay_rate, config.schedule.min_lr) == ("poly", 1.0, 0.0)
    assert config.segmentation.decoder["auxiliary"]
    # Swin under circular shifts at a size that its windows divide
    crop, scale = (448, (1792, 448)) if circular and swin else (512, (2048, 512))
    augment = config.segmentation.augment
    assert augment.crop == (crop, crop)
    assert config.segmentation.scale == scale
    assert config.segmentation.fit == ("resize" if circular else "pad")
    assert (augment.flip, augment.photometric, augment.scale_range) == (0.5, True, (0.5, 2.0))
    assert config.model.padding == ("circular" if circular or model.startswith("a_") else "zeros")
    said = f"ADE20K, {shifts} shifts." if folder == "ade20k" else "CamVid, from random weights."
    assert about(name).startswith(f"{title_of(model)} + UperNet on {said}")
    protocols = [protocol.name for protocol in find_protocols(config.evaluate.protocols)]
    if folder == "camvid":
        assert (config.model.pretrained, config.model.start_from) == (False, None)
        assert (config.data.train_split, config.data.test_split) == ("train", "test")
        assert protocols == ["ade20k-circular", "ade20k-standard"]
    else:
        assert (config.schedule.steps, config.schedule.warmup_steps) == (160_000, 1500)
        assert config.sync_batchnorm  # over the paper's four GPUs
        assert config.segmentation.decoder["channels"] == 512
        assert config.optimizer.lr == 6e-5
        assert (config.model.pretrained, config.model.drop_path_rate) == (True, 0.3)
        assert protocols == [f"ade20k-{shifts}"]


def test_accuracies_are_those_of_the_paper():
    tables = {name: table["rows"] for name, table in json.loads(PAPER.read_text())["tables"].items()}

    def printed(table, row, most=None):
        return [number for number, _ in tables[table][row][:most]]

    def promised(*names):
        return [number for name in names for number in expected(name)]

    for model in MODELS:
        cifar = [f"{data}/{model}_{shifts}" for shifts in SHIFTS for data in ("cifar10", "cifar100")]
        assert promised(*cifar) == printed("cifar", title_of(model))
        assert promised(*(f"imagenet/{model}_{shifts}" for shifts in SHIFTS)) == printed("imagenet", title_of(model))
    for model in SEGMENTERS:
        assert promised(*(f"ade20k/{model}_{shifts}" for shifts in SHIFTS)) == printed("ade20k", title_of(model))
    for name, table, row in (
        ("cifar10/swin_tiny_da_circular", "erased", "Swin-T DA"),
        ("cifar10/cvt_13_adapted_10_epochs", "adapt", "CvT-13 + Adapt (10 epoch Fine-tuning)"),
        ("cifar10/cvt_13_adapted_20_epochs", "adapt", "CvT-13 + Adapt (20 epoch Fine-tuning)"),
        ("ablations/a_swin_tiny_no_a_token", "ablation", "(i) No A-token"),
        ("ablations/a_swin_tiny_no_a_wsa", "ablation", "(ii) No A-WSA"),
        ("ablations/a_swin_tiny_no_a_pmerge", "ablation", "(iii) No A-PMerge"),
    ):
        assert promised(name) == printed(table, row, 2), name


@pytest.mark.parametrize("name", SMALL)
def test_images_stay_as_they_are_and_little_interrupts(name):
    config, timms = recipe(name), name.removeprefix("cifar10_small/") in VIT
    assert timms or input_size(config.model.name) == (3, 32, 32)
    assert (config.data.kind, config.data.crop_pct, config.data.img_size) == ("cifar10", 1.0, 32 if timms else None)
    assert (config.compile, config.log.tensorboard, config.checkpoint.every_steps) == (False, False, 0)
    assert config.evaluate.every_epochs >= 5
    assert config.augment.label_smoothing == 0.1
    assert (config.augment.auto_augment is None) != bool(re.search("_long|cvt_mini_(300_epochs|distilled)", name))
    assert 0 < config.optimizer.lr * config.batch_size / config.optimizer.lr_batch_size <= 2e-3


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_learned_as_in_the_paper_but_for_the_batch(name):
    config, augment = small(name), small(name).augment
    assert (config.schedule.epochs, config.schedule.name, config.batch_size) == (100, "cosine", 512)
    assert (augment.flip, augment.crop_scale) == (0.5, None)
    assert augment.pad_crop == augment.mixup == augment.cutmix == augment.erasing == 0
    standard = name.endswith("_standard")  # only what the shifts change is trained twice
    assert config.model.padding == ("zeros" if standard else "circular")
    assert config.evaluate.protocols == (("cifar-standard",) if standard else ("circular", "cifar-standard"))
    if name in MAIN:
        assert (config.model.arguments, config.model.grid_drop_rate) == ({}, None)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_weights_are_trained_at_least_as_long_and_on_more(name):
    config = small(name)
    assert (config.schedule.epochs, config.batch_size) == (200 if "mvitv2" in name else 100, 512)
    assert (config.augment.pad_crop, config.augment.cutmix) == (4, 1.0)
    assert config.model.padding == "circular"
    assert config.evaluate.protocols == ("circular", "cifar-standard")


def test_the_small_vit_is_trained_as_the_others():
    """What differs is the network, and where there is one, the change that the name says."""
    for folder in ("cifar10_small", "cifar10_small/shipped"):
        assert not apart(f"{folder}/vit_mini", f"{folder}/swin_mini", "model", "data.img_size")
    assert not apart("cifar10_small/vit_mini_da_circular", "cifar10_small/vit_mini", "augment.circular_shift")
    for ordinary, adaptive in (("vit_mini", "a_vit_mini_random_grids"), ("shipped/vit_mini", "shipped/a_vit_mini")):
        plain, adapted = small(ordinary).model, small(adaptive).model
        assert adapted.arguments == {**plain.arguments, "criterion": "max_norm"}
        assert not apart(f"cifar10_small/{adaptive}", f"cifar10_small/{ordinary}", "model")


@pytest.mark.parametrize("name", FINE_TUNED)
def test_shipped_weights_are_fine_tuned_on_what_they_were_trained_on(name):
    ordinary, how = re.fullmatch(r"(.+)_(adapted|anchored|spot)_20_epochs", name).groups()
    config = small(name)
    assert config.model.start_from == f"runs/cifar10_small/{ordinary}/final"
    assert (config.schedule.epochs, config.model.grid_drop_rate) == (20, None if how == "anchored" else 0.5)
    arguments = {"adapted": {}, "spot": {"criterion": "spot"}, "anchored": {"anchor": True}}[how]
    assert config.model.arguments == arguments | ({} if how == "anchored" else {"border": "closed"})
    different = ("model", "schedule", "optimizer.lr", *(("augment.cutmix",) if "mvitv2_mini_anchored" in name else ()))
    assert not apart(f"cifar10_small/{name}", f"cifar10_small/{ordinary}", *different)


@pytest.mark.parametrize(("name", "like", "changes"), DIFFERENT)
def test_a_recipe_differs_in_what_its_name_says_alone(name, like, changes):
    assert apart(name, like, *(["evaluate"] if name in READINGS else [])) == changes
