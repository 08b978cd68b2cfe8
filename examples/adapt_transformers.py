"""A transformers pipeline and its twin, adapted in one line: does the answer change when the photograph moves?"""

import tempfile
from dataclasses import replace

import torch
from rich.console import Console

import trueshift  # before transformers: it makes torchvision importable beside a CPU-only torch
from trueshift.data import open_data
from trueshift.eval import AuditOptions, adapted_twin, find_protocols, load_eval_model, run_audit
from trueshift.report.console import print_audit
from trueshift.testing import photographs

from PIL import Image  # isort: skip
from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor, pipeline  # isort: skip

SHIFTS = ((0, 0), (0, 1), (3, -5), (30, 17))
SIDE = 64


def moved(name: str, shift: tuple[int, int]) -> Image.Image:
    """A photograph, moved around the circle."""
    pixels = (255 * photographs(SIDE)[name]).byte().roll(shift, (1, 2))
    return Image.fromarray(pixels.permute(1, 2, 0).numpy())


def main() -> None:
    torch.manual_seed(0)
    # from_pretrained("google/vit-base-patch16-224") where there is a network; exactness does not depend on the weights
    config = ViTConfig(
        image_size=SIDE, patch_size=8, hidden_size=96, num_hidden_layers=4, num_attention_heads=3, num_labels=12
    )
    ordinary = ViTForImageClassification(config).eval()
    processor = ViTImageProcessor(size={"height": SIDE, "width": SIDE})

    # the two lines
    adapted = trueshift.adapt(ordinary)
    classify = pipeline("image-classification", model=adapted, image_processor=processor)

    answers = [classify(moved("chelsea", shift), top_k=1)[0]["score"] for shift in SHIFTS]
    print(f"one photograph at {len(SHIFTS)} places, adapted: scores {sorted(set(answers))}")
    assert len(set(answers)) == 1

    with tempfile.TemporaryDirectory() as folder:
        ordinary.save_pretrained(folder)
        processor.save_pretrained(folder)
        model = replace(load_eval_model(folder), name="the ViT", random=True)
    options = AuditOptions(limit=12, shifts=4, examples=0)
    found = run_audit([model, adapted_twin(model)], open_data("sample"), options, find_protocols(["circular"]))
    print_audit(Console(width=110), found)


if __name__ == "__main__":
    main()
