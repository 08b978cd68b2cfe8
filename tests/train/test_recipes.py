"""The recipes of the paper: all of them there, as the paper's text and appendix say, and each says what it is for."""

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from trueshift import create_model
from trueshift.eval.protocols.registry import find_protocols
from trueshift.models.registry import resolve_name
from trueshift.train import TrainConfig, list_recipes, parse_arguments
from trueshift.train.recipe import FOLDER, about

FAMILIES = ("swin_tiny", "swinv2_tiny", "cvt_13", "mvitv2_tiny")
MODELS = [prefix + family for family in FAMILIES for prefix in ("", "a_")]
SETTINGS = list(product(("cifar10", "cifar100", "imagenet"), ("circular", "standard")))
MATRIX = [f"{data}/{model}_{shifts}" for data, shifts in SETTINGS for model in MODELS]
each_setting = pytest.mark.parametrize(("data", "shifts"), SETTINGS)
ABLATIONS = {"a_token": "tokenize", "a_wsa": "align", "a_pmerge": "merge"}
OTHERS = [
    "cifar10/swin_tiny_da_circular",
    "cifar10/cvt_13_adapted_10_epochs",
    "cifar10/cvt_13_adapted_20_epochs",
    *(f"ablations/a_swin_tiny_no_{module}" for module in ABLATIONS),
]
SEGMENTERS = [prefix + family for family in FAMILIES[:2] for prefix in ("", "a_")]
ADE20K = [f"ade20k/{model}_{shifts}" for model in SEGMENTERS for shifts in ("circular", "standard")]
CAMVID = [f"camvid/{model}" for model in SEGMENTERS]
SMALL = [name for name in list_recipes() if name.startswith("cifar10_small/")]  # see test_small_recipes.py
OPTIONS = ["options/mvitv2_augmentation", "options/swin_augmentation"]
TITLES = {"swin_tiny": "Swin-T", "swinv2_tiny": "SwinV2-T", "cvt_13": "CvT-13", "mvitv2_tiny": "MViTv2-T"}
# the paper's table for CIFAR-10 under circular shifts: top-1 and consistency
CIFAR10_CIRCULAR = {
    "swin_tiny": (90.15, 83.30),
    "a_swin_tiny": (93.39, 99.99),
    "swinv2_tiny": (89.08, 89.16),
    "a_swinv2_tiny": (91.64, 99.99),
    "cvt_13": (90.06, 75.80),
    "a_cvt_13": (93.87, 100),
    "mvitv2_tiny": (96.00, 86.55),
    "a_mvitv2_tiny": (96.41, 100),
}
ELSEWHERE = {
    "cifar10/swin_tiny_da_circular": (92.32, 94.3),
    "cifar10/cvt_13_adapted_10_epochs": (91.72, 100),
    "cifar10/cvt_13_adapted_20_epochs": (92.35, 100),
    "ablations/a_swin_tiny_no_a_token": (93.66, 96.29),
    "ablations/a_swin_tiny_no_a_wsa": (93.24, 95.62),
    "ablations/a_swin_tiny_no_a_pmerge": (91.67, 94.62),
}
# the paper's table of semantic segmentation: mIoU and mASCC under circular shifts, mIoU and mASSC under standard ones
SEGMENTATION = {
    "swin_tiny": (42.93, 87.32, 44.2, 93.37),
    "a_swin_tiny": (43.44, 100, 44.43, 93.48),
    "swinv2_tiny": (43.86, 88.16, 44.26, 93.23),
    "a_swinv2_tiny": (44.42, 100, 46.11, 93.59),
}
PAPER = Path(__file__).parents[3] / "shared" / "paper.tex"


@cache
def parsed(name):
    return parse_arguments(["--config", name]).config


def expected(name):
    """Top-1 and consistency that a recipe promises."""
    (line,) = (line for line in about(name).splitlines() if line.startswith("Expected:"))
    top1, consistency = re.match(r"Expected: Top-1 ([\d.]+)(?: ± [\d.]+)?, [CS]-Cons\. ([\d.]+)", line).groups()
    return float(top1), float(consistency)


