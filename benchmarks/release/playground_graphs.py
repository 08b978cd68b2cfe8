"""Write the graphs of ``trueshift playground``: ONNX without weights, which stay in the package's safetensors files.

python -m benchmarks.release.playground_graphs [NAME ...]
"""

import argparse
import gzip
import json
import tempfile
from itertools import permutations
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
from onnx import TensorProto, helper, numpy_helper
from onnx.external_data_helper import set_external_data
from onnx_ir.passes.common import DeduplicateInitializersPass, RemoveUnusedNodesPass
from onnxscript.optimizer import fold_constants

import trueshift
from trueshift.models.bundled_weights import sha256_of
from trueshift.playground import FAMILIES, GRAPHS, network_names, weights_of
from trueshift.utils.files import write_whole

SMALLEST = 64  # values; smaller tensors stay in the graph
FOLDED = 1 << 16  # values; SwinV2's network of positions has layers of that size, and a small result


def stored_halves(path: Path) -> dict[bytes, tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Where in a safetensors file the float16 tensors are, by their bytes in every order of their axes.

    Each has the offset in the file, the shape there, and the order of axes that gives these bytes.
    """
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    found: dict[bytes, tuple[int, tuple[int, ...], tuple[int, ...]]] = {}
    for key, about in json.loads(content[8:start]).items():
        if key == "__metadata__" or about["dtype"] != "F16":
            continue
        first, last = about["data_offsets"]
        values = np.frombuffer(content[start + first : start + last], np.float16).reshape(about["shape"])
        for order in permutations(range(values.ndim)):
            found.setdefault(values.transpose(order).tobytes(), (start + first, values.shape, order))
    return found


def without_weights(model: onnx.ModelProto, weights: Path) -> onnx.ModelProto:
    """The graph with its large float32 constants read from a safetensors file, as external data called ``weights``.

    They are float16 there, and cast. Constants that are no weights are inlined as float16 where that loses nothing.
    """
    stored, casts = stored_halves(weights), []
    for tensor in model.graph.initializer:
        values = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):
            half = values.astype(np.float16)
        if values.dtype != np.float32 or values.size < SMALLEST or not np.array_equal(half, values):
            continue
        name, halved = tensor.name, f"{tensor.name}.half"
        kept = numpy_helper.from_array(half, halved)
        offset, shape, order = stored.get(half.tobytes(), (None, (), ()))
        turned = order != tuple(range(len(order)))
        if offset is not None and (not turned or tuple(shape[axis] for axis in order) == half.shape):
            set_external_data(kept, "weights", offset, half.nbytes)
            kept.ClearField("raw_data")
            if turned:
                kept.dims[:] = shape
                casts.append(helper.make_node("Transpose", [halved], [f"{name}.turned"], perm=order))
                halved = f"{name}.turned"
        tensor.CopyFrom(kept)
        casts.append(helper.make_node("Cast", [halved], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.metadata_props.add(key="weights_sha256", value=sha256_of(weights))
    return model


def graph_of(name: str) -> bytes:
    """The graph of a network for one image at a time, compressed."""
    model = trueshift.create_model(name, pretrained=True).eval()
    with tempfile.TemporaryDirectory() as folder:
        exported = onnx_ir.load(trueshift.export_onnx(model, Path(folder) / "model.onnx", batch=1))
        fold_constants(exported, input_size_limit=FOLDED)
        RemoveUnusedNodesPass()(exported)
        DeduplicateInitializersPass(size_limit=FOLDED)(exported)
        graph = without_weights(onnx_ir.to_proto(exported), weights_of(name))
    return gzip.compress(graph.SerializeToString(), mtime=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    every = [name for family in FAMILIES for name in network_names(family)]
    parser.add_argument("names", nargs="*", metavar="NAME", default=every, help="networks; all without one")
    for name in parser.parse_args().names:
        path = write_whole(GRAPHS / f"{name}.onnx.gz", graph_of(name))
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
