"""The recipes of the paper: all of them there, as the paper's text and appendix say, and each says what it is for."""

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from trueshift import create_model
from trueshift.eval.protocols import find_protocols
from trueshift.models.registry import resolve_name
from trueshift.train import TrainConfig, arguments, list_recipes, parse_arguments
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
PAPER = Path(__file__).parents[3] / "shared" / "paper.tex"


@pytest.fixture(scope="module", autouse=True)
def _one_parser():
    """Making a parser takes longer than reading a recipe."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arguments, "_parser", cache(arguments._parser))
        yield


@cache
def parsed(name):
    return parse_arguments(["--config", name]).config


def expected(name):
    """Top-1 and consistency that a recipe promises."""
    (line,) = (line for line in about(name).splitlines() if line.startswith("Expected:"))
    top1, consistency = re.match(r"Expected: Top-1 ([\d.]+)(?: ± [\d.]+)?, [CS]-Cons\. ([\d.]+)", line).groups()
    return float(top1), float(consistency)


def test_the_whole_matrix_is_there():
    assert len(MATRIX) == 48
    assert list_recipes() == sorted([*MATRIX, *OTHERS, *OPTIONS])
    assert not any("_bases" in name for name in list_recipes())


@pytest.mark.parametrize("name", [*MATRIX, *OTHERS])
def test_a_recipe_is_a_training_that_exists(name):
    config = parsed(name)
    assert isinstance(config, TrainConfig)
    assert resolve_name(config.model.name)
    assert find_protocols(list(config.evaluate.protocols))
    assert config.output == f"runs/{name}"
    assert config.model.padding is not None
    assert (config.precision, config.compile) == ("bf16", True)
    assert config.data.crop_pct == 0.875  # 256 to 224, 292 to 256


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_is_added_to_a_recipe(name):
    plain = parsed("cifar10/a_swin_tiny_standard")
    both = parse_arguments(["--config", "cifar10/a_swin_tiny_standard", "--config", name]).config
    assert both.augment != plain.augment
    assert {**vars(both), "augment": None} == {**vars(plain), "augment": None}


@pytest.mark.parametrize("folder", ["cifar10", "cifar100", "imagenet", "ablations", "options"])
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


def test_no_two_recipes_write_to_the_same_folder():
    outputs = [parsed(name).output for name in [*MATRIX, *OTHERS]]
    assert len(set(outputs)) == len(outputs)


def test_accuracies_are_those_of_the_paper():
    assert {model: expected(f"cifar10/{model}_circular") for model in MODELS} == CIFAR10_CIRCULAR
    assert {name: expected(name) for name in ELSEWHERE} == ELSEWHERE


@pytest.mark.skipif(not PAPER.is_file(), reason=f"needs the paper in {PAPER}")
def test_all_tables_are_those_of_the_paper():
    text = PAPER.read_text()
    for label, data in (("class_cifar", ("cifar10", "cifar100")), ("class_imagenet", ("imagenet",))):
        table = text[: text.index(rf"\label{{tab:{label}}}")].rpartition(r"\midrule")[2]
        for row in table.split(r"\\")[:8]:
            name, *cells = re.sub(r"\\bf|\(Ours\)|[{}$]|\\showrowcolors", " ", row).split("&")
            numbers = [float(re.match(r"\s*(\d+(?:\.\d+)?)", cell)[1]) for cell in cells]
            model = {title: model for model, title in TITLES.items()}[name.strip().removeprefix("A-")]
            model = ("a_" if "A-" in name else "") + model
            promised = [
                number
                for shifts in ("circular", "standard")
                for each in data
                for number in expected(f"{each}/{model}_{shifts}")
            ]
            assert promised == numbers, (label, model)
