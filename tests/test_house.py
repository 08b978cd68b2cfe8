"""The house keeps its order: folders import only from those below, examples are short and true, versions agree."""

import ast
import re
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
# each imports only from those before it
FLOORS = (
    "_torchvision",
    "utils",
    "_old_paths",
    "ops",
    "testing",
    "criteria",
    "layers",
    "canonical",
    "motion",
    "models",
    "tasks",
    "fit",
    "explain",
    "onnx_export",
    "commands",
    "data",
    "eval",
    "report",
    "playground",
    "segment_command",
    "recipes",
    "train",
    "cli",
    "__main__",
)


def imported(path: Path, root: Path = ROOT) -> set[str]:
    """The parts of our package that a file imports."""
    package = path.relative_to(root).parent.parts  # ("trueshift", "ops")
    parts = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            full = [*base, *(node.module.split(".") if node.module else [])]
            names = [full[1]] if len(full) > 1 else [alias.name for alias in node.names]
            if full and full[0] == "trueshift":
                parts.update(names)
        elif isinstance(node, ast.Import):
            parts.update(alias.name.split(".")[1] for alias in node.names if alias.name.startswith("trueshift."))
    return parts


@pytest.mark.parametrize("path", sorted((ROOT / "trueshift").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT)))
def test_each_floor_stands_on_those_below(path):
    inside = path.relative_to(ROOT / "trueshift").parts[0].removesuffix(".py")
    if inside == "__init__":
        return
    allowed = set(FLOORS[: FLOORS.index(inside) + 1])
    assert imported(path) <= allowed, f"{path} imports from a floor above its own"


def test_the_layering_check_sees_a_file_that_reaches_up(tmp_path):
    path = tmp_path / "trueshift" / "ops" / "wrong.py"
    path.parent.mkdir(parents=True)
    path.write_text("from .shift import pair\nfrom ..layers.merge import AdaptiveMerge\nimport trueshift.criteria\n")
    assert imported(path, tmp_path) - set(FLOORS[: FLOORS.index("ops") + 1]) == {"layers", "criteria"}


# what a function may import: packages that are not needed by all, and our rooms that need such packages
OPTIONAL = {
    "accelerate",
    "datasets",
    "huggingface_hub",
    "jsonargparse",
    "matplotlib",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "onnxscript",
    "pyarrow",
    "safetensors",
    "segmentation_models_pytorch",
    "tensorboard",
    "torch",  # its compiler and its optional parts, which are slow to import
    "torchvision",
    "transformers",
    "triton",
    "wandb",
    "yaml",
}
OPTIONAL_ROOMS = ("trueshift.train", "trueshift.ops.kernels")
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted((ROOT / "trueshift").rglob("*.py"))
}


def targets(module: str, node: ast.AST, path: Path) -> set[str]:
    """The modules that an import statement names, ours with their full name."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if not isinstance(node, ast.ImportFrom):
        return set()
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    base = [*package[: len(package) - node.level + 1]] if node.level else []
    full = ".".join([*base, *([node.module] if node.module else [])])
    return {each if (each := f"{full}.{alias.name}") in MODULES else full for alias in node.names}


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
    graph = {
        name: {
            target
            for node in ast.walk(ast.parse(path.read_text()))
            for target in targets(name, node, path)
            # a package that only lists what its modules hold is no idea of its own
            if target in MODULES and MODULES[target].name != "__init__.py" and target != name
        }
        for name, path in MODULES.items()
    }
    assert circles(graph) == []


def test_the_search_for_circles_finds_one():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})[0] == {"a", "b", "c"}
    assert circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("name", sorted(MODULES))
def test_functions_import_only_what_is_optional(name):
    path = MODULES[name]
    tree = ast.parse(path.read_text())
    inside = [
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    for node in inside:
        for target in targets(name, node, path):
            assert target.split(".")[0] in OPTIONAL or target.startswith(OPTIONAL_ROOMS), f"{name}: {target}"


def test_no_file_is_long():
    parts = [
        path for folder in ("trueshift", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")
    ]
    long = {str(path.relative_to(ROOT)): lines for path in parts if (lines := path.read_text().count("\n")) > 400}
    assert long == {}


@pytest.mark.parametrize("name", ["classifier", "encoder_decoder"])
def test_the_papers_programs_are_short_and_exact(run_unchecked, name):
    path = ROOT / "examples" / f"{name}.py"
    assert len(path.read_text().splitlines()) < 40
    assert run_unchecked(path).rstrip().endswith(": 0.0")


def test_the_picture_is_drawn(run_unchecked, tmp_path):
    target = tmp_path / "sub" / "grids.png"
    run_unchecked(ROOT / "examples/moving_grids.py", "--output", str(target))
    assert target.stat().st_size > 50_000


def test_a_moving_crop_is_drawn(run_unchecked, tmp_path):
    said = run_unchecked(ROOT / "examples/flicker.py", "--output", str(tmp_path / "sub"))
    assert "adaptive, circle: the answer changes in 0.0 %" in said
    rates = {line.split(":")[0]: float(line.split()[-5]) for line in said.splitlines() if "the answer changes" in line}
    assert rates["steady"] < rates["ordinary"] / 2
    with Image.open(tmp_path / "sub" / "flicker.gif") as animation:
        assert animation.n_frames > 20
    assert (tmp_path / "sub" / "flicker.png").stat().st_size > 20_000


@pytest.mark.parametrize(
    ("document", "count"),
    [
        ("README.md", 1),
        ("docs/audit.md", 1),
        ("docs/concepts.md", 1),
        ("docs/criterion.md", 3),
        ("docs/motion.md", 1),
        ("docs/segmentation.md", 1),
        ("docs/start.md", 4),
    ],
)
def test_the_programs_in_the_documents_run(run_unchecked, document, count):
    programs = re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
    assert len(programs) == count
    run_unchecked("\n".join(programs))


def test_tables_are_those_of_the_result_files(run_unchecked):
    run_unchecked(ROOT / "benchmarks/bench.py", "check")


def test_readme_and_paper_map_name_things_that_exist():
    for document in (
        "README.md",
        *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))),
        "benchmarks/README.md",
        "CONTRIBUTING.md",
    ):
        text = (ROOT / document).read_text()
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert ((ROOT / document).parent / link).exists(), f"{document} links to {link}"
        for function in re.findall(r"`((?:tests|trueshift|examples|benchmarks)/[\w/]+\.py)(?:::(\w+))?`", text):
            path, name = function
            assert (ROOT / path).exists(), f"{document} names {path}"
            assert not name or re.search(rf"\b(def|class) {name}\b", (ROOT / path).read_text()), (
                f"{document}: {function}"
            )
