"""What `import trueshift` loads beside torch and timm: its own modules, and nothing heavy."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# timm may need our help to be imported (see trueshift/_torchvision.py); the helper alone is loaded first
PROGRAM = """
import sys, time, importlib.util
start = time.perf_counter()
import torch
spec = importlib.util.spec_from_file_location("trueshift._torchvision", "trueshift/_torchvision.py")
helper = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helper)
helper.make_importable()
import timm
between, before = time.perf_counter(), set(sys.modules)
import trueshift
after = time.perf_counter()
print(f"{(after - start) / (between - start):.2f} times the import of torch and timm", file=sys.stderr)
print(*sorted(set(sys.modules) - before))
assert trueshift.eval.run_audit and trueshift.data.open_data and trueshift.testing.assert_equivariant
"""


def test_importing_us_loads_no_compiler_and_no_plots():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = set(done.stdout.split())
    assert "trueshift.criteria" in loaded
    heavy = {"torch._dynamo", "torch._inductor", "triton", "sympy", "matplotlib", "datasets", "accelerate", "onnx"}
    assert not loaded & heavy
