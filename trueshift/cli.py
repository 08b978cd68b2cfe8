"""The command line: ``trueshift audit``, ``eval``, ``segment``, ``train``, ``recipes`` and ``download``."""

import sys
from collections.abc import Callable
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from rich.console import Console

from .commands import command_line
from .data import Source, open_data
from .data import download as download_data
from .eval.audit.run import run_audit
from .eval.models.eval_model import Request, Subject, adapted_twin, canonical_twin
from .eval.models.load import WeightsUnavailable, load_subject
from .eval.protocols.registry import find_protocols
from .eval.runner.evaluate import run_evaluation
from .eval.runner.settings import AuditSettings, EvalSettings, inference_device, usual_batch_size
from .eval.scene_source import open_scenes_or_pictures
from .report.console import print_audit, print_evaluation, progress_bars
from .report.output import write_audit
from .segment_command import PixelLabels, Segmented, check_free, find_pictures, segment_files, usual_sliding
from .utils.distributed import joined_processes, sole_run
from .utils.files import json_text, writable_folder, write_whole

INCOMPLETE = 1  # something could not be read, all else is done
INTERRUPTED = 130  # what a shell expects of a program ended by Ctrl-C
DIVERGED = 3


def audit(
    model: str,
    *,
    data: str = "sample",
    against: str | None = None,
    limit: int = 64,
    shifts: int = 4,
    protocols: list[str] | None = None,
    examples: int = 4,
    plane: int = 16,
    output: Path = Path("audit"),
    device: str = "auto",
    precision: str = "float32",
    batch_size: int | None = None,
    seed: int = 0,
    split: str = "test",
    random_weights: bool = False,
    architecture: str | None = None,
    img_size: int | None = None,
    crop_pct: float | None = None,
    mean: tuple[float, float, float] | None = None,
    std: tuple[float, float, float] | None = None,
) -> int:
    """How often does a model change its answer when the picture moves? A table, data, figures and a page to look at.

    Args:
        model: a name of trueshift's or timm's, a transformers repository or folder, a folder of save_pretrained, a
            checkpoint (with --architecture), an .onnx file, or package.module:factory.
        data: 'sample' (real images that come with the package), a folder of images, CIFAR files, tar shards, parquet
            files or a compact archive; for a segmentation model also pictures with masks (ADE20K, Cityscapes, CamVid,
            or a folder with images, masks and classes.txt).
        against: 'adapted' or 'canonical' for the model's own shift-invariant twin, or another model.
        limit: images at most, evenly spread over the data; 0 for all.
        shifts: random shifts of each image, at least 2; 0 for every shift there is.
        protocols: names of protocols or suites; by default circular and standard shifts and magnitudes.
        examples: images whose answers are shown at every shift of a plane, or pixel by pixel.
        plane: shifts along each side of that plane.
        output: folder for audit.json, images.csv, figures and report.html.
        device: cpu, cuda, cuda:1, or auto.
        precision: float32, or bf16 for autocast.
        batch_size: images in a batch; by default 64 on a CPU and 256 on a GPU, 2 and 8 for segmentation.
        seed: of the shifts, and of random weights.
        split: test or train, where the data has both.
        random_weights: audit the initialisation, where weights cannot be had.
        architecture: the network a checkpoint belongs to.
        img_size: height and width of the input, where the model does not say; the shortest side for segmentation.
        crop_pct: how much of the resized picture is kept, where the model does not say.
        mean: of each colour, where the model does not say.
        std: of each colour, where the model does not say.
    """
    console = Console()
    folder = writable_folder(output)
    device = inference_device(device)
    settings = AuditSettings(limit, shifts, examples, plane, seed=seed, device=device, precision=precision)
    asked = find_protocols(protocols) if protocols else None
    request = Request(random_weights, architecture, img_size, crop_pct, mean, std, seed, device, precision)
    with sole_run(folder):
        subjects = [load_subject(model, request)]
        usual = usual_batch_size(device, subjects[0].dense)
        settings = replace(settings, batch_size=usual if batch_size is None else batch_size)
        source = _source(data, split, subjects[0].dense)
        if against:
            subjects.append(_other(against, subjects[0], request))
        with progress_bars(console) as progress:
            result = run_audit(subjects, source, settings, asked, progress)
        _refuse_nothing(result["data"], result["data"]["asked"])
        page = write_audit(result, source, folder)
    print_audit(console, result)
    console.print(f"Report: {page}", highlight=False, soft_wrap=True)
    return INTERRUPTED if result["partial"] else 0


