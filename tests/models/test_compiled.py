"""Whole models in one compiled graph: bit-identical under shifts there, too."""

import pytest

PROGRAM = """
import torch, trueshift as ts
from model_checks import broken_pairs, everything, perturb_norms, random_shifts
from trueshift.testing import hostile_images, photographs

torch.manual_seed(0)
torch.set_num_threads(1)
model = perturb_norms(ts.create_model("{name}", {narrow})).eval()
named = {{name: image for name, image in hostile_images(32).items() if name != "huge"}} | photographs(32)
images = torch.stack(list(named.values())[::4])
compiled = torch.compile(everything(model), fullgraph=True)
broken, pairs = broken_pairs(compiled, images, random_shifts(images, 4))
assert not broken, broken
with torch.no_grad():
    photos = torch.stack(list(photographs(32).values()) * 2)
    torch.testing.assert_close(compiled(photos)[0], everything(model)(photos)[0], rtol=1e-3, atol=1e-3)
print("ok", pairs)
"""
NARROW = {"a_swin_mini": "embed_dim=16", "a_swinv2_mini": "embed_dim=16"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a_swin_mini", "a_swinv2_mini", "a_cvt_mini", "a_mvitv2_mini"])
def test_one_graph(name, run_unchecked):
    narrow = NARROW.get(name, "embed_dim=(16, 32, 64)")
    assert "ok" in run_unchecked(PROGRAM.format(name=name, narrow=narrow))
