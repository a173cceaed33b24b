"""Corrupts rows of tokens with the preprocessors of T5, in seqio's pipeline of TensorFlow.

A child of `loader_t5.py`, run by a Python that has the packages seqio and t5:

    VENV/bin/python benchmarks/loader_t5_seqio.py ROWS.npy LENGTH TARGETS_LENGTH BATCH_SIZE

For each line on its standard input it corrupts all rows once, and prints a line with the rows per
second by wall time and by CPU time. The rows are already cut to the right size, so that nothing is
timed but the noise, the sentinels, the EOS, the padding and the batches.
"""

import functools
import importlib.util
import pathlib
import sys
import time

import gin
import numpy as np
import seqio
import tensorflow as tf

VOCAB_SIZE = 32128


def t5_preprocessors():
    """Returns t5.data.preprocessors, read from its file.

    NOTE: the package t5 itself imports its metrics, which need a dozen more packages.
    """
    folder = importlib.util.find_spec("t5").submodule_search_locations[0]
    file = pathlib.Path(folder) / "data" / "preprocessors.py"
    spec = importlib.util.spec_from_file_location("t5_preprocessors", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    rows = np.load(sys.argv[1])
    length, targets_length, batch_size = map(int, sys.argv[2:5])
    preprocessors = t5_preprocessors()
    words = seqio.PassThroughVocabulary(VOCAB_SIZE, eos_id=1)
    features = {name: seqio.Feature(words, add_eos=True) for name in ("inputs", "targets")}
    with gin.unlock_config():
        dataset = tf.data.Dataset.from_tensor_slices({"targets": rows})
        dataset = preprocessors.denoise(
            dataset,
            features,
            noise_density=0.15,
            noise_mask_fn=functools.partial(
                preprocessors.random_spans_noise_mask, mean_noise_span_length=3.0
            ),
            inputs_fn=preprocessors.noise_span_to_unique_sentinel,
            targets_fn=preprocessors.nonnoise_span_to_unique_sentinel,
        )
        dataset = seqio.preprocessors.append_eos(dataset, features)
        lengths = {"inputs": length, "targets": targets_length}
        dataset = seqio.utils.trim_and_pad_dataset(dataset, lengths)
        dataset = dataset.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    print("ready", flush=True)
    for _ in sys.stdin:
        clock, cpu, count = time.perf_counter(), time.process_time(), 0
        for batch in dataset.as_numpy_iterator():
            count += len(batch["inputs"])
        seconds, cpu_seconds = time.perf_counter() - clock, time.process_time() - cpu
        print(count / seconds, count / cpu_seconds, flush=True)


if __name__ == "__main__":
    main()
