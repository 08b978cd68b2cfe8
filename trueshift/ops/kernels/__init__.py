"""Fused Triton kernels, each for the op that it speeds up, with that op's plain code as its reference.

An op declares its kernel by :func:`kernel_for`; it has the op's name and arguments, in the file of the op's name.
Kernels run on a GPU with Triton. ``TRUESHIFT_KERNELS=0`` in the environment, or :func:`switched`, turns them off. With
``TRITON_INTERPRET=1`` they run on the CPU, slowly: that is how they are tested without a GPU.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
AVAILABLE = find_spec("triton") is not None
_WANTED = os.environ.get("TRUESHIFT_KERNELS", "1") != "0"
_on = AVAILABLE and _WANTED and not INTERPRETED and torch.version.hip is None  # seen on NVIDIA's devices alone

FLOATS = (torch.float32, torch.bfloat16, torch.float16)

Function = TypeVar("Function", bound=Callable[..., Any])


def __getattr__(name: str) -> Any:
    """The files of this folder need Triton: each is imported when first used."""
    if name.startswith("_") or not AVAILABLE or find_spec(f"{__name__}.{name}") is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def kernel_for(fits: Callable[..., bool]) -> Callable[[Function], Function]:
    """Declare that an op has a kernel, of the same name and in the file of the same name here.

    Args:
        fits: whether the kernel computes this, by the op's arguments; usually :func:`usable` of a tensor, and more.
    """

    def declare(op: Function) -> Function:
        folder, file, name = sys.modules[__name__], op.__module__.rpartition(".")[2], op.__name__

        @wraps(op)
        def dispatched(*arguments: Any, **named: Any) -> Any:
            if fits(*arguments, **named):
                return getattr(getattr(folder, file), name)(*arguments, **named)
            return op(*arguments, **named)

        return dispatched  # type: ignore[return-value]

    return declare


def transformed() -> bool:
    """Whether this is within a transform of ``torch.func``, whose tensors have no values to look at."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def usable(x: Tensor, types: tuple[torch.dtype, ...] = FLOATS) -> bool:
    """Whether a kernel for these types may compute with this tensor."""
    fits = _on and (x.is_cuda or INTERPRETED) and x.dtype in types
    return fits and not transformed() and not torch.compiler._is_exporting_flag


def tf32_allowed() -> bool:
    """Whether float32 may be multiplied in TF32. Once the new setting was used, reading the old one fails."""
    matmul = torch.backends.cuda.matmul
    setting = getattr(matmul, "fp32_precision", "none")  # torch before 2.9 has the old one alone
    return bool(matmul.allow_tf32) if setting == "none" else setting == "tf32"


# What torch.compiler.assume_constant_result does, without its import of torch._dynamo, which takes longer than torch's.
# A compiler asks once; it compiles again when the answer changes.
tf32_allowed._dynamo_marked_constant = True  # type: ignore[attr-defined]


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Use kernels or not within a block of code."""
    global _on
    before, _on = _on, on and AVAILABLE
    try:
        yield
    finally:
        _on = before


def opaque() -> bool:
    """Whether kernels are compiled into a graph that may not look into them: one with gradients, which are ours."""
    return torch.compiler.is_compiling() and (INTERPRETED or torch.is_grad_enabled())


def operation(name: str, fake: Callable[..., Any]) -> Callable[[Function], Function]:
    """Register a function that launches kernels as ``trueshift::name``, for compilers that must not look into it.

    Eager code calls the function itself, without torch's dispatcher. So does a compiler where no gradient is needed: it
    launches Triton's kernels from its own code.

    Args:
        fake: gives empty tensors of the results' shapes from the same arguments.
    """

    def register(launch: Function) -> Function:
        registered = torch.library.custom_op(f"trueshift::{name}", launch, mutates_args=())
        registered.register_fake(fake)

        @wraps(launch)
        def call(*arguments: Any) -> Any:
            return (registered if opaque() else launch)(*arguments)

        return call  # type: ignore[return-value]

    return register


def refuse_second_derivative(grads: tuple[Tensor, ...]) -> None:
    """In the gradient of a kernel that has no gradient itself."""
    if not torch.compiler.is_compiling() and torch.is_grad_enabled() and any(grad.requires_grad for grad in grads):
        raise RuntimeError(
            "second derivatives do not pass through our kernels: compute within trueshift.ops.kernels.switched(False)"
        )
