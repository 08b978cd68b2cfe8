"""The house keeps its order: folders import only from those below, examples are short and true, versions agree."""

import ast
import re
import runpy
import sys
from functools import cache
from pathlib import Path

import jaxtyping
import pytest
import torch
from PIL import Image

import trueshift
from trueshift.ops.geometry.shift import circular_shift, pair

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
# each imports only from those before it
FLOORS = (
    "_torchvision", "_timm", "utils", "_old_paths", "ops", "testing", "criteria", "layers", "canonical", "motion",
    "models", "tasks", "fit", "explain", "onnx_export", "commands", "data", "eval", "report", "playground",
    "segment_command", "recipes", "train", "__init__", "cli", "__main__",
)  # fmt: skip
# what a function may import: packages that are not needed by all, torch's compiler and optional parts, which are slow
# to import, and our rooms that need such packages
OPTIONAL = {
    "accelerate", "datasets", "huggingface_hub", "jsonargparse", "matplotlib", "onnx", "onnx_ir", "onnxruntime",
    "onnxscript", "pyarrow", "safetensors", "segmentation_models_pytorch", "tensorboard", "torch", "torchvision",
    "transformers", "triton", "wandb", "xarray", "yaml",
}  # fmt: skip
OPTIONAL_ROOMS = ("trueshift.train", "trueshift.ops.kernels")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "trueshift").rglob("*.py"))
}


@cache
def imported(name: str, within: type[ast.AST] = ast.Module) -> set[str]:
    """The modules that a module imports, or its functions alone, ours with their full name."""
    path = MODULES[name]
    parts = [part for part in ast.walk(ast.parse(path.read_text())) if isinstance(part, within)]
    package = path.name == "__init__.py"
    return {target for part in parts for node in ast.walk(part) for target in targets(name, node, package)}


def targets(module: str, node: ast.AST, package: bool = False) -> set[str]:
    """The modules that an import statement names."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if not isinstance(node, ast.ImportFrom):
        return set()
    inside = module.split(".") if package else module.split(".")[:-1]
    base = inside[: len(inside) - node.level + 1] if node.level else []
    full = ".".join([*base, *([node.module] if node.module else [])])
    return {each if (each := f"{full}.{alias.name}") in MODULES else full for alias in node.names}


def above(name: str, found: set[str]) -> set[str]:
    """What a module of ours imports from floors above its own."""
    ours = [target.split(".") for target in found if target.partition(".")[0] == "trueshift"]
    return {(*parts, "__init__")[1] for parts in ours} - set(FLOORS[: FLOORS.index(name.split(".")[1]) + 1])


def test_each_floor_stands_on_those_below():
    found = {name: above(name, imported(name)) for name in MODULES if name != "trueshift"}
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_what_networks_stand_on_does_not_import_timm():
    """Importing timm imports our networks (see _timm.py), which must not find half a module below them."""
    timm = {name for name in MODULES if any(target.partition(".")[0] == "timm" for target in imported(name))}
    assert {name.split(".")[1] for name in timm}.isdisjoint(FLOORS[: FLOORS.index("models")])


def test_functions_import_only_what_is_optional():
    for name in MODULES:
        # the help of commands would wait for the networks
        allowed = ("trueshift",) if name == "trueshift.cli" else OPTIONAL_ROOMS
        for target in imported(name, within=ast.FunctionDef):
            assert target.split(".")[0] in OPTIONAL or target.startswith(allowed), f"{name} imports {target}"


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Modules that import each other, directly or through others."""
    reach = {name: set(next_to) for name, next_to in graph.items()}
    for middle in graph:
        for name in graph:
            if middle in reach[name]:
                reach[name] |= reach[middle]
    found = [{other for other in graph if other in reach[name] and name in reach[other]} for name in graph]
    return [circle for circle in found if circle]


def test_no_module_imports_itself_through_others():
    # a package that only lists what its modules hold is no idea of its own
    ideas = {name for name, path in MODULES.items() if path.name != "__init__.py"}
    assert circles({name: (imported(name) & ideas) - {name} for name in MODULES}) == []


def test_the_checks_see_a_file_that_reaches_up_and_a_circle():
    text = "from .shift import pair\nfrom ..layers.merge import AdaptiveMerge\nimport trueshift.criteria\n"
    found = set().union(*(targets("trueshift.ops.wrong", node) for node in ast.walk(ast.parse(text))))
    assert above("trueshift.ops.wrong", found) == {"layers", "criteria"}
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})[0] == {"a", "b", "c"}
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


def test_no_file_is_long():
    files = [path for name in ("trueshift", "tests", "benchmarks", "examples") for path in (ROOT / name).rglob("*.py")]
    long = {str(path.relative_to(ROOT)): lines for path in files if (lines := path.read_text().count("\n")) > 400}
    assert long == {}