def expected_of_pixels(model):
    """mIoU and consistency that the recipes for ADE20K promise, circular shifts first."""
    found = []
    for shifts, consistency in (("circular", "mASCC"), ("standard", "mASSC")):
        told = about(f"ade20k/{model}_{shifts}")
        found += re.search(rf"^Expected: mIoU ([\d.]+), {consistency} ([\d.]+) \(paper", told, re.MULTILINE).groups()
    return tuple(map(float, found))


def table(label):
    """The rows of one of the paper's tables: a model and its numbers."""
    text = PAPER.read_text()
    rows = text[: text.index(rf"\label{{tab:{label}}}")].rpartition(r"\midrule")[2].partition(r"\bottomrule")[0]
    for row in rows.split(r"\\"):
        plain = re.sub(r"\\(text)?bf|\(Ours\)|[{}$]|\\showrowcolors", " ", row)
        name, *cells = plain.split("&")
        if cells:
            family = {title: model for model, title in TITLES.items()}[name.strip().removeprefix("A-")]
            numbers = [float(re.match(r"\s*(\d+(?:\.\d+)?)", cell)[1]) for cell in cells]
            yield ("a_" if "A-" in name else "") + family, numbers


def test_the_whole_matrix_is_there():
    assert (len(MATRIX), len(ADE20K), len(CAMVID)) == (48, 8, 4)
    assert list_recipes() == sorted([*MATRIX, *OTHERS, *ADE20K, *CAMVID, *SMALL, *OPTIONS])
    assert not any("_bases" in name for name in list_recipes())


@pytest.mark.parametrize("name", [*MATRIX, *OTHERS])
def test_a_recipe_is_a_training_that_exists(name):
    config = parsed(name)
    assert isinstance(config, TrainConfig)
    assert resolve_name(config.model.name)
    assert find_protocols(list(config.evaluate.protocols))
    assert config.output == f"runs/{name}"
    assert config.model.padding is not None
    assert (config.precision, config.compile) == ("bf16", "swinv2" not in name)  # which would not learn
    assert config.data.crop_pct == 0.875  # 256 to 224, 292 to 256


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_added_to_a_recipe(name):
    plain = parsed("cifar10/a_swin_tiny_standard")
    both = parse_arguments(["--config", "cifar10/a_swin_tiny_standard", "--config", name]).config
    assert both.augment != plain.augment
    assert {**vars(both), "augment": None} == {**vars(plain), "augment": None}


@pytest.mark.parametrize(
    "folder", ["cifar10", "cifar10_small", "cifar100", "imagenet", "ablations", "options", "ade20k", "camvid"]
)
def test_a_recipe_says_how_to_run_it_what_it_costs_and_what_to_expect(folder):
    names = [name for name in list_recipes() if name.startswith(f"{folder}/")]
    assert names
    for name in names:
        told = about(name)
        assert re.search(rf"^  trueshift train (--config \S+ )?--config {name}$", told, re.MULTILINE), name
        assert re.search(r"^(.*\. )?Hardware, hours: \S", told, re.MULTILINE), name
        assert re.search(r"^Expected: \S", told, re.MULTILINE), name
        assert all(len(line) <= 120 for line in (FOLDER / f"{name}.yaml").read_text().splitlines()), name


@each_setting
@pytest.mark.parametrize("family", FAMILIES)
def test_the_matrix_is_what_the_names_say(family, data, shifts):
    title = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "imagenet": "ImageNet"}[data]
    for model in (family, f"a_{family}"):
        config = parsed(f"{data}/{model}_{shifts}")
        assert config.model.name == model
        assert config.data.kind == data
        assert config.model.padding == ("circular" if shifts == "circular" or model.startswith("a_") else "zeros")
        assert config.schedule.epochs == (300 if data == "imagenet" else 100)
        protocol = "circular" if shifts == "circular" else f"{'imagenet' if data == 'imagenet' else 'cifar'}-standard"
        assert config.evaluate.protocols == (protocol,)
        assert not config.model.arguments
        short = TITLES[family] if model == family else f"A-{TITLES[family]}"
        assert about(f"{data}/{model}_{shifts}").splitlines()[0] == f"{short} on {title}, {shifts} shifts."


