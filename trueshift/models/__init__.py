"""The four backbones: Swin, SwinV2, CvT and MViTv2, ordinary and adaptive."""