def test_an_image_passes_few_files():
    model, files = trueshift.create_model("a_swin_mini").eval(), set()
    sys.setprofile(lambda frame, event, argument: files.add(frame.f_code.co_filename))
    try:
        model(torch.rand(1, 3, 32, 32))
    finally:
        sys.setprofile(None)
    ours = {Path(file) for file in files} & set(MODULES.values())
    assert MODULES["trueshift.models.swin"] in ours
    assert len(ours) <= 28


@pytest.mark.parametrize("name", ["classifier", "encoder_decoder"])
def test_the_papers_programs_are_short_and_exact(run_unchecked, name):
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text().splitlines()) < 40
    assert run_unchecked(path).rstrip().endswith(": 0.0")


def test_the_demo_runs_every_example_but_three():
    run = set(runpy.run_path(str(ROOT / "examples/__main__.py"))["EXAMPLES"])
    there = {path.stem for path in (ROOT / "examples").glob("[!_]*.py")}
    # one needs transformers, the others make data
    assert there ^ run == {"adapt_transformers", "navier_stokes", "shallow_water"}


def test_the_picture_is_drawn(run_unchecked, tmp_path):
    target = tmp_path / "sub" / "grids.png"
    run_unchecked(ROOT / "examples/moving_grids.py", "--output", str(target))
    assert target.stat().st_size > 50_000


def test_a_moving_crop_is_drawn(run_unchecked, tmp_path):
    said = run_unchecked(ROOT / "examples/flicker.py", "--output", str(tmp_path / "sub"))
    rates = dict(re.findall(r"^(.*): the answer changes in ([\d.]+) %", said, re.MULTILINE))
    assert rates["adaptive, circle"] == "0.0"
    assert float(rates["steady"]) < float(rates["ordinary"]) / 2
    with Image.open(tmp_path / "sub" / "flicker.gif") as animation:
        assert animation.n_frames > 20
    assert (tmp_path / "sub" / "flicker.png").stat().st_size > 20_000


# the sample images and a photograph; with odd steps, so that tokens and windows begin everywhere
PHOTOGRAPH = ["--step", "3", "--image", "trueshift/testing/photos/rocket.jpg"]


@pytest.mark.parametrize("words", [["--step", "21"], pytest.param(PHOTOGRAPH, marks=pytest.mark.slow)])
def test_a_panorama_turns_and_its_classes_with_it(run_unchecked, tmp_path, words):
    said = run_unchecked(ROOT / "examples/panorama.py", "--output", str(tmp_path / "sub"), *words)
    changes = re.findall(r"^(\w+): .* ([\d.]+) % of the pixels change .* by up to (\S+)$", said, re.MULTILINE)
    (_, pixels, scores), ours = changes
    assert ours == ("ours", "0.0", "0")
    assert float(pixels) > 30
    assert float(scores) > 1
    # chance is a tenth
    assert all(float(share) > 40 for share in re.findall(r"([\d.]+) % have the class of their image", said))
    with Image.open(tmp_path / "sub" / "panorama.gif") as animation:
        assert animation.n_frames == int(said.split()[0]) >= 16
    assert (tmp_path / "sub" / "panorama.png").stat().st_size > 10_000


@pytest.mark.parametrize("document", [name for name in DOCUMENTS if "```python" in (ROOT / name).read_text()])
def test_the_programs_in_the_documents_run(run_unchecked, document):
    run_unchecked("\n".join(re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)))


def test_tables_are_those_of_the_result_files(run_unchecked):
    run_unchecked(ROOT / "benchmarks/bench.py", "check")


def test_a_release_has_one_version_and_one_date():
    released = re.findall(r"^## ([\d.]+) - ([\d-]+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    cited = re.findall(r"^(?:version|date-released): (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert [*released[0]] == cited
    assert trueshift.__version__ == cited[0] or trueshift.__version__.endswith(".dev0")  # of the next one


@pytest.mark.parametrize("document", [*DOCUMENTS, "benchmarks/README.md", "CONTRIBUTING.md"])
def test_readme_and_paper_map_name_things_that_exist(document):
    text = (ROOT / document).read_text()
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert ((ROOT / document).parent / link).exists(), link
    for path, name in re.findall(r"`((?:tests|trueshift|examples|benchmarks)/[\w/]+\.py)(?:::(\w+))?`", text):
        assert (ROOT / path).exists(), path
        assert not name or re.search(rf"\b(def|class) {name}\b", (ROOT / path).read_text()), f"{path}::{name}"


def test_shapes_and_types_in_signatures_are_checked():
    offsets = torch.ones(3, 2, dtype=torch.long)
    for function, *wrong in ((pair, "x"), (circular_shift, torch.rand(2, 4, 4, 3), offsets)):
        with pytest.raises(jaxtyping.TypeCheckError, match=function.__name__):
            function(*wrong)
    assert circular_shift(torch.rand(3, 4, 4, 3), offsets).shape == (3, 4, 4, 3)
