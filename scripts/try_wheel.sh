#!/usr/bin/env bash
# Build the wheel, install it into an empty environment, and try there what a new user would try first.
# PYTHON=python3.12 and TORCH=2.8.0 choose versions other than those that `python3` and constraints.txt name.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
python=${PYTHON:-python3}
rm -rf out/dist out/wheel
mkdir -p out/wheel/folder

"$python" -m venv out/wheel/builder
out/wheel/builder/bin/pip install --quiet --constraint constraints.txt build
out/wheel/builder/bin/python -m build --outdir out/dist
ls -l out/dist

"$python" -m venv out/wheel/empty
bin=$root/out/wheel/empty/bin
constraints=$root/out/wheel/constraints.txt
grep -vE "^(${TORCH:+torch|torchvision|triton})==" constraints.txt >"$constraints"
echo "${TORCH:+torch==$TORCH}" >>"$constraints"
"$bin/pip" install --quiet --constraint "$constraints" torch # first and alone, as in the Makefile
"$bin/pip" install --quiet --constraint "$constraints" out/dist/*.whl

cd out/wheel/folder # not the source tree: what was installed is tried
"$bin/trueshift" --version
"$bin/trueshift" --help >/dev/null
for command in audit eval playground segment recipes download; do
  "$bin/trueshift" "$command" --help >/dev/null
done
# what an extra brings is not there: one line names it
if "$bin/trueshift" train --help 2>message; then exit 1; fi
grep "pip install 'trueshift\[train\]'" message
mkdir parquet && touch parquet/train.parquet
if "$bin/trueshift" audit swin_mini --data parquet 2>message; then exit 1; fi
grep "pip install 'trueshift\[data\]'" message
export="import trueshift; trueshift.export_onnx(trueshift.create_model('a_swin_mini'), 'model.onnx')"
if "$bin/python" -c "$export" 2>message; then exit 1; fi
grep "^ImportError.*pip install 'trueshift\[onnx\]'" message
"$bin/trueshift" audit swin_mini --against a_swin_mini --limit 4 --output audit
test -s audit/report.html
"$bin/trueshift" playground --no-open --output playground.html
test -s playground.html
"$bin/pip" install --quiet --constraint "$constraints" 'trueshift[train]' # as the line above says
"$bin/trueshift" train --help >/dev/null
echo "the wheel works"
