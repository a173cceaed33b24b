#!/usr/bin/env bash
# Runs every step on the built-in corpus: text, tokenizer, prepared data, a small BERT, its scores, and
# exported folders. Usage: `bash launch/demo.sh [FOLDER]`; after an interruption, run it again to resume.
# $PYTHON sets the interpreter; the default is the newest working one of 3.11 to 3.13.
set -euo pipefail
out="$(realpath -m "${1:-$(dirname "${BASH_SOURCE[0]}")/../demo}")"
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out="$(realpath -m --relative-to=. "$out")"  # a short path if it is in the checkout
source launch/python.sh

python="$(find_python 3.13 3.12 3.11)"
make_venv .venv "$python" "-e ."
mkdir -p "$out"

# bertjax VERB ...: shows the command, then runs it.
bertjax() {
  printf '\n$ bertjax'
  printf ' %q' "$@"
  printf '\n'
  .venv/bin/bertjax "$@"
}

if [[ ! -e "$out/corpus.jsonl" ]]; then
  echo "writing the text of this Python installation to $out/corpus.jsonl"
  .venv/bin/python -c "import sys; from bertjax.data.corpus import builtin; builtin.write(sys.argv[1])" \
    "$out/corpus.jsonl"
fi
if [[ ! -e "$out/tokenizer" ]]; then
  bertjax tokenizer --kind=wordpiece --input="$out/corpus.jsonl" --vocab_size=2048 --output="$out/tokenizer"
fi
bertjax prepare --input="$out/corpus.jsonl" --tokenizer="$out/tokenizer" --output="$out/prepared" --heldout_fraction=0.03
bertjax pretrain --config=configs/demo.py --workdir="$out/run" --config.data.path="$out/prepared"
bertjax evaluate --model="$out/run" --data="$out/prepared"
bertjax export --model="$out/run" --output="$out/artifact" --format=artifact
bertjax export --model="$out/run" --output="$out/bert-hf" --format=hf
bertjax inspect "$out/run" --plot="$out/curves.png"
bertjax predict --model="$out/artifact" \
  --text='Return a new [MASK] of the given shape and type.' \
  --text='Raises an [MASK] if the file does not exist.' \
  --text='If the argument is not given, the default value is [MASK].'

cat <<END

artifact             $out/artifact      bertjax.load("$out/artifact")
Hugging Face folder  $out/bert-hf       transformers.AutoModel.from_pretrained("$out/bert-hf")
curves               $out/curves.png
END
