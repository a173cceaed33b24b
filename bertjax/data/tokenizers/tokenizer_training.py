"""Trains a tokenizer: WordPiece and byte-level BPE by `tokenizers`, unigram by `sentencepiece`."""

import collections
import io
import itertools
import re
from collections.abc import Iterable, Iterator

import sentencepiece
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from bertjax import errors
from bertjax.data.tokenizers import library_model, sentencepiece_model, tokenizer_files

KINDS = ("wordpiece", "bpe", "unigram")
MIN_FREQUENCY = 2  # a pair that occurs once is not merged
ALPHABET = 1000  # maximum number of single characters; rarer ones become [UNK]
_BATCH = 1000
_THREADS = 16  # fixed: another number sums in another order, which may change the model
_LINE_BYTES = 4000  # below 4192 bytes, the longest line that sentencepiece does not skip

_BERT_NAMES, _ROBERTA_NAMES = tokenizer_files.NAMES[:2]
_ROBERTA_ORDER = ("cls", "pad", "sep", "unk", "mask")


def train(
    kind: str,
    texts: Iterable[str],
    vocab_size: int,
    *,
    lowercase: bool | None = None,
    strip_accents: bool | None = None,
) -> tuple[tokenizer_files.Model, tokenizer_files.Options]:
    """Trains a tokenizer and returns its model and options; see `tokenizer.train`."""
    if kind not in KINDS:
        raise errors.UserError(
            f"unknown tokenizer kind {kind!r}; must be one of {', '.join(KINDS)}"
        )
    if strip_accents is not None and kind != "wordpiece":
        raise errors.UserError(f"strip_accents is an option of wordpiece, not of {kind}")
    lowercase = kind == "wordpiece" if lowercase is None else lowercase
    if kind == "unigram":
        return _unigram(texts, vocab_size, lowercase), tokenizer_files.Options()
    options = tokenizer_files.Options(
        do_lower_case=lowercase,
        strip_accents=strip_accents,
        add_prefix_space=kind == "bpe",  # so that a sentence's ids do not depend on its context
    )
    library = (_wordpiece if kind == "wordpiece" else _bpe)(texts, vocab_size, options)
    _check_size(library.get_vocab_size(), vocab_size)
    return library_model.LibraryModel(library, prefix_once=True), options


def _wordpiece(
    texts: Iterable[str], vocab_size: int, options: tokenizer_files.Options
) -> tokenizers.Tokenizer:
    if isinstance(texts, Iterator):
        texts = list(texts)
    specials = list(_BERT_NAMES.values())
    library = tokenizer_files.wordpiece(specials, options)
    alphabet, inner_characters = _alphabet(texts, library)
    # The library assigns ids to the `##x` characters in the order of a hash table, which differs
    # between runs, and breaks ties between merges by id. As declared specials they have fixed ids.
    declared = [*specials, *alphabet, *(f"##{char}" for char in inner_characters)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        special_tokens=declared,
        show_progress=False,
    )
    library.train_from_iterator(_batches(texts), trainer)
    ids = library.get_vocab()
    return tokenizer_files.wordpiece(sorted(ids, key=ids.__getitem__), options)


def _alphabet(texts: Iterable[str], library: tokenizers.Tokenizer) -> tuple[list[str], list[str]]:
    """Returns two lists of characters.

    The first has the most frequent characters of the normalised texts. The second has those of them
    that may occur inside a word, because the pre-tokenizer does not split a word there.
    """
    raw_counts: collections.Counter[str] = collections.Counter()
    for text in texts:
        raw_counts.update(text)
    counts: collections.Counter[str] = collections.Counter()
    for char, count in raw_counts.items():
        if "\ud800" <= char <= "\udfff":
            continue
        for normal in library.normalizer.normalize_str(char):
            counts[normal] += count if not normal.isspace() else 0
    frequent = sorted(+counts, key=lambda char: (-counts[char], char))[:ALPHABET]
    split = library.pre_tokenizer.pre_tokenize_str
    return sorted(frequent), sorted(char for char in frequent if len(split(f"a{char}a")) == 1)


