"""A classifier on adaptive patch merging: its logits do not change when the image moves (the paper's first program)."""

import torch
from torch import nn

from trueshift import AdaptiveMerge, Tokens, circular_shift
from trueshift.ops.geometry.shift import IMAGE_DIMS


class MergeClassifier(nn.Module):
    """Merge 2 x 2 pixels where the content says, pool over all tokens, classify."""

    def __init__(self, channels: int = 3, num_classes: int = 4) -> None:
        super().__init__()
        self.merge = AdaptiveMerge(channels, norm="none", anchor=True)
        self.head = nn.Linear(2 * channels, num_classes)

    def forward(self, image):
        tokens = self.merge(Tokens.of_image(image))
        return self.head(tokens.values.mean((1, 2)))


torch.manual_seed(0)
model = MergeClassifier().eval()
image = torch.randn(1, 3, 8, 8)
logits = model(image)
error = 0.0
for row in range(8):
    for column in range(8):
        moved = circular_shift(image, (row, column), IMAGE_DIMS)
        error = max(error, (model(moved) - logits).abs().max().item())
print(f"classifier: logits {[round(v, 4) for v in logits[0].tolist()]}, largest change over all 64 shifts: {error}")
assert error == 0.0
