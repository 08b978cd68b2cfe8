"""The small models that come with the package, ordinary and adaptive: every shift of the 400 real images that do too.

python -m benchmarks.exactness.sample_consistency --device cuda          # --limit 10: fewer images
"""

import torch

from benchmarks.common import record
from benchmarks.common.package import EvalOptions, find_protocols, load_eval_model, open_data, run_evaluation

FAMILIES = ("swin_mini", "swinv2_mini", "cvt_mini", "mvitv2_mini")


def main() -> None:
    options = record.options(__doc__, device="cpu", limit=0, batch=1000).parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    source, protocols = open_data(), find_protocols(["circular"])
    settings = EvalOptions(0, options.limit, options.batch, device=options.device)
    rows = []
    for name in (name for family in FAMILIES for name in (family, f"a_{family}")):
        subject = load_eval_model(name, EvalOptions(device=options.device))
        measured = run_evaluation(subject, source, protocols, settings)["measured"]["circular"]
        rows.append({"model": subject.name, **measured})
        print(rows[-1], flush=True)
    images = options.limit or len(source)
    size = subject.preparation.size
    result = {"images": images, "views": images * size[0] * size[1], "device": options.device, "rows": rows}
    print(record.write(f"sample_consistency_{options.device}", result, seed=0))


if __name__ == "__main__":
    main()