@each_setting
def test_pictures_are_changed_as_in_the_appendix(data, shifts):
    for model in MODELS:
        augment = parsed(f"{data}/{model}_{shifts}").augment
        assert augment.flip == 0.5
        # "no shift or resizing augmentation is applied"
        assert augment.crop_scale is None
        assert not augment.circular_shift
        assert not augment.vertical_flip
        assert not augment.color_jitter
        if (data, shifts) == ("imagenet", "standard"):
            mvit = "mvitv2" in model
            assert augment.auto_augment == ("rand-m10-n6-mstd0.5-inc1" if mvit else "rand-m9-mstd0.5-inc1")
            assert augment.erasing == 0.25
        else:
            assert augment.auto_augment is None
            assert augment.erasing == augment.mixup == augment.cutmix == 0


@each_setting
def test_an_adaptive_network_is_trained_as_its_ordinary_twin(data, shifts):
    for family in FAMILIES:
        ordinary, adaptive = (parsed(f"{data}/{model}_{shifts}") for model in (family, f"a_{family}"))
        for part in ("data", "augment", "optimizer", "schedule", "evaluate", "batch_size"):
            assert getattr(ordinary, part) == getattr(adaptive, part)
        assert ordinary.model.drop_path_rate == adaptive.model.drop_path_rate


@each_setting
def test_batches_and_learning_rates(data, shifts):
    for model in MODELS:
        config = parsed(f"{data}/{model}_{shifts}")
        assert config.batch_size == ((256 if "mvit" in model else 1024) if data == "imagenet" else 48)
        for_one_image = config.optimizer.lr / config.optimizer.lr_batch_size
        assert for_one_image == pytest.approx(2.5e-4 / 128 if "cvt" in model else 1e-3 / 1024)
        assert config.optimizer.weight_decay == 0.05


def test_circularly_shifted_images_are_the_baselines_alone():
    config, plain = parsed("cifar10/swin_tiny_da_circular"), parsed("cifar10/swin_tiny_circular")
    assert config.augment.circular_shift
    assert (config.model, config.optimizer, config.schedule) == (plain.model, plain.optimizer, plain.schedule)
    assert [name for name in [*MATRIX, *OTHERS] if parsed(name).augment.circular_shift] == [
        "cifar10/swin_tiny_da_circular"
    ]


@pytest.mark.parametrize("epochs", [10, 20])
def test_an_adapted_network_starts_from_the_ordinary_one(epochs):
    config, first = parsed(f"cifar10/cvt_13_adapted_{epochs}_epochs"), parsed("cifar10/cvt_13_circular")
    assert config.schedule.epochs == epochs
    assert config.model.name == f"a_{first.model.name}"
    assert config.model.start_from == f"{first.output}/final"
    assert config.model.padding == "circular"
    assert config.optimizer.lr < first.optimizer.lr


@pytest.mark.parametrize(("module", "place"), ABLATIONS.items())
def test_an_ablation_fixes_one_place_and_has_no_anchor(module, place):
    config = parsed(f"ablations/a_swin_tiny_no_{module}")
    whole = parsed("cifar10/a_swin_tiny_circular")
    assert config.model.arguments == {"criterion": {place: "fixed"}, "anchor": False}
    assert (config.augment, config.optimizer, config.schedule) == (whole.augment, whole.optimizer, whole.schedule)
    small = create_model("a_swin_mini", **config.model.arguments).config.choices
    assert [each for each in ("tokenize", "align", "merge") if not small.adaptive(each)] == [place]
    assert not small.anchored


@pytest.mark.parametrize("name", [name for name in [*ADE20K, *CAMVID, *SMALL] if "swinv2" in name])
def test_swinv2_is_not_compiled_for_scenes_and_small_images_either(name):
    assert not parsed(name).compile


