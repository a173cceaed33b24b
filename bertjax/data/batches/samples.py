"""Segments text into training samples: spans of a window, chosen and truncated as in BERT.

A window holds the text of some records of the prepared dataset as flat arrays. `Pairs`,
`OrderedPairs` and `FullSentences` have the same three methods, all of them vectorised and pure:

    window = sampling.window(records)               # flat arrays; very long sentences are cut
    table = sampling.segment(window, rng)           # every sample of the window, as spans of tokens
    batch = sampling.assemble(window, table[rows])  # these samples as padded arrays

A window is segmented in two steps. The first step assumes that a sample starts at every sentence,
and computes where the next sample would then start. The second step follows these links from the
first sentence of each part or, if samples may cross documents, of the window. Random numbers are
therefore drawn for every sentence, and a sample uses those of its first sentence.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from bertjax.data.batches import rows
from bertjax.data.batches.rng import RowRandom
from bertjax.data.tokenizers.vocabulary import Specials

# One sample: two spans A and B of the window's tokens. a and b are the indices of their first
# tokens, a_size and b_size their numbers of tokens. label is 1 if B is from another document
# (Pairs) or precedes A in the text (OrderedPairs).
SAMPLE = np.dtype(
    [("a", np.int32), ("a_size", np.int32), ("b", np.int32), ("b_size", np.int32),
     ("label", np.int32)]
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Window:
    """The text of some records: T tokens, which form S sentences, which form D parts.

    A part consists of the sentences of one document that are in one record.

    tokens: uint16 or uint32 [T].
    sentences: int32[S + 1], the index of the first token of each sentence, then T.
    parts: int32[D + 1], the index of the first sentence of each part, then S.
    document_ids: uint64[D], for each part the id of its document.
    """

    tokens: np.ndarray
    sentences: np.ndarray
    parts: np.ndarray
    document_ids: np.ndarray


@dataclasses.dataclass(frozen=True)
class TwoSegments:
    """Base class for samples [CLS] A [SEP] B [SEP]; subclasses define `spans` to choose A and B.

    short_rate: the share of samples for which a shorter target length is drawn.
    """

    length: int
    specials: Specials
    short_rate: float

    label: ClassVar[str]  # the name of the feature that holds the table's label

    @property
    def max_tokens(self) -> int:
        """The maximum number of text tokens in a sample."""
        return self.length - 3

    def window(self, records: Sequence) -> Window:
        """Joins records from `data.prepared.store` into a window."""
        return _cut(_join(records), self.max_tokens)

    def segment(self, window: Window, rng: RowRandom) -> np.ndarray:
        """Returns SAMPLE[N] in the order of the text.

        rng: the random numbers for the window, a `RowRandom` with a single row.
        """
        table = self.spans(window, rng)
        return truncate(table, self.max_tokens, rng.uniform("pairs/front", len(table))[0])

    def assemble(self, window: Window, table: np.ndarray) -> dict[str, np.ndarray]:
        """Returns input_ids, attention_mask, token_type_ids int32[B, L] and the label int32[B]."""
        a_size, b_size, size = table["a_size"], table["b_size"], self.length
        # The masks are -1 where true and 0 elsewhere, so that bits are selected without branches.
        in_a = rows.before(a_size + 2, size)
        real = rows.before(a_size + b_size + 3, size)
        ids = rows.copied(window.tokens, table["b"] - a_size - 2, size)
        others = rows.copied(window.tokens, table["a"] - 1, size)
        others ^= ids
        others &= in_a
        ids ^= others
        _close(ids, real, self.specials, a_size + 1, a_size + b_size + 2)
        types = np.subtract(in_a, real, out=in_a)
        return {
            "input_ids": ids,
            "attention_mask": np.negative(real, out=real),
            "token_type_ids": types,
            self.label: table["label"].astype(np.int32),
        }

    def _chunks(self, window: Window, rng: RowRandom) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns for each sentence: the end of a sample that starts there, the end of the sample's
        A, and the sample's target size.

        The ends are sentence numbers, exclusive. The target size is in tokens.
        """
        sentences, n = window.sentences, len(window.sentences) - 1
        end = np.repeat(window.parts[1:], np.diff(window.parts))  # end of each sentence's part
        target = _targets(self.short_rate, self.max_tokens, n, rng)
        chunk_end = np.minimum(_next_boundary(sentences, sentences[:-1] + target), end)
        size = chunk_end - np.arange(n)
        return chunk_end, np.arange(n) + rng.integers("pairs/a", 1, size, n)[0], target


