"""An encoder-decoder that puts features back where they came from (the paper's second program).

Tokens know where they are, so unpooling is one function and nothing has to be remembered on the way.
"""

import torch
from torch import nn

from trueshift import AdaptiveMerge, AlignWindows, Tokens, WindowAttention, circular_shift, place
from trueshift.ops.geometry.shift import IMAGE_DIMS


class EncoderDecoder(nn.Module):
    """A-PMerge, A-WSA with window 7, and unpooling to the input's pixels."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.merge = AdaptiveMerge(channels, norm="none", anchor=True)
        self.align = AlignWindows(window_size=7)
        self.attention = WindowAttention(2 * channels, window_size=7, num_heads=2)

    def forward(self, image):
        tokens = self.align(self.merge(Tokens.of_image(image)))
        encoded = Tokens(tokens.values + self.attention(tokens.values), tokens.grid)
        return place(encoded).permute(0, 3, 1, 2)


torch.manual_seed(0)
model = EncoderDecoder().eval()
image = torch.randn(1, 3, 28, 28)
output = model(image)
error = 0.0
for row, column in torch.randint(28, (100, 2)).tolist():
    moved = model(circular_shift(image, (row, column), IMAGE_DIMS))
    error = max(error, (moved - circular_shift(output, (row, column), IMAGE_DIMS)).abs().max().item())
print(f"encoder-decoder: output {tuple(output.shape)}, largest error over 100 random shifts: {error}")
assert error == 0.0