def test_no_two_recipes_write_to_the_same_folder():
    outputs = [parsed(name).output for name in [*MATRIX, *OTHERS, *ADE20K, *CAMVID, *SMALL]]
    assert len(set(outputs)) == len(outputs)


# segmentation


@pytest.mark.parametrize("name", [*ADE20K, *CAMVID])
def test_a_recipe_for_scenes_is_what_the_paper_says(name):
    config = parsed(name)
    folder, _, rest = name.partition("/")
    model, _, shifts = rest.rpartition("_") if folder == "ade20k" else (rest, "", "circular")
    circular, swin = shifts == "circular", "swinv2" not in model
    assert (config.task, config.model.name, config.data.kind) == ("segmentation", model, folder)
    assert config.output == f"runs/{name}"
    assert config.batch_size == 16
    assert config.precision == "bf16"
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
    title = TITLES[model.removeprefix("a_")]
    title = f"{title if model in TITLES else f'A-{title}'} + UperNet on {'ADE20K' if folder == 'ade20k' else 'CamVid'}"
    assert about(name).startswith(f"{title}, {f'{shifts} shifts.' if folder == 'ade20k' else 'from random weights.'}")


@pytest.mark.parametrize("name", ADE20K)
def test_ade20k_is_learned_for_as_long_as_in_the_paper(name):
    config = parsed(name)
    assert config.schedule.steps == 160_000
    assert config.schedule.warmup_steps == 1500
    assert config.sync_batchnorm  # over the paper's four GPUs
    assert config.segmentation.decoder["channels"] == 512
    assert config.optimizer.lr == 6e-5
    assert (config.model.pretrained, config.model.drop_path_rate) == (True, 0.3)
    assert config.evaluate.protocols == (f"ade20k-{name.rpartition('_')[2]}",)


@pytest.mark.parametrize("name", CAMVID)
def test_camvid_is_learned_from_nothing_and_measured_both_ways(name):
    config = parsed(name)
    assert not config.model.pretrained
    assert config.model.start_from is None
    assert (config.data.train_split, config.data.test_split) == ("train", "test")
    assert [protocol.name for protocol in find_protocols(config.evaluate.protocols)] == [
        "ade20k-circular",
        "ade20k-standard",
    ]


def test_an_adaptive_segmenter_is_trained_as_its_ordinary_twin():
    for name in [name for name in [*ADE20K, *CAMVID] if "/a_" in name]:
        ordinary, adaptive = (parsed(each).to_dict() for each in (name.replace("/a_", "/"), name))
        for config in (ordinary, adaptive):
            del config["output"], config["model"]["name"]
        if name.endswith("_standard"):  # zeros, as usual
            del ordinary["model"]["padding"], adaptive["model"]["padding"]
        assert ordinary == adaptive


def test_accuracies_of_segmentation_are_those_of_the_paper():
    assert {model: expected_of_pixels(model) for model in SEGMENTERS} == SEGMENTATION


@pytest.mark.skipif(not PAPER.is_file(), reason=f"needs the paper in {PAPER}")
def test_the_table_of_segmentation_is_that_of_the_paper():
    assert {model: tuple(numbers) for model, numbers in table("seg_acc_combined")} == SEGMENTATION


# accuracies


def test_accuracies_are_those_of_the_paper():
    assert {model: expected(f"cifar10/{model}_circular") for model in MODELS} == CIFAR10_CIRCULAR
    assert {name: expected(name) for name in ELSEWHERE} == ELSEWHERE


@pytest.mark.skipif(not PAPER.is_file(), reason=f"needs the paper in {PAPER}")
def test_all_tables_are_those_of_the_paper():
    for label, data in (("class_cifar", ("cifar10", "cifar100")), ("class_imagenet", ("imagenet",))):
        rows = list(table(label))
        assert sorted(model for model, _ in rows) == sorted(MODELS)
        for model, numbers in rows:
            promised = [
                number
                for shifts in ("circular", "standard")
                for each in data
                for number in expected(f"{each}/{model}_{shifts}")
            ]
            assert promised == numbers, (label, model)
