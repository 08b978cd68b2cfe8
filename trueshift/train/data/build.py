"""Which way a network is fed: by pixels that live on the device, or by processes that read pictures."""

import torch

from ...data import Preparation
from ..config import TrainConfig
from .augment import Draws, TrainTransform
from .batch import Feed, Share
from .loader import AugmentedPictures, LoaderFeed
from .on_device import ResidentFeed, ResidentImages, only_the_loader_does, resident
from .sampler import BatchOrder
from .splits import TrainingData


def build_feed(
    config: TrainConfig,
    data: TrainingData,
    preparation: Preparation,
    order: BatchOrder,
    share: Share,
    device: torch.device,
) -> tuple[Feed, ResidentImages | None]:
    """What is learned from; and, if that lives on the device, what is measured on."""
    draws = Draws(config.augment, config.seed)
    for_loader = only_the_loader_does(config.augment)
    small = resident(data.train) and resident(data.test)
    asked = config.data.on_device
    if asked == "yes" and (for_loader or not small):
        why = f"augment.{for_loader[0]} works on single pictures" if for_loader else "the images are not small"
        raise ValueError(f"data.on_device is yes, but {why}: needs 'auto' or 'no'")
    if asked == "yes" or (asked == "auto" and device.type == "cuda" and small and not for_loader):
        feed = ResidentFeed(ResidentImages(data.train, preparation, device), draws, order, share)
        return feed, ResidentImages(data.test, preparation, device)
    pictures = AugmentedPictures(data.train, TrainTransform(preparation, draws))
    return LoaderFeed(pictures, order, share, device, config.data.workers), None
