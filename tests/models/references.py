"""The networks ours must equal: timm's, and for CvT transformers'."""

import timm
from model_checks import perturb_norms
from torch import Tensor, nn

from trueshift.models.cvt import VARIANTS as CVT
from trueshift.models.cvt import rename_cvt_keys


class TransformersCvt(nn.Module):
    """transformers' CvT behind timm's interface: logits, and weights under our names."""

    def __init__(self, num_classes: int = 1000, **sizes: tuple[int, ...]) -> None:
        super().__init__()
        from transformers import CvtConfig, CvtForImageClassification

        names = {"depths": "depth", "patch_strides": "patch_stride", "patch_paddings": "patch_padding"}
        known = {
            names.get(key, key): value for key, value in sizes.items() if key not in ("img_size", "drop_path_rate")
        }
        self.model = CvtForImageClassification(CvtConfig(num_labels=num_classes, **known))

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


def make_reference(name: str, **arguments) -> nn.Module:
    """The reference for one of our ordinary variants, with norms that are not those of a fresh network."""
    model = TransformersCvt(**CVT[name], **arguments) if name in CVT else timm.create_model(name, **arguments)
    return perturb_norms(model).eval()


def weights_of(reference: nn.Module) -> dict[str, Tensor]:
    """Its weights under our names."""
    if isinstance(reference, TransformersCvt):
        return rename_cvt_keys(reference.model.state_dict())
    return dict(reference.state_dict())
