"""Compares masked BERT batches with transformers' DataCollatorForLanguageModeling, in sequences/s.

    python benchmarks/loader.py [--data=prepared/] [--length=128] [--batch_size=256] \\
        [--masking=span]
    python benchmarks/loader.py --objectives [--length=512] [--records=1000]

Ours is the complete loader from records to masked pairs: reading, segmentation, shuffling,
assembling, masking. The collator only pads and masks sequences that are already cut (ours,
unmasked, from the same kind of batches). It masks single pieces; with --masking=whole_word, its
masking of whole words, by the pieces' offsets in the text, is a further row. All take turns.
Sequences/s per core divide by the CPU time of all threads; the table has the median of the rounds.
Without --data the records are synthetic: in memory, with lognormal sentences of 24 tokens.

With --objectives, the table has one row per objective, a mixture of two sources, and the packing of
a window into rows. All rows of the table take turns in each round. A round is an epoch, so it has
its share of cutting and packing windows; 1,000 records are about one window. The collator's rate is
that of masking; it has no counterpart for the other objectives.
"""

import argparse
import functools
import itertools
import pathlib
import statistics
import sys
import time
import types
from collections.abc import Callable

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np
import tokenizers
import torch
import transformers

from bertjax.data.batches import loader, mixture
from bertjax.data.batches.rng import RowRandom, row_keys
from bertjax.data.prepared import store
from bertjax.data.tokenizers import tokenizer, vocabulary
from bertjax.objectives import (
    causal_lm,
    denoisers,
    mlm,
    prefix_denoisers,
    prefix_lm,
    span_corruption,
)

OBJECTIVES = {  # {row of the table: (module, config)}
    "mlm, pairs": (mlm, mlm.Config()),
    "mlm, packed": (mlm, mlm.Config(pair="none", packing=True)),
    "mlm, whole words": (mlm, mlm.Config(masking="whole_word")),
    "mlm, n-grams": (mlm, mlm.Config(masking="ngram")),
    "mlm, spans": (mlm, mlm.Config(masking="span")),
    "span_corruption": (span_corruption, span_corruption.Config()),
    "prefix_lm": (prefix_lm, prefix_lm.Config()),
    "prefix_lm, encoder-decoder": (prefix_lm, prefix_lm.Config(kind="encoder_decoder")),
    "denoisers": (denoisers, denoisers.Config()),
    "prefix_denoisers": (prefix_denoisers, prefix_denoisers.Config()),
    "causal_lm": (causal_lm, causal_lm.Config()),
}

RECORD_TOKENS = 8192
RECORDS = 3000  # three windows
VOCAB_SIZE = 30522
SPECIALS = vocabulary.Specials(pad=0, unk=100, cls=101, sep=102, mask=103)


class MadeUp:
    """A synthetic dataset in memory."""

    def __init__(self, num_records: int = RECORDS):
        random = np.random.default_rng(0)
        self.records = [self._record(random, 100 * i) for i in range(num_records)]
        self.num_records = num_records
        self.num_tokens = sum(len(record.tokens) for record in self.records)

    def _record(self, random: np.random.Generator, first_document: int) -> store.Record:
        sizes = np.clip(random.lognormal(3.0, 0.6, 1000), 1, 300).astype(np.uint32)
        sizes = sizes[: np.searchsorted(np.cumsum(sizes), RECORD_TOKENS)]
        cuts = np.unique(random.integers(1, len(sizes), 10))
        counts = np.diff(cuts, prepend=0, append=len(sizes))
        return store.Record(
            document_ids=np.arange(first_document, first_document + len(counts), dtype=np.uint64),
            sentences_per_document=counts.astype(np.uint32),
            tokens_per_sentence=sizes,
            tokens=random.integers(1000, VOCAB_SIZE, sizes.sum()).astype(np.uint16),
        )

    def read(self, indices: np.ndarray) -> list[store.Record]:
        return [self.records[i] for i in indices]


