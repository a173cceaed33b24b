"""Tags each word: named entities, slots, parts of speech (Devlin et al., arXiv 1810.04805, 5.3).

The first piece of a word predicts its tag. A sentence that is too long is split between words into
overlapping windows. Each word is trained and predicted in only one window. If two windows contain
the word, the window in which the word is farther from the window's edge is used.

By default, a sentence is encoded as a whole (`word_pieces`), so the model reads the same ids as
with other tools. A word may have no piece of its own, because a piece of the word before covers it
or because the tokenizer drops its characters. Such a word continues the tag of the word before.

The scores count whole entities of words, as CoNLL does (Tjong Kim Sang & De Meulder 2003): the type
and both ends must be right.

Shapes: B batch, L length, C labels.
"""

import bisect
import dataclasses
import itertools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, metrics
from bertjax.finetuning import rows, word_pieces
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base
from bertjax.objectives.common import losses

Example = examples_lib.Words
OUTSIDE = "O"


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of pieces, windows and tags."""

    label_pieces: str = "first"  # pieces of a word that are trained: first, or all
    long_sentences: str = "windows"  # windows; or truncate: words beyond max_length are not read
    overlap: int = 32  # maximum number of pieces that two windows share; at most half a window
    repair: bool = False  # change an I tag to B if it does not continue an entity
    encoding: str = "text"  # encode the whole text of a sentence (text), or each word alone (words)

    def __post_init__(self):
        for name, allowed in (
            ("label_pieces", ("first", "all")),
            ("long_sentences", ("windows", "truncate")),
            ("encoding", ("text", "words")),
        ):
            value = getattr(self, name)
            errors.check(value in allowed, f"kind.{name}", value, " or ".join(allowed))
        errors.check(self.overlap >= 0, "kind.overlap", self.overlap, "0 or more")


class Span(NamedTuple):
    """An entity: the words [start, stop)."""

    type: str
    start: int
    stop: int


class Window(NamedTuple):
    """A row of the words [start, stop), which trains and predicts only the words [first, last).

    The indices count only words that have pieces of their own.
    """

    start: int
    stop: int
    first: int
    last: int


class TaskType(base.TaskType):
    """Predicts a tag for each word with the head "token_classifier"."""

    model_kinds = ("encoder",)
    libraries = ("seqeval",)
    # Earlier versions encoded each word alone.
    former = types.MappingProxyType({"encoding": "words"})
    packs = True
    heads = ("token_classifier",)
    Config = Config
    output_notes = types.MappingProxyType(
        {
            "tags": "the index of each token's likeliest label; the first token of a word counts",
            "probabilities": "the probability of each token's likeliest label",
        }
    )
    hf_class = "ForTokenClassification"
    hf_task = "tokens"
    hf_labelled = True

    @classmethod
    def hf_derived(
        cls, content: Mapping[str, Any], labels: list[str], where: Any
    ) -> tuple[str, list[str], dict[str, Any]]:
        """Returns (name, labels, config) of the task of a folder that bertjax did not write.

        The whole text is encoded at once, as in the pipelines of transformers.
        """
        return cls.hf_task, labels, {"encoding": "text"}

    @classmethod
    def hf_max_length(cls, task: Mapping[str, Any], limit: int) -> int:
        """Returns the length, in tokens, to which transformers truncates a text.

        This is the model's maximum if long sentences are split into windows, because transformers
        does not split them.
        """
        windows = task["config"].get("long_sentences") != "truncate"
        return limit if windows else super().hf_max_length(task, limit)

    def label_names(self, examples: Sequence[Example]) -> list[str]:
        """Returns the tags that occur: O first, then sorted.

        If the tags mark entities, O and both B and I of each entity type are always included.
        """
        tags = {tag for example in examples for tag in example.tags or ()}
        if marks_entities(tags):
            entity_types = sorted({tag[2:] for tag in tags if tag != OUTSIDE})
            return [OUTSIDE, *(f"{letter}-{name}" for name in entity_types for letter in "BI")]
        return sorted(tags, key=lambda tag: (tag != OUTSIDE, tag))

    def check(self, examples: Sequence[Example]) -> None:
        """Raises UserError for a tag that is not one of `labels`."""
        labels = set(self.labels)
        for example in examples:
            for place, tag in enumerate(example.tags or ()):
                if tag not in labels:
                    label = f"tag {tag!r} of {example.words[place]!r:.40}"
                    raise base.not_trained(example.where or self.task, label, self.labels)

    def features(self) -> dict[str, rows.Feature]:
        """Returns {name: Feature} for the arrays in a row.

        words: 1 + the index of the word whose tag this piece predicts; 0 if it predicts none.
        carried: how many words after that word have no piece of their own.
        """
        return {
            **rows.FEATURES,
            "targets": rows.Feature(np.int32),
            "loss_weights": rows.Feature(np.float32),
            "words": rows.Feature(np.int32),
            "carried": rows.Feature(np.int32),
        }

    def _encode(self, examples: Sequence[Example]) -> rows.Encoded:
        """Encodes rows of [CLS] sentence [SEP]; a sentence that is too long gets several rows.

        With long_sentences "truncate", keeps only its first row. Truncates a word that is longer
        than a row. Raises UserError if a row has no room for a piece.
        """
        form = rows.Form(self.tokenizer)
        room = self.lengths.length - form.overhead(1)
        if room < 1:
            raise errors.UserError(
                f"config.max_length = {self.lengths.length} leaves no room for a word; raise it"
            )
        index = {tag: i for i, tag in enumerate(self.labels)}
        split = word_pieces.of_texts if self.config.encoding == "text" else word_pieces.of_words
        encoded, owners, truncated = [], [], np.zeros(len(examples), bool)
        for i, (example, words) in enumerate(
            zip(examples, split(self.tokenizer, examples), strict=True)
        ):
            words = [word.cut(room) for word in words]
            row_windows = list(
                windows([len(word.ids) for word in words], room, self.config.overlap)
            )
            if self.config.long_sentences == "truncate":
                truncated[i] = len(row_windows) > 1
                row_windows = [row_windows[0]._replace(last=row_windows[0].stop)]
            targets = None if example.tags is None else [index[tag] for tag in example.tags]
            for window in row_windows:
                window_words = words[window.start : window.stop]
                ids = list(itertools.chain.from_iterable(word.ids for word in window_words))
                enclosed = form.enclose([ids], self.lengths.length)
                encoded.append(
                    enclosed.row
                    | _targets(self.config, window, words, targets, self.labels, enclosed)
                )
                owners.append(i)
        return rows.Encoded(encoded, np.array(owners, int), truncated)

    def normalizers(self, batch: losses.Batch) -> dict[str, jax.Array]:
        """Returns the number of trained pieces in the batch, by which the loss sum is divided."""
        return {"token_loss": losses.target_weights(batch).sum()}

    def loss(self, apply: Callable[..., losses.Batch], batch: losses.Batch) -> metrics.Terms:
        """Returns token_loss, the cross entropy in nats, and token_accuracy, of trained pieces."""
        logits_BLC = apply(**rows.inputs(batch))["token_logits"]
        weights = losses.target_weights(batch)
        return losses.classification("token", logits_BLC, batch["targets"], weights)

    def outputs(
        self, apply: Callable[..., losses.Batch], batch: losses.Batch
    ) -> dict[str, jax.Array]:
        """Returns each piece's likeliest tag and its probability.

        They are "tags" int32[B, L] and "probabilities" float32[B, L].
        """
        logits_BLC = apply(**rows.inputs(batch))["token_logits"]
        return {
            "tags": jnp.argmax(logits_BLC, axis=-1).astype(jnp.int32),
            "probabilities": jax.nn.softmax(logits_BLC).max(axis=-1),
        }

    def decode(
        self, examples: Sequence[Example], encoded: rows.Encoded, outputs: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Returns {"tags", "probabilities", "entities": [{"type", "text", "start", "stop"}]}.

        tags, probabilities: of each word. start, stop: in words. If the example has its raw text,
        an entity also has "characters": [start, stop) in it. A word that the model does not read,
        because it was truncated or the tokenizer drops the beginning of the text, has the
        probability 0 and the tag O, or "" if there is no tag O.
        """
        outside = OUTSIDE if OUTSIDE in self.labels else ""
        tags = [[outside] * len(example.words) for example in examples]
        probabilities = [[0.0] * len(example.words) for example in examples]
        for number, (row, owner) in enumerate(zip(encoded.rows, encoded.owners, strict=True)):
            for place in np.flatnonzero(row["words"]):
                word, tag = row["words"][place] - 1, outputs["tags"][number][place]
                count = int(row["carried"][place])
                inner = self.labels[_target_inside(tag, self.labels)]
                tags[owner][word : word + 1 + count] = [self.labels[tag], *[inner] * count]
                probability = float(outputs["probabilities"][number][place])
                probabilities[owner][word : word + 1 + count] = [probability] * (1 + count)
        entities = marks_entities(self.labels)
        if self.config.repair and entities:
            tags = [repaired(sentence) for sentence in tags]
        return [
            {
                "tags": sentence_tags,
                "probabilities": p,
                "entities": _entities(example, spans(sentence_tags)) if entities else [],
            }
            for example, sentence_tags, p in zip(examples, tags, probabilities, strict=True)
        ]

    def scores(
        self, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Returns the scores of the sentences that have tags, 0 to 100.

        accuracy: the share of words with the right tag. If tags mark entities, also returns
        precision, recall and f1 of all entities, and precision/TYPE, recall/TYPE and f1/TYPE of
        each type. The package seqeval computes them as CoNLL does.
        """
        pairs = zip(examples, predictions, strict=True)
        pairs = [(list(e.tags), list(p["tags"])) for e, p in pairs if e.tags is not None]
        targets, outputs = [tags for tags, _ in pairs], [tags for _, tags in pairs]
        flat = itertools.chain.from_iterable
        accuracy = scores_lib.accuracy(list(flat(targets)), list(flat(outputs)))
        if not marks_entities(self.labels):
            return {"accuracy": accuracy}
        if not any(spans(tags) for tags in targets + outputs):
            return {**dict.fromkeys(_SCORES, 0.0), "accuracy": accuracy}
        seqeval = scores_lib.library("seqeval.metrics")
        report = seqeval.classification_report(targets, outputs, output_dict=True, zero_division=0)
        result = {**_percents(report["micro avg"]), "accuracy": accuracy}
        for name in sorted(report.keys() - {"micro avg", "macro avg", "weighted avg"}):
            result |= {f"{key}/{name}": value for key, value in _percents(report[name]).items()}
        return result

    def lines(self, prediction: dict[str, Any], top: int) -> list[str]:
        """Returns one line for each entity.

        Without entities, returns one line with all tags, or "no entity" if all of them are O.
        """
        if prediction["entities"] or not prediction["tags"]:
            return [f"{entity['type']}: {entity['text']}" for entity in prediction["entities"]]
        outside = set(prediction["tags"]) == {OUTSIDE}
        return ["no entity"] if outside else [" ".join(prediction["tags"])]


def marks_entities(tags: Sequence[str] | set[str]) -> bool:
    """Returns whether all tags are of the BIO scheme."""
    return all(tag == OUTSIDE or tag[:2] in ("B-", "I-") for tag in tags)


def windows(sizes: Sequence[int], room: int, overlap: int) -> Iterator[Window]:
    """Yields windows of at most `room` pieces over the words of a sentence.

    sizes: the number of pieces of each word, at most `room`. Two neighbouring windows share at most
    `overlap` pieces. Each of them predicts half of the words that they share.
    """
    overlap = min(overlap, room // 2)
    ends = [0, *itertools.accumulate(sizes)]  # pieces before each word, and in total
    start, first = 0, 0
    while True:
        stop = bisect.bisect_right(ends, ends[start] + room) - 1
        if stop == len(sizes):
            yield Window(start, stop, first, stop)
            return
        lowest = max(ends[stop] - overlap, ends[stop + 1] - room)  # the next word must fit
        next_start = bisect.bisect_left(ends, lowest, start + 1)
        last = (next_start + stop + 1) // 2
        yield Window(start, stop, first, last)
        start, first = next_start, last


def spans(tags: Sequence[str]) -> list[Span]:
    """Returns the entities.

    An I tag that does not continue an entity starts a new one, as in CoNLL's scorer.
    """
    entities: list[Span] = []
    for place, tag in enumerate(tags):
        if tag == OUTSIDE:
            continue
        continues = entities and entities[-1].stop == place and entities[-1].type == tag[2:]
        if tag[0] == "I" and continues:
            entities[-1] = entities[-1]._replace(stop=place + 1)
        else:
            entities.append(Span(tag[2:], place, place + 1))
    return entities


def repaired(tags: Sequence[str]) -> list[str]:
    """Returns tags of the same entities, each of which begins with a B."""
    starts = {span.start for span in spans(tags)}
    return [f"B{tag[1:]}" if place in starts else tag for place, tag in enumerate(tags)]


_SCORES = ("f1", "precision", "recall")


def _percents(line: dict[str, Any]) -> dict[str, float]:
    values = line["f1-score"], line["precision"], line["recall"]
    return {name: 100.0 * float(value) for name, value in zip(_SCORES, values, strict=True)}


def _targets(
    config: Config,
    window: Window,
    words: Sequence[word_pieces.Pieces],
    targets: Sequence[int] | None,
    labels: Sequence[str],
    enclosed: rows.Enclosed,
) -> dict[str, np.ndarray]:
    """Returns targets, loss_weights, words and carried of a row."""
    (place,), size = enclosed.starts, len(enclosed.row["input_ids"])
    targets_L, weights_L = np.zeros(size, np.int32), np.zeros(size, np.float32)
    words_L, carried_L = np.zeros(size, np.int32), np.zeros(size, np.int32)
    for number in range(window.start, window.stop):
        word, count = words[number], len(words[number].ids)
        if window.first <= number < window.last:
            position = place + word.first
            words_L[position], carried_L[position] = word.word + 1, word.carried
            if targets is not None:
                target = targets[word.word]
                trained = count if config.label_pieces == "all" else word.start
                targets_L[place:position] = _target_before(target, labels)
                targets_L[position] = target
                targets_L[position + 1 : place + trained] = _target_inside(target, labels)
                weights_L[place : place + trained] = 1
        place += count
    return {"targets": targets_L, "loss_weights": weights_L, "words": words_L, "carried": carried_L}


def _target_before(target: int, labels: Sequence[str]) -> int:
    """Returns the target of the white space before a word with the tag `target`.

    This is O if an entity begins with the word, else `target`.
    """
    begins = labels[target].startswith("B-") and OUTSIDE in labels
    return list(labels).index(OUTSIDE) if begins else target


def _target_inside(target: int, labels: Sequence[str]) -> int:
    """Returns the target of the later pieces of a word with the tag `target`.

    This is I-TYPE if the tag is B-TYPE, else `target`.
    """
    tag = labels[target]
    inner = f"I{tag[1:]}"
    return list(labels).index(inner) if tag.startswith("B-") and inner in labels else target


def _entities(example: Example, entity_spans: Sequence[Span]) -> list[dict[str, Any]]:
    places = example.places() if example.text else []
    entities = []
    for span in entity_spans:
        entity = {"type": span.type, "start": span.start, "stop": span.stop}
        if example.text:
            start, stop = places[span.start][0], places[span.stop - 1][1]
            entity |= {"text": example.text[start:stop], "characters": [start, stop]}
        else:
            entity["text"] = " ".join(example.words[span.start : span.stop])
        entities.append(entity)
    return entities
