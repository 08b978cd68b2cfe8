"""How kernels are launched: by Triton the first time, then without its binding of arguments.

The binding takes longer than most of our kernels do.
"""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from . import INTERPRETED


def blocks_in(length: int, size: int) -> int:
    """How many blocks of a size cover a length."""
    return -(-length // size)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()


class launched:
    """Above ``triton.jit``: remember what was compiled for arguments of the same kinds, and launch it at once.

    What Triton compiles depends on the types of tensors and the alignment of their memory, and on whole numbers; the
    latter are compared as they are. Arguments have no defaults.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self.names: list[str] = kernel.arg_names
        self.compiled: dict[Any, Any] = {}

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        """``kernel[grid](...)``, as in Triton."""
        if INTERPRETED or torch.compiler.is_compiling():
            return self.kernel[grid]
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *arguments: Any, **named: Any) -> None:
        arguments += tuple(named.pop(name) for name in self.names[len(arguments) :])
        device = next(argument.device for argument in arguments if isinstance(argument, Tensor))
        if device.index != torch.cuda.current_device():
            with torch.cuda.device(device):
                self._launch(grid, *arguments, **named)
            return
        key = (device.index, *named.items(), *map(_kind, arguments))  # what is left are options of the compiler
        compiled = self.compiled.get(key)
        if compiled is None:
            self.compiled[key] = self.kernel[grid](*arguments, **named)
        else:
            compiled[(*grid, 1, 1)[:3]](*arguments)


def _kind(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return argument.dtype, argument.data_ptr() % 16
    return argument
