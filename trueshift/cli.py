"""The command line: ``trueshift audit``, ``eval``, ``playground``, ``segment``, ``train``, ``recipes``, ..."""

import sys
import webbrowser
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from rich.console import Console

from . import __version__
from . import eval as evaluation  # its names are imported when they are used
from .commands import command_line
from .eval.options import AuditOptions, EvalOptions, inference_device
from .recipes import about, find_recipe, list_recipes
from .utils.checks import first_line
from .utils.files import json_text, writable_folder, write_whole

# Commands import what they need themselves, so that help comes at once.

INCOMPLETE = 1  # some images were not labelled
INTERRUPTED = 130  # by Ctrl-C, as shells expect
DIVERGED = 3


def audit(
    model: str,
    *,
    data: str | None = None,
    against: str | None = None,
    protocols: list[str] | None = None,
    steps: list[int] | None = None,
    output: Path = Path("audit"),
    split: str = "test",
    options: AuditOptions = AuditOptions(device="auto"),  # noqa: B008
) -> int:
    """How often does a model change its answer when the image moves? A table, data, figures and a page to look at.

    Args:
        model: a name of trueshift's or timm's, a transformers repository or folder, a folder of save_pretrained, a
            checkpoint (with --architecture), an .onnx file, or package.module:factory.
        data: an image, a folder of images, CIFAR files, tar shards, parquet files or an .npz; for a
            segmentation model also images with masks (ADE20K, Cityscapes, CamVid, or a folder with images, masks and
            classes.txt). By default what comes with the package: 'sample', 400 test images of CIFAR-10, up to 64
            pixels, and 'sample-photos', six photographs, above. For a FieldNet, fields as for training.
        against: 'adapted' or 'canonical' for the model's own shift-invariant twin, 'steady' for a moving camera, or
            another model.
        protocols: names of protocols or suites; by default circular and standard shifts, magnitudes, crops and a path.
        steps: lengths of rollouts of a FieldNet; by default 1, 10 and 50, as far as the trajectories go.
        output: folder for audit.json, images.csv, figures and report.html.
        split: train, val or test, where the data has several.
    """
    from .eval.fields import is_field_net
    from .eval.runner.tasks import bundled_data, open_source
    from .report.console import print_audit, progress_bars
    from .report.page import write_audit
    from .utils.distributed import sole_run

    if is_field_net(model):
        names = [model, *([against] if against else [])]
        return _measure_fields(names, data, protocols, steps, output, split, options)
    _refuse_steps(steps)
    console = Console()
    folder = writable_folder(output)
    options = replace(options, device=inference_device(options.device))
    asked = evaluation.find_protocols(protocols) if protocols else None
    with sole_run(folder):
        models = [evaluation.load_eval_model(model, options)]
        source = open_source(data or bundled_data(models[0]), split, models[0].dense)
        if against in ("adapted", "canonical", "steady"):
            models.append(getattr(evaluation, f"{against}_twin")(models[0], options))
        elif against:
            models.append(evaluation.load_eval_model(against, options))
        with progress_bars(console) as progress:
            result = evaluation.run_audit(models, source, options, asked, progress)
        _refuse_nothing(result["data"], result["data"]["asked"])
        if result["partial"] and not result["data"]["images"]:
            raise KeyboardInterrupt  # an earlier result stays
        page = write_audit(result, source, folder)
    print_audit(console, result)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)
    return INTERRUPTED if result["partial"] else 0


def _refuse_nothing(data: dict[str, Any], asked: int) -> None:
    """Refuse to write a result of no image over an earlier one."""
    if len(data["skipped"]) == asked:
        first = data["skipped"][0]
        raise ValueError(
            f"none of the {asked} images of {data['title']} could be measured, e.g. {first['name']} "
            f"({first['reason']}): needs at least one"
        )


