"""What `import trueshift` loads beside torch and timm: its own modules, and nothing heavy."""

import ast
import pickle
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(program, *arguments):
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True).stdout.splitlines()


# timm may need our help to be imported (see trueshift/_torchvision.py); the helper alone is loaded first
IMPORTING = """
import sys, importlib.util, torch
spec = importlib.util.spec_from_file_location("trueshift._torchvision", "trueshift/_torchvision.py")
helper = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helper)
helper.make_importable()
import timm
before = set(sys.modules)
import trueshift
print(*sorted(set(sys.modules) - before))
assert timm.is_model("a_swin_tiny"), "timm was there before us"
assert trueshift.eval.run_audit and trueshift.data.open_data and trueshift.testing.assert_equivariant
"""


def test_importing_us_loads_no_compiler_and_no_plots():
    (loaded,) = (line.split() for line in run(IMPORTING))
    assert "trueshift.criteria" in loaded
    heavy = {"torch._dynamo", "torch._inductor", "triton", "sympy", "matplotlib", "datasets", "accelerate", "onnx"}
    assert not heavy.intersection(loaded)


# for each command the first line of its help, then what was loaded so far
HELPING = """
import sys
from trueshift.cli import main
for command in sys.argv[1:]:
    try:
        main([*command.split(), "--help"])
    except SystemExit as stopped:
        assert stopped.code == 0
    print("loaded", *sys.modules)
"""


def test_help_waits_for_no_network():
    commands = ["", "audit", "eval", "playground", "segment", "train", "recipes", "download"]
    lines = run(HELPING, *commands)
    loaded = [set(line.split()) for line in lines if line.startswith("loaded ")]
    assert len(loaded) == sum("usage: trueshift" in line for line in lines) == len(commands)
    heavy = {"torch", "timm", "torchvision", "torchmetrics", "matplotlib", "trueshift.models"}
    assert [command for command, modules in zip(commands, loaded, strict=True) if heavy & modules] == []


def test_timm_knows_our_networks_also_where_ours_imported_it():
    # also, a function wins over the module of its name
    program = "import timm, trueshift.explain, trueshift.fit as fit; print(timm.is_model('a_swin_tiny'), callable(fit))"
    (found,) = run(f"from trueshift.canonical import origin; {program}")
    assert found == "True True"


@pytest.mark.parametrize("package", ["trueshift", "trueshift.eval", "trueshift.train"])
def test_every_name_of_a_stub_is_there(package):
    module = import_module(package)
    stub = ast.parse(Path(module.__file__).with_suffix(".pyi").read_text())
    (named,) = (ast.literal_eval(node.value) for node in stub.body if isinstance(node, ast.Assign))
    assert sorted(named) == module.__all__
    assert set(named) <= set(dir(module))
    assert all(hasattr(module, name) for name in named)
    assert pickle.loads(pickle.dumps(module)) is module
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'never_was'"):
        _ = module.never_was
