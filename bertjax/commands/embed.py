"""Write the vectors of texts to a file: vectors.npy, or vectors.parquet with the texts.

Example:
  bertjax embed --model=minilm/ --data=texts.txt --output=vectors.npy
  bertjax embed --model=out/ --data=corpus.jsonl --text_column=body --output=vectors.parquet
  bertjax embed --model=e5/ --data=queries.tsv --text_column=query --prompt='query: ' \\
      --output=queries.npy

--data is a .txt file with one text per line, or TSV, CSV, JSON lines or Parquet with a column
`text` or `sentence`, or the one that --text_column names. Row i of the vectors is text i. A model
that was trained for vectors, here or with sentence-transformers, has its own pooling,
normalisation, prompts and maximum length, to which longer texts are truncated. The vectors of any
other model are the means of its last hidden states.

Texts are read in windows, so the memory does not grow with the file. After an interruption, run the
same command again to resume.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from typing import Any

from etils import epath

from bertjax import errors, progress, sharding
from bertjax.artifact import loading
from bertjax.data.corpus import corpus_files
from bertjax.finetuning import predictor
from bertjax.finetuning.examples import readers
from bertjax.inference import embedding, pretrained, text_vectors, vector_files
from bertjax.models.common import heads, layers
from bertjax.runtime import backend

BATCH_SIZE = 64
_COLUMNS = ("text", "sentence")  # the usual names


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    flag = parser.add_argument
    flag("--model", required=True, help="workdir, checkpoint, artifact, Hugging Face folder or "
         "folder of sentence-transformers")  # fmt: skip
    flag("--data", required=True, help="file of texts")
    flag("--output", required=True, help="file to write, .npy or .parquet")
    flag("--text_column", metavar="NAME", help="column of the texts; default: text or sentence")
    flag("--prompt", help="text to put in front of every text; default: the model's own, if any")
    flag("--prompt_name", metavar="NAME", help="name of one of the model's prompts")
    flag("--pooling", choices=heads.POOLINGS, help="default: the model's own, or mean")
    flag("--normalize", action="store_true", default=None,
         help="scale the vectors to length 1; default: as the model was trained")  # fmt: skip
    flag("--batch_size", type=int, default=BATCH_SIZE,
         help="texts per batch, over all devices; default: %(default)s")  # fmt: skip
    flag("--dtype", choices=("float32", "bfloat16"), default="float32",
         help="dtype of the computation; default: %(default)s")  # fmt: skip


def run(flags: argparse.Namespace) -> None:
    """Writes the file and prints what it contains."""
    if flags.batch_size < 1:
        raise errors.UserError(f"--batch_size={flags.batch_size}: must be 1 or more")
    errors.file_to_write("output", flags.output, data=flags.data)
    output = vector_files.check_name(flags.output)
    next(iter(_texts(flags.data, flags.text_column)))  # so that bad data is reported first
    backend.configure(flags.dtype)
    with progress.stage(f"reading {flags.model}"):
        source = loading.load(flags.model)
    make = pretrained.Pretrained if source.task is None else predictor.Predictor
    model = make(source, layers.Compute(dtype=flags.dtype))
    encoding = model.encoding(flags.pooling or "", normalize=flags.normalize)
    prompt = encoding.prompt(flags.prompt_name, flags.prompt)
    mesh = sharding.make_mesh()
    encode = text_vectors.Encoder(
        model, encoding, prompt=prompt, batch_size=flags.batch_size, mesh=mesh
    )
    about = vector_files.About(
        model=model.vectors_fingerprint(encoding),
        path=str(flags.model),
        num_texts=0,
        num_dims=encode.width,
        encoding=encoding.summary(),
        prompt=prompt,
        run=_digest(flags, prompt),
    )
    job = embedding.Job(encode, output, about)
    stored = job.finished()
    if stored is not None:
        print(f"{output}: {stored.num_texts:,} vectors are already there; remove the file to "
              "compute them again")  # fmt: skip
        return
    devices = sharding.described(mesh, flags.dtype)
    progress.table("embed", {"model": source.summary(), "devices": devices, "prompt": repr(prompt)})
    start = time.perf_counter()
    with progress.stage("embedding") as on_progress:
        done = job.run(lambda: _texts(flags.data, flags.text_column), on_progress)
    seconds = time.perf_counter() - start
    if done.num_truncated:
        errors.tell(text_vectors.truncation(done.num_truncated, done.num_texts, encoding))
    if done.num_empty:
        errors.tell(f"warning: {done.num_empty:,} of {done.num_texts:,} texts are empty")
    print(f"{output}: {done.num_texts:,} vectors of {encode.width} dimensions, "
          f"{done.num_new / seconds:,.0f} texts/s")  # fmt: skip


def _texts(path: str, column: str | None) -> Iterator[str]:
    """Yields the texts of a file. Raises UserError if one is missing or is not text."""
    if corpus_files.suffix(path) == ".txt" and not path.startswith("tfds:"):
        if column:
            raise errors.UserError(f"--text_column={column}: {path} has no columns; remove it")
        for _, line in corpus_files.text_lines(path):
            yield line
        return
    names = (column,) if column else _COLUMNS
    for record in readers.records(path, reads=lambda name: name in names):
        name = next((name for name in names if name in record.columns), None)
        if name is None:
            listed = ", ".join(record.columns)[:200] or "none"
            raise errors.UserError(
                f"{record.where}: has no column {' or '.join(map(repr, names))} (its columns: "
                f"{listed}); name the one with the texts as --text_column"
            )
        text = record.fields.get(name)
        if not isinstance(text, str):
            reason = "has no value" if text is None else f"must be text, but is {text!r:.40}"
            raise errors.UserError(f"{record.where}: column {name!r} {reason}")
        yield text


def _digest(flags: argparse.Namespace, prompt: str) -> str:
    """Returns a digest of the data and of the options that change the vectors, or their bits."""
    is_dataset = flags.data.startswith("tfds:")
    files = [] if is_dataset else corpus_files.expand(flags.data, lambda name: True)
    stats = [(name, epath.Path(name).stat()) for name in files]
    content: dict[str, Any] = {
        "data": flags.data,
        "files": [(name, stat.length, str(stat.mtime)) for name, stat in stats],
        "column": flags.text_column,
        "prompt": prompt,
        "batch_size": flags.batch_size,
        "dtype": flags.dtype,
    }
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