def _source(data: str, split: str, dense: bool) -> Source:
    return open_scenes_or_pictures(data, split) if dense else open_data(data, split)


def _refuse_nothing(data: dict[str, Any], asked: int) -> None:
    """Numbers of no image are no result: those that were written before stay."""
    if len(data["skipped"]) == asked:
        first = data["skipped"][0]
        raise ValueError(
            f"none of the {asked} images of {data['title']} could be measured, e.g. {first['name']} "
            f"({first['reason']}): needs at least one"
        )


def _other(against: str, first: Subject, request: Request) -> Subject:
    twins = {"adapted": adapted_twin, "canonical": canonical_twin}
    return twins[against](first, request) if against in twins else load_subject(against, request)


def evaluate(
    model: str,
    *,
    data: str,
    protocols: list[str],
    output: Path = Path("eval"),
    shifts: int = 2,
    limit: int = 0,
    device: str = "auto",
    precision: str = "float32",
    batch_size: int | None = None,
    workers: int = 8,
    seed: int = 0,
    split: str = "test",
    random_weights: bool = False,
    architecture: str | None = None,
    img_size: int | None = None,
    crop_pct: float | None = None,
    mean: tuple[float, float, float] | None = None,
    std: tuple[float, float, float] | None = None,
) -> int:
    """The paper's numbers for a model on a data set. Processes of torchrun share the images; started again, it goes on.

    Args:
        model: as for audit.
        data: a folder of images with a folder for each class, CIFAR files, tar shards, parquet files, a compact
            archive, or 'sample'; for a segmentation model pictures with masks, as for audit.
        protocols: names of protocols or suites: cifar, imagenet, magnitude, erased, flips; ade20k for segmentation.
        output: folder for eval.json, and for the answers so far, from which it goes on when started again.
        shifts: of each image, at least 2: the paper draws a pair. 0 for every shift there is.
        limit: images at most; 0 for all.
        device: cpu, cuda, cuda:1, or auto.
        precision: float32, or bf16 for autocast.
        batch_size: images in a batch; by default 64 on a CPU and 256 on a GPU, 2 and 8 for segmentation.
        workers: that read images, threads or for a GPU processes; 0 reads in the process itself.
        seed: of the shifts, and of random weights.
        split: test or train, where the data has both.
        random_weights: measure the initialisation, where weights cannot be had.
        architecture: the network a checkpoint belongs to.
        img_size: height and width of the input, where the model does not say; the shortest side for segmentation.
        crop_pct: how much of the resized picture is kept, where the model does not say.
        mean: of each colour, where the model does not say.
        std: of each colour, where the model does not say.
    """
    folder = writable_folder(output)
    asked = find_protocols(protocols)
    with joined_processes(inference_device(device)) as (here, rank), sole_run(folder):
        console = Console(quiet=rank != 0)
        settings = EvalSettings(shifts, limit, seed=seed, device=here, precision=precision, workers=workers)
        request = Request(random_weights, architecture, img_size, crop_pct, mean, std, seed, here, precision)
        subject = load_subject(model, request)
        usual = usual_batch_size(here, subject.dense)
        settings = replace(settings, batch_size=usual if batch_size is None else batch_size)
        source = _source(data, split, subject.dense)
        try:
            with progress_bars(console) as progress:
                result = run_evaluation(subject, source, asked, settings, folder, progress)
        except KeyboardInterrupt:
            console.print(f"Interrupted. The answers so far are in {folder}; the same command goes on from there.")
            return INTERRUPTED
        _refuse_nothing(result["data"], result["data"]["images"])
        if rank == 0:
            write_whole(folder / "eval.json", json_text(result))
            print_evaluation(console, result)
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
    """Which class does each pixel of a picture belong to? A label file and an overlay for each.

    Args:
        images: pictures, or folders of them.
        model: a folder that a segmentation network was saved to, or another segmentation model, as for audit.
        output: folder for NAME_mask.png, which has the numbers of classes, and NAME_overlay.png.
        overwrite: replace files that are there already.
        sliding: show the model windows of each picture, as it was trained with crops, in place of the whole.
        window: their size; by default the crop of the training.
        stride: from one window to the next; by default two thirds of the window.
        device: cpu, cuda, cuda:1, or auto.
        precision: float32, or bf16 for autocast.
    """
    console = Console()
    device = inference_device(device)
    folder = writable_folder(output)
    pictures = find_pictures(images, folder)
    if not overwrite:
        check_free(pictures, folder)
    if (window or stride) and not sliding:
        raise ValueError("--window and --stride are for windows that slide: needs --sliding as well")
    subject = load_subject(model, Request(device=device, precision=precision))
    windows = usual_sliding(subject, window, stride) if sliding else None
    unreadable = 0
    for found in segment_files(pictures, PixelLabels(subject, device, windows), folder):
        if isinstance(found, Segmented):
            console.print(found.told(), markup=False, highlight=False, soft_wrap=True)
        else:
            unreadable += 1
            print(f"trueshift: {found.name} could not be read: {found.reason}", file=sys.stderr)
    done = len(pictures) - unreadable
    console.print(f"{done} of {len(pictures)} pictures: {folder}", markup=False, highlight=False, soft_wrap=True)
    return INCOMPLETE if unreadable else 0


