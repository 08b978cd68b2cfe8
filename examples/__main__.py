"""The examples one after the other, in one process that imports torch once: `python examples`, or `make demo`."""

import runpy
import sys
import time
from pathlib import Path

EXAMPLES = {
    "classifier": [],
    "encoder_decoder": [],
    "moving_grids": [],
    "adapt_timm": [],
    "segmentation": [],
    "trained": ["--images", "50"],
    "flicker": [],
    "panorama": [],
}

if __name__ == "__main__":
    for name, options in EXAMPLES.items():
        start, path = time.perf_counter(), str(Path(__file__).with_name(f"{name}.py"))
        sys.argv = [path, *options]
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as ended:
            if ended.code:
                raise
        print(f"[examples/{name}.py, {time.perf_counter() - start:.0f} s]\n", flush=True)