def evaluate(
    model: str,
    *,
    data: str,
    protocols: list[str] | None = None,
    steps: list[int] | None = None,
    output: Path = Path("eval"),
    split: str = "test",
    options: EvalOptions = EvalOptions(device="auto"),  # noqa: B008
) -> int:
    """The paper's numbers for a model on a data set. Processes of torchrun share the images; started again, it resumes.

    Args:
        model: as for audit.
        data: a folder of images with a folder for each class, CIFAR files, tar shards, parquet files, an
            .npz, or 'sample'; for a segmentation model images with masks, as for audit; for a FieldNet a file or
            folder of fields, as for training.
        protocols: names of protocols or suites: cifar, imagenet, ranges, magnitude, erased, flips, motion; ade20k and
            pixel-motion for segmentation. Needed for images; a FieldNet has none.
        steps: as for audit.
        output: folder for eval.json, and for the answers so far, from which it resumes when started again.
        split: train, val or test, where the data has several.
    """
    from .eval.fields import is_field_net
    from .eval.runner.tasks import open_source
    from .report.console import print_evaluation, progress_bars
    from .utils.distributed import joined_processes, sole_run

    if is_field_net(model):
        return _measure_fields([model], data, protocols, steps, output, split, options)
    _refuse_steps(steps)
    if not protocols:
        raise ValueError("the following arguments are required: --protocols")
    folder = writable_folder(output)
    asked = evaluation.find_protocols(protocols)
    with joined_processes(inference_device(options.device)) as (device, rank), sole_run(folder):
        console = Console(quiet=rank != 0)
        options = replace(options, device=device)
        found = evaluation.load_eval_model(model, options)
        source = open_source(data, split, found.dense)
        try:
            with progress_bars(console) as progress:
                result = evaluation.run_evaluation(found, source, asked, options, folder, progress)
        except KeyboardInterrupt:
            console.print(f"Interrupted. The answers so far are in {folder}; the same command resumes.")
            return INTERRUPTED
        _refuse_nothing(result["data"], result["data"]["images"])
        if rank == 0:
            write_whole(folder / "eval.json", json_text(result))
            print_evaluation(console, result)
    return 0


def _refuse_steps(steps: list[int] | None) -> None:
    if steps:
        raise ValueError(f"--steps {' '.join(map(str, steps))}: for a FieldNet, whose rollouts have lengths")


def _measure_fields(
    models: list[str],
    data: str | None,
    protocols: list[str] | None,
    steps: list[int] | None,
    output: Path,
    split: str,
    options: EvalOptions,
) -> int:
    """Evaluation and audit of networks for fields; an audit has figures and a page too."""
    from .eval.fields import STEPS, example_rollouts
    from .report.console import print_fields
    from .report.fields import write_field_audit
    from .utils.distributed import sole_run

    if data is None:
        raise ValueError("a network for fields comes without data: needs --data FIELDS")
    if protocols:
        raise ValueError(f"--protocols {' '.join(protocols)}: for images; a network for fields needs none")
    console, folder = Console(), writable_folder(output)
    options = replace(options, device=inference_device(options.device))
    with sole_run(folder):
        result = evaluation.run_field_evaluation(models, data, split, options, steps or STEPS)
        if isinstance(options, AuditOptions):
            page = write_field_audit(result, example_rollouts(result, models, data), folder)
        else:
            facts = dict(result["models"][0])
            head = {key: value for key, value in result.items() if key != "models"}
            write_whole(folder / "eval.json", json_text({**head, "measured": facts.pop("measured"), "model": facts}))
    print_fields(console, result)
    if isinstance(options, AuditOptions):
        console.print(f"Report: {page}", markup=False, highlight=False, soft_wrap=True)
    return 0


def segment(
    images: list[str],
    *,
    model: str,
    output: Path = Path("segmented"),
    overwrite: bool = False,
    sliding: bool = False,
    window: tuple[int, int] | None = None,
    stride: tuple[int, int] | None = None,
    device: str = "auto",
    precision: str = "float32",
) -> int:
    """Which class does each pixel of an image belong to? A label file and an overlay for each.

    Args:
        images: image files, or folders of them.
        model: a folder that a segmentation network was saved to, or another segmentation model, as for audit.
        output: folder for NAME_mask.png, which has the numbers of classes, and NAME_overlay.png.
        overwrite: replace files that are there already.
        sliding: show the model windows of each image, as it was trained with crops, instead of the whole.
        window: their size; by default the crop of the training.
        stride: from one window to the next; by default two thirds of the window.
        device: cpu, cuda, cuda:1, or auto.
        precision: float32, or bf16 for autocast.
    """
    from .segment_command import PixelLabels, check_free, find_images, segment_files, usual_sliding

    console = Console()
    device = inference_device(device)
    folder = writable_folder(output)
    files = find_images(images, folder)
    if not overwrite:
        check_free(files, folder)
    if (window or stride) and not sliding:
        raise ValueError("--window and --stride are for windows that slide: needs --sliding as well")
    found = evaluation.load_eval_model(model, EvalOptions(device=device, precision=precision))
    windows = usual_sliding(found, window, stride) if sliding else None
    unreadable = 0
    for done in segment_files(files, PixelLabels(found, device, windows), folder):
        if isinstance(done, str):
            console.print(done, markup=False, highlight=False, soft_wrap=True)
        else:
            unreadable += 1
            print(f"trueshift: {done.name} could not be labelled: {done.reason}", file=sys.stderr)
    count = len(files) - unreadable
    console.print(f"{count} of {len(files)} images: {folder}", markup=False, highlight=False, soft_wrap=True)
    return INCOMPLETE if unreadable else 0