@dataclasses.dataclass(frozen=True)
class Pairs(TwoSegments):
    """Samples pairs in which B follows A or is from another document, for next_sentence_label.

    random_next_rate: the probability that B is from another document. A sample of one sentence
        always gets such a B. If the window has only one document, no sample gets such a B.

    The method is that of create_instances_from_document in BERT's create_pretraining_data.py, with
    two differences. The target length is drawn per sample, not once per document. A sentence longer
    than a sample is cut into equal pieces instead of being truncated.
    """

    random_next_rate: float

    label = "next_sentence_label"

    def spans(self, window: Window, rng: RowRandom) -> np.ndarray:
        """Returns SAMPLE[N] before truncation to max_tokens.

        Each token of the window is in exactly one segment, if segments B from other documents are
        not counted.
        """
        sentences, n = window.sentences, len(window.sentences) - 1
        end = np.repeat(window.parts[1:], np.diff(window.parts))  # end of each sentence's part
        chunk_end, a_end, target = self._chunks(window, rng)
        size = chunk_end - np.arange(n)
        if np.all(window.document_ids == window.document_ids[0]):
            foreign = np.zeros(n, bool)  # no other document to draw from
        else:
            foreign = (rng.uniform("pairs/foreign", n)[0] < self.random_next_rate) | (size == 1)

        s = follow(np.where(foreign, a_end, chunk_end), window.parts)
        foreign, a_end = foreign[s], a_end[s]
        b_start, b_end = a_end.copy(), chunk_end[s]
        part = np.searchsorted(window.parts, s[foreign], side="right") - 1
        b = _foreign_sentences(window, part, rng)
        target_b = np.maximum(target[s] - (sentences[a_end] - sentences[s]), 1)[foreign]
        b_start[foreign] = b
        b_end[foreign] = np.minimum(_next_boundary(sentences, sentences[b] + target_b), end[b])
        table = np.empty(len(s), SAMPLE)
        table["a"], table["a_size"] = sentences[s], sentences[a_end] - sentences[s]
        table["b"], table["b_size"] = sentences[b_start], sentences[b_end] - sentences[b_start]
        table["label"] = foreign
        return table


@dataclasses.dataclass(frozen=True)
class OrderedPairs(TwoSegments):
    """Samples two consecutive segments of one document, for sentence_order_label.

    The two segments are swapped in half of the samples. This is sentence order prediction (ALBERT,
    arXiv 1909.11942, section 3.1). If a sample consists of a single sentence, it is cut in two,
    whereas ALBERT's data script adds text from another document. If that sentence is a single
    token, the sample is skipped.
    """

    label = "sentence_order_label"

    def spans(self, window: Window, rng: RowRandom) -> np.ndarray:
        """Returns SAMPLE[N] before truncation to max_tokens; label is 1 if B precedes A."""
        sentences = window.sentences
        chunk_end, a_end, _ = self._chunks(window, rng)
        s = follow(chunk_end, window.parts)
        start, end = sentences[s], sentences[chunk_end[s]]
        single = chunk_end[s] == s + 1
        cut = start + rng.integers("pairs/cut", 1, end - start, len(s))[0]
        middle = np.where(single, cut, sentences[a_end[s]])
        splittable = end - start > 1
        start, middle, end = start[splittable], middle[splittable], end[splittable]
        swapped = rng.uniform("pairs/swapped", len(s))[0][splittable] < 0.5
        table = np.empty(len(start), SAMPLE)
        table["a"], table["b"] = np.where(swapped, (middle, start), (start, middle))
        sizes = middle - start, end - middle
        table["a_size"], table["b_size"] = np.where(swapped, sizes[::-1], sizes)
        table["label"] = swapped
        return table