def made_up_vocabulary() -> vocabulary.Vocabulary:
    special = np.zeros(VOCAB_SIZE, bool)
    special[[SPECIALS.pad, SPECIALS.unk, SPECIALS.cls, SPECIALS.sep, SPECIALS.mask]] = True
    continuations = np.random.default_rng(0).random(VOCAB_SIZE) < 0.2
    sentinels = vocabulary.sentinels_above(VOCAB_SIZE)
    return vocabulary.Vocabulary(VOCAB_SIZE, SPECIALS, continuations & ~special, special, sentinels)


def make_collator(
    words: vocabulary.Vocabulary, *, whole_words: bool = False
) -> transformers.DataCollatorForLanguageModeling:
    """Returns transformers' collator, with a tokenizer of the same size and special ids."""
    names = {f"w{i}": i for i in range(words.size)}
    for name in ("pad", "unk", "cls", "sep", "mask"):
        i = getattr(words.specials, name)
        del names[f"w{i}"]
        names[f"[{name.upper()}]"] = i
    stand_in = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer(tokenizers.models.WordLevel(names, "[UNK]")),
        **{f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")},
    )
    return transformers.DataCollatorForLanguageModeling(
        stand_in,
        mlm_probability=0.15,
        whole_word_mask=whole_words,
        mask_replace_prob=1.0 if whole_words else 0.8,  # with whole words it allows nothing else
        random_replace_prob=0.0 if whole_words else 0.1,
    )


def with_offsets(
    batch: dict[str, np.ndarray], words: vocabulary.Vocabulary
) -> list[dict[str, list]]:
    """Returns the padded rows of a batch for transformers' collator of whole words.

    It finds words by the offsets of the pieces in the text. These are made up.
    """
    ids_BL = batch["input_ids"]
    gaps_BL = ~words.continuations[ids_BL]
    starts_BL = np.cumsum(1 + gaps_BL, axis=1)
    offsets_BL2 = np.stack([starts_BL, starts_BL + 1], axis=2)
    offsets_BL2[words.special_mask[ids_BL]] = 0
    names = ("input_ids", "token_type_ids", "attention_mask")
    rows = zip(*(batch[name].tolist() for name in names), offsets_BL2.tolist(), strict=True)
    return [dict(zip((*names, "offset_mapping"), row, strict=True)) for row in rows]


def stream_of(dataset: loader.Dataset, sampling: loader.Sampling, *, seed: int) -> loader.Stream:
    """Returns a stream that reads a window when it is needed, not ahead in the background.

    There its time might be counted as that of the next contender.
    """
    stream = loader.Stream(dataset, sampling, seed=seed)
    windows = stream._windows
    stream._read_ahead = types.SimpleNamespace(
        get=functools.lru_cache(2)(lambda number: windows.read(*divmod(number, len(windows))))
    )
    return stream


def epochs(mixed: mixture.Mixture) -> Callable[[], int]:
    """Returns a function that makes the batches of the next epoch and returns their rows' number.

    So the time has its share of reading, cutting and packing windows of text.
    """
    steps, batches = itertools.count(), mixed.samples_per_epoch // mixed.batch_size

    def build() -> int:
        for step in itertools.islice(steps, batches):
            mixed.batch(step)
        return batches * mixed.batch_size

    return build


