"""How kernels are launched: by Triton the first time, then without its binding of arguments, which takes longer."""

from functools import partial
from typing import Any

import torch

from . import INTERPRETED


def blocks_in(length: int, size: int) -> int:
    """How many blocks of a size cover a length."""
    return -(-length // size)


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least ``number``."""
    return 1 << (number - 1).bit_length()


_PLAIN = frozenset({int, bool, float, str, type(None)})


class launched:
    """Above ``triton.jit``: remember what was compiled for arguments of the same kinds, and launch it at once.

    What Triton compiles depends on types and alignment of tensors and on whole numbers, which are compared as such.
    The first argument is a tensor, and none has a default. Floats are ``tl.constexpr``: in compiled graphs others are
    float64, and so is all that is computed with them, many times as slowly. Tensors are passed as addresses, without
    Triton's question to the driver whether they are on the device: the device is compared instead, and what is new is
    left to Triton.
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
        if len(arguments) < len(self.names):
            arguments += tuple([named.pop(name) for name in self.names[len(arguments) :]])
        device = arguments[0].get_device()
        if device != torch.cuda.current_device():
            with torch.cuda.device(device):
                self._launch(grid, *arguments, **named)
            return
        kinds: list[Any] = [device, *named.items()]  # what is left in `named` are options of the compiler
        given: list[Any] = []
        for argument in arguments:
            if argument.__class__ in _PLAIN:
                kinds.append(argument)
                given.append(argument)
            else:
                address = argument.data_ptr()
                kinds.append((argument.dtype, address % 16, argument.get_device()))
                given.append(address)
        key = tuple(kinds)
        compiled = self.compiled.get(key)
        if compiled is None:
            self.compiled[key] = self.kernel[grid](*arguments, **named)
        else:
            compiled[(*grid, 1, 1)[:3]](*given)
