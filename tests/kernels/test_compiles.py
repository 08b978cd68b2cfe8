"""Every kernel compiles for a GPU, and networks with kernels are one graph. Neither needs a GPU or the interpreter."""

import ast
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from trueshift.ops import kernels

FOLDER = Path(kernels.__file__).parent
KERNELS = [
    f"{path.stem}.{node.name}"
    for path in sorted(FOLDER.glob("*.py"))
    for node in ast.parse(path.read_text()).body
    if "launched" in map(ast.unparse, getattr(node, "decorator_list", []))
]

PTXAS = kernels.AVAILABLE and platform.machine() == "x86_64"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not PTXAS, reason="needs Triton and its ptxas for x86_64")]

# Networks run on the CPU with kernels switched on. A launch compiles and computes nothing: results are zeros.
COMPILE_ALL = """
import json, sys
from importlib import import_module
from types import SimpleNamespace
import torch, triton
from triton.backends.compiler import GPUTarget
import trueshift as ts
from trueshift.ops import kernels

for name in sys.argv[1:]:
    import_module(f"trueshift.ops.kernels.{name.partition('.')[0]}")  # with the tile sizes of a GPU
kernels.INTERPRETED = True  # kernels are usable on the CPU
torch.empty, torch.empty_like, torch.Tensor.new_empty = torch.zeros, torch.zeros_like, torch.Tensor.new_zeros
torch.backends.cuda.matmul.allow_tf32 = True
triton.runtime.driver.set_active(SimpleNamespace(
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
    get_current_device=lambda: 0,
    get_current_stream=lambda device: 0,
))
messages = {}

def compile_for_gpu(launched, grid):
    def launch(*arguments, **options):
        kernel = launched.kernel
        found = messages.setdefault(f"{kernel.__module__.rpartition('.')[2]}.{kernel.__name__}", [])
        try:
            # others are float64 in compiled graphs, and so is all that is computed with them
            floats = [p for p, value in zip(kernel.params, arguments) if isinstance(value, float)]
            assert all(p.is_constexpr for p in floats), "a float that is no constant"
            memory = kernel.warmup(*arguments, grid=grid, **options).metadata.shared
            assert memory <= 227 * 1024, f"{memory} bytes of shared memory"
        except Exception as error:
            found.append(str(error))
    return launch

kernels.launching.launched.__getitem__ = compile_for_gpu
networks = [(name, 32) for name in ("a_swin_mini", "a_swinv2_mini", "a_cvt_mini", "a_mvitv2_mini")]
for name, size in (*networks, ("a_swin_mini", 40)):  # on 40 pixels windows are cut off
    for dtype in (torch.float32, torch.bfloat16):
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            model = ts.create_model(name)
            model.train()(torch.rand(2, 3, size, size)).float().sum().backward()
            with torch.no_grad():
                model.eval()(torch.rand(2, 3, size, size))
with torch.no_grad():
    ts.create_model("swin_mini", anchor=True).eval()(torch.rand(2, 3, 32, 32))
print(json.dumps(messages))
"""

# A GPU's kernels in a network on the CPU, as far as the graph that a compiler is given; it is not run.
TRACE = """
import os, sys
import torch, torch.utils._triton
torch.utils._triton.has_triton = lambda *_: True
import trueshift as ts
from trueshift.ops import kernels

kernels.opaque = lambda: torch.compiler.is_compiling() and torch.is_grad_enabled()  # as without the interpreter
kernels.INTERPRETED = True  # kernels are usable on the CPU

def look(graph, inputs):
    targets = [str(node.target) for part in graph.modules() if hasattr(part, "graph") for node in part.graph.nodes]
    print(sum("triton_kernel_wrapper" in target for target in targets), flush=True)
    os._exit(0)

model = ts.create_model(sys.argv[1]).train()
with torch.autocast("cpu", torch.bfloat16):
    torch.compile(model, backend=look, fullgraph=True)(torch.rand(2, 3, 32, 32))
"""


def printed(program, *words):
    """By a process in which Triton does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", program, *words]
    done = subprocess.run(command, cwd=FOLDER.parents[2], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-6000:]
    return done.stdout


@pytest.fixture(scope="module")
def messages():
    """What the compiler says about each kernel."""
    return json.loads(printed(COMPILE_ALL, *KERNELS))


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernel_compiles(kernel, messages):
    assert messages.get(kernel, "was not launched") == []


@pytest.mark.parametrize("name", ["a_swin_mini", "a_swinv2_mini", "a_cvt_mini", "a_mvitv2_mini"])
def test_training_is_one_graph(name):
    """A break in it, even in a kernel's gradient, leaves the rest of the network to eager code."""
    assert int(printed(TRACE, name)) > 30
