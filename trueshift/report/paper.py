"""Numbers of the paper that reports show beside their own."""

# "Consistency under different shift magnitudes", CIFAR-10, in percent, for offsets up to 8, 16, 24 and 32 pixels of 32
MAGNITUDES = (8, 16, 24, 32)
CONSISTENCY_BY_MAGNITUDE = {
    "Swin-T": (92.00, 89.65, 88.93, 88.13),
    "SwinV2-T": (92.13, 90.43, 89.67, 88.75),
    "CvT-13": (88.99, 87.42, 86.96, 86.84),
    "MViTv2-T": (91.49, 90.57, 90.46, 90.22),
    "adaptive (all four)": (100.0, 100.0, 100.0, 100.0),
}