@dataclasses.dataclass(frozen=True)
class FullSentences:
    """Samples as many whole, consecutive sentences as fit: [CLS] text [SEP].

    short_rate: the share of samples for which a shorter target length is drawn.
    cross_documents: whether a sample may continue with the next document, after a [SEP], as in the
        FULL-SENTENCES format of RoBERTa (section 4.2); if not, it ends with the document, as in
        SpanBERT.
    """

    length: int
    specials: Specials
    short_rate: float
    cross_documents: bool

    @property
    def max_tokens(self) -> int:
        """The maximum number of text tokens in a sample."""
        return self.length - 2

    def window(self, records: Sequence) -> Window:
        """Joins records into a window; with cross_documents, appends a [SEP] to each part."""
        window = _join(records)
        if self.cross_documents:
            window = _close_parts(window, self.specials.sep)
        return _cut(window, self.max_tokens)

    def segment(self, window: Window, rng: RowRandom) -> np.ndarray:
        """Returns SAMPLE[N] in the order of the text; B is always empty.

        rng: the random numbers for the window, a `RowRandom` with a single row.
        """
        sentences, n = window.sentences, len(window.sentences) - 1
        target = _targets(self.short_rate, self.max_tokens, n, rng)
        last = np.searchsorted(sentences, sentences[:-1] + target, side="right") - 1
        end = np.maximum(last, np.arange(n) + 1)
        if self.cross_documents:
            s = follow_one(end)
        else:
            end = np.minimum(end, np.repeat(window.parts[1:], np.diff(window.parts)))
            s = follow(end, window.parts)
        table = np.zeros(len(s), SAMPLE)
        table["a"], table["a_size"] = sentences[s], sentences[end[s]] - sentences[s]
        if self.cross_documents:
            # If a sample ends with a document's [SEP], omit it, because `assemble` adds a [SEP].
            table["a_size"] -= np.isin(end[s], window.parts)
        return table

    def assemble(self, window: Window, table: np.ndarray) -> dict[str, np.ndarray]:
        """Returns input_ids and attention_mask, int32[B, L]."""
        real = rows.before(table["a_size"] + 2, self.length)
        ids = rows.copied(window.tokens, table["a"] - 1, self.length)
        _close(ids, real, self.specials, table["a_size"] + 1)
        return {"input_ids": ids, "attention_mask": np.negative(real, out=real)}