def _bpe(
    texts: Iterable[str], vocab_size: int, options: tokenizer_files.Options
) -> tokenizers.Tokenizer:
    specials = [_ROBERTA_NAMES[role] for role in _ROBERTA_ORDER]
    library = tokenizer_files.byte_level({}, [], options)
    library.model = models.BPE()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=MIN_FREQUENCY,
        special_tokens=specials,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(_batches(texts), trainer)
    model = library_model.LibraryModel(library).spec["model"]
    pairs = [tuple(p.split(" ")) if isinstance(p, str) else tuple(p) for p in model["merges"]]
    return tokenizer_files.byte_level(model["vocab"], pairs, options)


def _unigram(
    texts: Iterable[str], vocab_size: int, lowercase: bool
) -> sentencepiece_model.UnigramModel:
    model = io.BytesIO()
    reader_errors: list[Exception] = []
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_record_errors(_lines(texts), reader_errors),
            model_writer=model,
            model_type="unigram",
            vocab_size=vocab_size,
            normalization_rule_name="nmt_nfkc_cf" if lowercase else "nmt_nfkc",
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            pad_piece="<pad>",
            unk_piece="<unk>",
            control_symbols=["[CLS]", "[SEP]", "[MASK]"],  # 2, 3, 4, as in ALBERT
            num_threads=_THREADS,
            minloglevel=2,
        )
    except RuntimeError as error:
        raise (reader_errors or [_unigram_error(str(error), vocab_size)])[0] from error
    return sentencepiece_model.UnigramModel(model.getvalue())


def _record_errors(texts: Iterable[str], reader_errors: list[Exception]) -> Iterator[str]:
    """Yields the texts. Appends an exception from reading them to `reader_errors`.

    Without this, the exception would be lost: sentencepiece replaces it with a RuntimeError.
    """
    try:
        yield from texts
    except Exception as error:
        reader_errors.append(error)
        raise


def _unigram_error(message: str, vocab_size: int) -> errors.UserError:
    if match := re.search(r"value <= (\d+)", message):
        return _too_large(int(match[1]), vocab_size)
    if match := re.search(r"required_chars[^0-9]*\d+ vs (\d+)", message):
        return _too_small(int(match[1]) + 1, vocab_size)
    if re.search(r"sentences_\.empty|all_chars_count", message):
        return errors.UserError("no text to train a tokenizer on: every document is empty")
    return errors.UserError(f"sentencepiece cannot train on this text: {message}")


def _check_size(size: int, vocab_size: int) -> None:
    if size > vocab_size:
        raise _too_small(size, vocab_size)
    if size < vocab_size:
        raise _too_large(size, vocab_size)


def _too_small(size: int, vocab_size: int) -> errors.UserError:
    return errors.UserError(
        f"vocab_size={vocab_size} is too small: the special tokens and single characters of this "
        f"text already need {size}; use vocab_size={size} or more"
    )


def _too_large(size: int, vocab_size: int) -> errors.UserError:
    return errors.UserError(
        f"vocab_size={vocab_size} is too large: this text supports at most {size} pieces; "
        f"use vocab_size={size} or less, or more text"
    )


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    texts = iter(texts)
    while batch := list(itertools.islice(texts, _BATCH)):
        yield batch


def _lines(texts: Iterable[str]) -> Iterator[str]:
    """Yields the lines of the texts.

    Lines that are too long for sentencepiece, which would skip them, are split at white space.
    """
    for text in texts:
        for line in text.splitlines():
            if len(line.encode("utf-8", "replace")) <= _LINE_BYTES:
                yield line
                continue
            yield from re.findall(rf"\S.{{0,{_LINE_BYTES // 4 - 2}}}(?!\S)|\S+", line)
