"""Small members, with random weights, of every family that keeps its class when it is adapted."""

from functools import partial

import torch
import torchvision.models as tv
import transformers as hf
from timm.models.deit import VisionTransformerDistilled
from timm.models.eva import Eva
from timm.models.hiera import Hiera
from timm.models.vision_transformer import VisionTransformer
from torch import nn
from torchvision.models.video.mvit import MSBlockConfig, MViT


def size(name: str) -> tuple[int, ...]:
    """Of an image, or clip, for this network."""
    return (3, 4, 32, 32) if name == "torchvision mvit" else (3, 32, 32)


def _mvit() -> MViT:
    blocks = [
        MSBlockConfig(1, 8, 16, (3, 3, 3), (3, 3, 3), (1, 1, 1), (1, 2, 2)),
        MSBlockConfig(2, 16, 16, (3, 3, 3), (3, 3, 3), (1, 2, 2), (1, 1, 1)),
    ]
    v2 = {"residual_pool": True, "residual_with_cls_embed": False, "rel_pos_embed": True, "proj_after_attn": True}
    return MViT((32, 32), 4, blocks, **v2, num_classes=5, stochastic_depth_prob=0.0)


SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}
TIMM = {
    "timm vit": partial(VisionTransformer, **SMALL),
    "timm vit, dynamic size": partial(VisionTransformer, **SMALL, dynamic_img_size=True, dynamic_img_pad=True),
    "timm deit": partial(VisionTransformerDistilled, **SMALL),
    "timm dinov2": partial(VisionTransformer, **SMALL, reg_tokens=4, init_values=1e-5, no_embed_class=True),
    "timm siglip": partial(VisionTransformer, **SMALL, class_token=False, global_pool="map"),
    "timm clip": partial(VisionTransformer, **SMALL, pre_norm=True, norm_layer=nn.LayerNorm),
    "timm eva": partial(Eva, **SMALL, use_rot_pos_emb=True, swiglu_mlp=True),
    "timm hiera": partial(Hiera, (32, 32), embed_dim=8, num_heads=1, stages=(1, 1), q_pool=1, num_classes=5),
}

PLAIN = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}
PLAIN |= {"intermediate_size": 32, "num_labels": 5}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [1, 2], "window_size": 4}
CVT = {"embed_dim": [8, 16, 16], "num_heads": [1, 1, 1], "depth": [1, 2, 3]}
TRANSFORMERS = {
    "transformers vit": lambda: hf.ViTModel(hf.ViTConfig(**PLAIN)),
    "transformers vit, classes": lambda: hf.ViTForImageClassification(hf.ViTConfig(**PLAIN)),
    "transformers deit, classes": lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**PLAIN)),
    "transformers deit, teacher": lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**PLAIN)),
    "transformers dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(**PLAIN)),
    "transformers dinov2, classes": lambda: hf.Dinov2ForImageClassification(hf.Dinov2Config(**PLAIN)),
    "transformers dinov2, registers": lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**PLAIN)),
    "transformers dinov3": lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**PLAIN)),
    "transformers swin": lambda: hf.SwinModel(hf.SwinConfig(**SWIN)),
    "transformers swin, classes": lambda: hf.SwinForImageClassification(hf.SwinConfig(**SWIN, num_labels=5)),
    "transformers swinv2": lambda: hf.Swinv2Model(hf.Swinv2Config(**SWIN)),
    "transformers swinv2, classes": lambda: hf.Swinv2ForImageClassification(hf.Swinv2Config(**SWIN, num_labels=5)),
    "transformers cvt": lambda: hf.CvtModel(hf.CvtConfig(**CVT)),
    "transformers clip": lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**PLAIN)),
    "transformers siglip": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**PLAIN)),
}
TORCHVISION = {
    "torchvision swin": partial(tv.SwinTransformer, [2, 2], 8, [2, 1], [1, 2], [4, 4], num_classes=5),
    "torchvision swin v2": partial(
        tv.SwinTransformer,
        *([2, 2], 8, [2, 1], [1, 2], [4, 4]),
        num_classes=5,
        block=tv.swin_transformer.SwinTransformerBlockV2,
        downsample_layer=tv.swin_transformer.PatchMergingV2,
    ),
    "torchvision vit": partial(tv.VisionTransformer, 32, 8, 2, 2, 16, 32, num_classes=5),
    "torchvision mvit": _mvit,
}
FAMILIES = {**TIMM, **TRANSFORMERS, **TORCHVISION}


def make(name: str, seed: int = 0) -> nn.Module:
    """In evaluation mode; heads and tables that start at 0 are drawn, so that every position counts."""
    torch.manual_seed(seed)
    model = FAMILIES[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def outputs(model: nn.Module, image: torch.Tensor) -> list[torch.Tensor]:
    """All tensors that a call gives: logits, or hidden states and pooled ones."""
    found = model(image)
    return [found] if isinstance(found, torch.Tensor) else [part for part in found.to_tuple() if part is not None]
