"""All that benchmarks take from the package's rooms for data, evaluation and training: imported here alone."""

# ruff: noqa: F401

from trueshift.data import EmbeddedSample, ImageFolder, Preparation, open_data, open_fields
from trueshift.eval import EvalOptions, find_protocols, load_eval_model, measure_fields, run_evaluation
from trueshift.eval.models.eval_model import EvalModel, adapted_twin, canonical_twin, make_eval_model
from trueshift.eval.options import inference_device, on_gpu
from trueshift.train import TrainConfig, list_recipes, parse_arguments, train
from trueshift.train.compile_check import SAFE
from trueshift.train.data.loader import Batch
from trueshift.train.preemption import StopRequest
from trueshift.train.trainer import Trainer