def playground(*, family: str = "swin", output: Path = Path("playground.html"), no_open: bool = False) -> int:
    """Drag an image, and an ordinary and an adaptive network answer live: a page for the browser, without a server.

    Args:
        family: swin, swinv2, cvt or mvitv2.
        output: one file that ends in .html; or a folder, for a site in which visitors choose among the families.
        no_open: only write it.
    """
    from .playground import write_playground

    page = write_playground(output, family).resolve()
    Console().print(f"Playground: {page}", markup=False, highlight=False, soft_wrap=True)
    if not no_open:
        webbrowser.open(page.as_uri())
    return 0


def train(*arguments: str) -> int:
    """Train a network by a recipe, from one GPU to many nodes; started again, it resumes."""
    if not set(arguments) - {"--dry-run", "--dry_run"}:
        raise ValueError(
            "train needs a recipe, e.g. --config cifar10/a_swin_tiny_circular: `trueshift recipes` lists them all"
        )
    asked = _training("cli").parse_arguments(arguments)
    if asked.print_config:
        print(asked.text, end="")
        return 0
    if asked.dry_run:
        return _training("dry_run").dry_run(asked.config)
    training = _training("trainer")
    try:
        return training.train(asked.config)
    except training.Diverged as error:
        print(f"trueshift: {error}", file=sys.stderr)
        return DIVERGED


def _training(module: str) -> Any:
    """A module of the room for training, which needs optional dependencies."""
    try:
        return import_module(f".train.{module}", __package__)
    except ModuleNotFoundError as error:
        raise ImportError(f"training needs more than the core ({error}): pip install 'trueshift[train]'") from error


def recipes(name: str = "") -> int:
    """List the recipes for training, or show one.

    Args:
        name: a recipe, or a part of the names to list.
    """
    console = Console()
    if name in list_recipes():
        console.print(find_recipe(name).read_text(), markup=False, highlight=False, soft_wrap=True, end="")
        return 0
    found = [each for each in list_recipes() if name in each]
    if not found:
        find_recipe(name)  # suggests a name
    for each in found:
        console.print(f"{each:44} {about(each).splitlines()[0]}", markup=False, highlight=False, soft_wrap=True)
    return 0


def download(name: str, *, folder: Path) -> int:
    """Fetch a data set from where it is published, and check it.

    Args:
        name: cifar10 or cifar100.
        folder: where to put it.
    """
    from .data import download as download_data

    path = download_data(name, folder)
    Console().print(f"{name} is in {path}", highlight=False, soft_wrap=True)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command; errors that a user can fix are reported in one line, without a traceback."""
    purpose = "Vision Transformers whose output does not change when the image moves, and how much that of others does."
    commands: dict[str, Callable[..., int]] = {
        "audit": audit,
        "eval": evaluate,
        "playground": playground,
        "segment": segment,
        "train": train,
        "recipes": recipes,
        "download": download,
    }
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # for screens that lack a letter
    parser = command_line("trueshift", purpose, commands)
    parser.add_argument("--version", action="version", version=f"trueshift {__version__}")
    given = parser.parse_args(arguments)
    try:
        return given.run(given)
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"trueshift: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        from torch import OutOfMemoryError

        if not isinstance(error, (OutOfMemoryError, evaluation.WeightsUnavailable)):
            raise
        smaller = isinstance(error, OutOfMemoryError)
        print(f"trueshift: {f'{first_line(error)}: needs a smaller batch size' if smaller else error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before there was any result
        print("trueshift: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