def timed(work: Callable[[], int]) -> tuple[float, float]:
    """Returns sequences/s by wall time and by CPU time."""
    clock, cpu = time.perf_counter(), time.process_time()
    sequences = work()
    return (
        sequences / (time.perf_counter() - clock),
        sequences / (time.process_time() - cpu),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", help="prepared data; default: synthetic records")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--batches", type=int, default=400, help="ours, in a round of masking")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=RECORDS, help="number of synthetic records")
    parser.add_argument("--objectives", action="store_true", help="one row for each objective")
    parser.add_argument("--masking", choices=mlm.MASKINGS, default="token")
    flags = parser.parse_args()
    torch.set_num_threads(1)

    if flags.data:
        dataset = store.open_dataset(flags.data, "train")
        words = tokenizer.load(dataset.tokenizer_path).vocabulary()
    else:
        dataset, words = MadeUp(flags.records), made_up_vocabulary()
    config = mlm.Config(masking=flags.masking)
    sampling = mlm.sampling(config, flags.length, words)

    def batches_of(
        transform: loader.Transform, sampling: loader.Sampling = sampling, sources: int = 1
    ) -> mixture.Mixture:
        names = [str(number) for number in range(sources)]
        streams = {name: stream_of(dataset, sampling, seed=int(name)) for name in names}
        order = mixture.Order(dict.fromkeys(names, 1.0), 0)
        return mixture.Mixture(streams, order, transform, batch_size=flags.batch_size)

    stream = batches_of(functools.partial(mlm.transform, config, flags.length, words))
    unmasked = batches_of(lambda batch, rng: batch)

    def sequences(step: int) -> list[dict[str, list[int]]]:
        batch = unmasked.batch(step)
        lengths = batch["attention_mask"].sum(axis=1).tolist()
        names = ("input_ids", "token_type_ids", "attention_mask")
        rows = zip(*(batch[name].tolist() for name in names), strict=True)
        return [
            {name: value[:n] for name, value in zip(names, row, strict=True)}
            for n, row in zip(lengths, rows, strict=True)
        ]

    collator = make_collator(words)
    their_batches = [sequences(step) for step in range(max(1, flags.batches // 20))]

    def in_line(start: int) -> int:
        for step in range(start, start + flags.batches):
            stream.batch(step)
        return flags.batches * flags.batch_size

    def ahead(start: int) -> int:
        for _ in loader.train_batches(stream, start, start + flags.batches):
            pass
        return flags.batches * flags.batch_size

    def theirs(_: int) -> int:
        for batch in their_batches:
            collator(batch)
        return len(their_batches) * flags.batch_size

    def objective(module, config, sources: int = 1) -> Callable[[int], int]:
        transform = functools.partial(module.transform, config, flags.length, words)
        mixed = batches_of(transform, module.sampling(config, flags.length, words), sources)
        next_epoch = epochs(mixed)
        return lambda _: next_epoch()

    def packed(_: int) -> int:
        packer = causal_lm.sampling(causal_lm.Config(), flags.length, words)
        window = packer.window(dataset.read(np.arange(min(1000, dataset.num_records))))
        return len(packer.segment(window, RowRandom(row_keys(0, 0, np.array([0])))))

    if flags.objectives:
        contenders = {name: objective(*pair) for name, pair in OBJECTIVES.items()}
        contenders["mixture of two, causal_lm"] = objective(causal_lm, causal_lm.Config(), 2)
        contenders["packing of a window"] = packed
    else:
        contenders = {"bertjax, Mixture.batch": in_line, "bertjax, train_batches": ahead}
    contenders["transformers collator"] = theirs
    if flags.masking == "whole_word":
        slow_collator = make_collator(words, whole_words=True)
        slow_rows = with_offsets(unmasked.batch(0), words)

        def theirs_whole_words(_: int) -> int:
            slow_collator(slow_rows)
            return len(slow_rows)

        contenders["transformers, whole words"] = theirs_whole_words
    rates = {name: [] for name in contenders}
    for turn in range(flags.rounds + 1):
        for name, work in contenders.items():
            rate = timed(functools.partial(work, turn * flags.batches))
            if turn:  # the first turn warms up
                rates[name].append(rate)

    masking = "one row for each objective" if flags.objectives else f"masking {flags.masking}"
    print(
        f"{dataset.num_tokens:,} tokens, length {flags.length}, batch {flags.batch_size}, "
        f"{masking}, median of {flags.rounds} rounds"
    )
    print(f"{'':28}{'seq/s':>12}{'seq/s/core':>12}{'ratio':>8}")
    medians = {
        name: [statistics.median(column) for column in zip(*rate, strict=True)]
        for name, rate in rates.items()
    }
    base = medians["transformers collator"][1]
    for name, (clock, cpu) in medians.items():
        has_peer = not flags.objectives or name.startswith(("mlm", "transformers"))
        ratio = f"{cpu / base:8.1f}" if has_peer else ""
        print(f"{name:28}{clock:12,.0f}{cpu:12,.0f}{ratio}")


if __name__ == "__main__":
    main()
