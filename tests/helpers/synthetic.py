"""Small synthetic in-memory datasets for the tests of samples, masking and loader."""

import numpy as np

from bertjax.data.batches import loader, mixture
from bertjax.data.prepared import store
from bertjax.data.tokenizers import vocabulary

SPECIALS = vocabulary.Specials(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST = 5  # the first ordinary id


def make_vocabulary(size: int = 200) -> vocabulary.Vocabulary:
    """Returns a vocabulary with five special tokens and sentinels above the pieces.

    Every third ordinary id continues a word.
    """
    ids = np.arange(size)
    continuations = (ids >= FIRST) & (ids % 3 == 0)
    sentinels = vocabulary.sentinels_above(size)
    return vocabulary.Vocabulary(size, SPECIALS, continuations, ids < FIRST, sentinels)


def batches_of(
    dataset, sampling, transform, *, batch_size, seed, window_tokens=loader.WINDOW_TOKENS
) -> mixture.Mixture:
    """Returns the training batches of a run with one dataset."""
    stream = loader.Stream(dataset, sampling, seed=seed, window_tokens=window_tokens)
    order = mixture.Order({"": 1.0}, seed)
    return mixture.Mixture({"": stream}, order, transform, batch_size=batch_size)


def record(documents: dict[int, list[int]], token: int | None = None, seed: int = 0):
    """Returns a record of documents given as id -> sizes of sentences.

    With `token`, the tokens count up from it, so that an id identifies its position; else they are
    random.
    """
    sizes = [size for document in documents.values() for size in document]
    if token is None:
        tokens = np.random.default_rng(seed).integers(FIRST, 200, sum(sizes)).astype(np.uint16)
    else:
        tokens = np.arange(token, token + sum(sizes), dtype=np.uint32)
    return store.Record(
        document_ids=np.array(list(documents), np.uint64),
        sentences_per_document=np.array([len(d) for d in documents.values()], np.uint32),
        tokens_per_sentence=np.array(sizes, np.uint32),
        tokens=tokens,
    )


def records(count: int, *, counting: bool = False, seed: int = 0) -> list:
    """Returns records of 1 to 6 documents with 1 to 12 sentences of 2 to 40 tokens.

    About 30% of the records end in a document that continues in the next one. counting: whether
    tokens count up through all records (see `record`).
    """
    random = np.random.default_rng(seed)
    made, document, token = [], 0, FIRST
    for _ in range(count):
        documents = {}
        for _ in range(random.integers(1, 7)):
            sizes = np.minimum(1 + random.geometric(0.08, random.integers(1, 13)), 40)
            documents[document] = sizes.tolist()
            document += 1
        document -= int(random.random() < 0.3)
        made.append(record(documents, token if counting else None, seed=len(made)))
        token += len(made[-1].tokens)
    return made


class Dataset:
    """An in-memory replacement of `store.Dataset` with what the loader uses."""

    def __init__(self, made: list):
        self.records = made
        self.num_records = len(made)
        self.num_tokens = sum(len(r.tokens) for r in made)

    def read(self, indices):
        return [self.records[i] for i in indices]
