"""Programs in a process of their own, without the shape checks, which a compiler cannot look through."""

import atexit
import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import wraps
from importlib import import_module
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
# started once with everything imported, then copied for each program: importing takes longer than most of them;
# with a GPU each imports for itself, since no copy may use what its original has asked of CUDA; on Windows, too
_COPIED = "forkserver" in get_all_start_methods() and not Path("/dev/nvidiactl").exists()
_CONTEXT = get_context("forkserver" if _COPIED else "spawn")
# what takes long, by module: the package itself imports next to nothing; also for the runs of training_runs.py
PRELOADED = ["trueshift.train.trainer", "torch._inductor.compile_fx", "transformers.modeling_utils"]
_CONTEXT.set_forkserver_preload(PRELOADED)


def in_own_process(test: Callable[..., None]) -> Callable[..., None]:
    """A test that is run so, with the arguments that pytest has for it."""

    @wraps(test)
    def started(**arguments: Any) -> None:
        run_unchecked((test.__module__, test.__name__), **arguments)

    return started


def run_unchecked(program: str | Path | tuple[str, str], *words: str, **arguments: Any) -> str:
    """Run a program, a file with the words of its command line, or a test; what it prints comes back."""
    with tempfile.TemporaryDirectory() as folder:
        child = _CONTEXT.Process(target=_run, args=(program, words, arguments, folder, dict(os.environ)))
        child.start()
        child.join(1800)
        child.kill()  # one that hangs
        printed, told = ((Path(folder) / name).read_text() for name in ("out", "err"))
    assert child.exitcode == 0, told[-6000:]
    return printed


def _run(program: Any, words: Sequence[str], arguments: Any, folder: str, environment: dict[str, str]) -> None:
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT), number)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    os.chdir(ROOT)
    os.environ.update(environment)  # as it is now, not as it was when the first program was run
    # for the processes that a compiler starts
    os.environ["PYTHONPATH"] = os.pathsep.join([f"{ROOT}/tests", *filter(None, [os.environ.get("PYTHONPATH")])])
    try:
        if isinstance(program, tuple):
            module, name = program
            torch.manual_seed(0)
            getattr(import_module(module), name).__wrapped__(**arguments)
        elif isinstance(program, Path):
            sys.argv = [str(program), *words]
            sys.path.insert(0, str(program.parent))
            runpy.run_path(str(program), run_name="__main__")
        else:
            exec(program, {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()  # a copied process would leave without