def follow(next_starts: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Returns int64[N], ascending: the first sentence of each sample, if no sample crosses parts.

    It follows the links of all parts at once, from their first sentences to their ends.
    next_starts: for each sentence s, the first sentence of the next sample; it is greater than s.
    parts: as in `Window`.
    """
    starts, ends = parts[:-1].astype(np.int64), parts[1:]
    found = []
    while len(starts):
        inside = starts < ends
        starts, ends = starts[inside], ends[inside]
        found.append(starts)
        starts = next_starts[starts]
    return np.sort(np.concatenate(found))


def follow_one(next_starts: np.ndarray) -> np.ndarray:
    """Returns int64[N], the first sentence of each sample: 0, next_starts[0],
    next_starts[next_starts[0]] ..., up to the last sentence.

    next_starts: as in `follow`, but samples may cross parts.
    """
    links = next_starts.tolist()  # iterating over a list is much faster than over an array
    starts, s = [], 0
    while s < len(links):
        starts.append(s)
        s = links[s]
    return np.array(starts, np.int64)


def truncate(table: np.ndarray, max_tokens: int, front: np.ndarray) -> np.ndarray:
    """Truncates pairs to max_tokens in total: removes tokens from the longer segment (B at a tie)
    until the pair fits.

    front: float[N] in [0, 1), the share of the removed tokens that are taken from the front of the
    segment; the other removed tokens are taken from its end.
    """
    a, b = table["a_size"], table["b_size"]
    b_keep = np.minimum(b, np.maximum(max_tokens - a, max_tokens // 2))
    a_keep = np.minimum(a, max_tokens - b_keep)
    result = table.copy()
    result["a"] += (front * (a - a_keep + 1)).astype(np.int32)
    result["b"] += (front * (b - b_keep + 1)).astype(np.int32)
    result["a_size"], result["b_size"] = a_keep, b_keep
    return result


def _close(ids: np.ndarray, real: np.ndarray, specials: Specials, *separators: np.ndarray) -> None:
    """Writes [CLS], the [SEP] at the given columns, and the padding into rows of text, in place.

    real: as `rows.before` returns it, for the tokens that are not padding.
    """
    ids[:, 0] = specials.cls
    numbers = np.arange(len(ids))
    for column in separators:
        ids[numbers, column] = specials.sep
    if specials.pad == 0:
        ids &= real
    else:
        ids ^= specials.pad
        ids &= real
        ids ^= specials.pad


def _targets(short_rate: float, max_tokens: int, n: int, rng: RowRandom) -> np.ndarray:
    """Returns int32[n]: target sizes in tokens.

    With probability short_rate a size is drawn uniformly from 2 to max_tokens; else it is
    max_tokens.
    """
    short = rng.uniform("samples/short", n)[0] < short_rate
    size = rng.integers("samples/target", 2, max_tokens + 1, n)[0]
    return np.where(short, size, max_tokens).astype(np.int32)


def _next_boundary(sentences: np.ndarray, token: np.ndarray) -> np.ndarray:
    """Returns the first sentence boundary at or after each token."""
    return np.searchsorted(sentences, token)


def _foreign_sentences(window: Window, part: np.ndarray, rng: RowRandom) -> np.ndarray:
    """Returns for each part (see `Window`) the index of a random sentence in another document.

    First draws one of the parts of other documents, then a sentence of this part.
    """
    # Sort the parts by document id. Then the parts of a document form one range: draw outside it.
    order = np.argsort(window.document_ids, kind="stable")
    ids, part_ids = window.document_ids[order], window.document_ids[part]
    low = np.searchsorted(ids, part_ids, side="left")
    high = np.searchsorted(ids, part_ids, side="right")
    other = rng.integers("pairs/document", 0, len(ids) - (high - low), len(part))[0]
    other = order[np.where(other < low, other, other + high - low)]
    return rng.integers("pairs/b", window.parts[other], window.parts[other + 1], len(part))[0]


def _join(records: Sequence) -> Window:
    tokens = np.concatenate([record.tokens for record in records])
    sizes = np.concatenate([record.tokens_per_sentence for record in records])
    counts = np.concatenate([record.sentences_per_document for record in records])
    ids = np.concatenate([record.document_ids for record in records])
    return Window(tokens, _edges(sizes), _edges(counts), ids)


def _close_parts(window: Window, sep: int) -> Window:
    """Appends `sep` to the last sentence of each part."""
    ends = window.sentences[window.parts[1:]]
    part = np.repeat(np.arange(len(ends)), np.diff(window.parts))
    return dataclasses.replace(
        window,
        tokens=np.insert(window.tokens, ends, sep),
        sentences=window.sentences + np.append(part, len(ends)).astype(np.int32),
    )


def _cut(window: Window, max_tokens: int) -> Window:
    """Cuts sentences longer than max_tokens into pieces of (nearly) equal size."""
    sizes = np.diff(window.sentences)
    long = np.flatnonzero(sizes > max_tokens)
    if not len(long):
        return window
    cuts = -(-sizes[long] // max_tokens) - 1
    before = _edges(cuts)  # the number of cuts before each long sentence, then that of all cuts
    number = np.arange(1, before[-1] + 1) - np.repeat(before[:-1], cuts)
    sentence = np.repeat(long, cuts)
    offset = number * sizes[sentence].astype(np.int64) // np.repeat(cuts + 1, cuts)
    return dataclasses.replace(
        window,
        sentences=np.insert(window.sentences, sentence + 1, window.sentences[sentence] + offset),
        parts=window.parts + before[np.searchsorted(long, window.parts)],
    )


def _edges(sizes: np.ndarray) -> np.ndarray:
    edges = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=edges[1:])
    return edges