def train(*arguments: str) -> int:
    """Train a network by a recipe, from one GPU to many nodes; started again, it goes on."""
    training = _training()
    asked = training.parse_arguments(arguments)
    if asked.print_config:
        print(asked.text, end="")
        return 0
    if asked.dry_run:
        return training.dry_run(asked.config)
    try:
        return training.train(asked.config)
    except training.Diverged as error:
        print(f"trueshift: {error}", file=sys.stderr)
        return DIVERGED


def _training() -> ModuleType:
    """Imported when asked for: it needs more than the other commands."""
    try:
        from . import train
    except ModuleNotFoundError as error:
        raise ImportError(f"training needs more than the core ({error}): pip install 'trueshift[train]'") from error
    return train


def recipes(name: str = "") -> int:
    """List the recipes for training, or tell all about one.

    Args:
        name: a recipe, or a part of the names to list.
    """
    recipe = _training().recipe
    console = Console()
    if name in recipe.list_recipes():
        console.print(recipe.find_recipe(name).read_text(), markup=False, highlight=False, soft_wrap=True, end="")
        return 0
    found = [each for each in recipe.list_recipes() if name in each]
    if not found:
        recipe.find_recipe(name)  # says what may have been meant
    for each in found:
        console.print(f"{each:44} {recipe.about(each).splitlines()[0]}", markup=False, highlight=False, soft_wrap=True)
    return 0


def download(name: str, *, folder: Path) -> int:
    """Fetch a data set from where it is published, and check it.

    Args:
        name: cifar10 or cifar100.
        folder: where to put it.
    """
    path = download_data(name, folder)
    Console().print(f"{name} is in {path}", highlight=False, soft_wrap=True)
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command; what a user can put right is told in a line, without a traceback."""
    about = "Vision Transformers whose output does not change when the image moves, and how much that of others does."
    commands: dict[str, Callable[..., int]] = {
        "audit": audit,
        "eval": evaluate,
        "segment": segment,
        "train": train,
        "recipes": recipes,
        "download": download,
    }
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a letter that a screen has not is no reason to stop
    given = command_line("trueshift", about, commands).parse_args(arguments)
    try:
        return given.run(given)
    except (ValueError, TypeError, OSError, ImportError, WeightsUnavailable) as error:
        print(f"trueshift: {error}", file=sys.stderr)
        return 2
    except torch.OutOfMemoryError as error:
        print(f"trueshift: {str(error).splitlines()[0]}: needs a smaller batch size", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before there was anything to keep
        print("trueshift: interrupted", file=sys.stderr)
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
