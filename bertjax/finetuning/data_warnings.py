"""Warnings about labelled data that is valid but looks wrong, and about results.

warnings = data_warnings.everything(examples, truncated, task_type, longest=512, rows=30522)
for line in warnings: print(line)
"""

import collections
import math
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax import errors
from bertjax.data.corpus import words
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import rows as rows_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base

# A value above one of these thresholds causes a warning.
SKEW = 10  # examples of the most frequent label per example of the rarest label
TRUNCATED = 0.05  # share of truncated examples
UNKNOWN = 0.01  # share of unknown tokens
SPARE = 256  # unused embedding rows; some are usual: sentinels, and padding to a round number
QUOTED = 0.5  # share of examples with a text in quotation marks
_MAX_EXAMPLES, _MAX_CHARACTERS = 1000, 1000  # inspected examples, and characters per text

Example = examples_lib.Example


def everything(
    examples: Mapping[str, Sequence[Example]],
    truncated: Mapping[str, np.ndarray],
    task_type: base.TaskType,
    longest: int,
    rows: int,
) -> list[str]:
    """Returns all warnings about the splits in `examples`, which must include "train".

    longest: the maximum number of tokens that the model can read. rows: the number of rows of its
    embedding table. truncated: {split: bool[examples]}, as in `rows.Encoded`.
    """
    train, tokenizer, lengths = examples["train"], task_type.tokenizer, task_type.lengths
    warnings = labels(train, task_type.labels, weigh=task_type.weighs_classes)
    warnings += contradictions(train) if task_type.labels else []
    warnings += negatives(train) + quotes(train)
    warnings += tokens(train, tokenizer) + table(tokenizer, rows)
    warnings += single_label(train, examples.get("dev", ()))
    for split, split_examples in examples.items():
        warnings += overlap(train, split_examples, split) if split != "train" else []
        warnings += truncation(truncated[split], split, lengths, longest, task_type.question_length)
    return warnings


def overlap(train: Sequence[Example], other: Sequence[Example], split: str) -> list[str]:
    """Returns a warning if examples of `other` also occur in train.

    Ignores differences in case and whitespace. split: the name of `other`.
    """
    train_texts = {_normalised_text(example) for example in train}
    copies = [example for example in other if _normalised_text(example) in train_texts]
    if not copies:
        return []
    return [
        f"{len(copies)} of {len(other)} examples of {split} ({len(copies) / len(other):.1%}) are "
        f"in train too, the first at {copies[0].where}: their scores say little about new text"
    ]


def labels(train: Sequence[Example], names: Sequence[str], *, weigh: bool = False) -> list[str]:
    """Returns warnings if there are too many labels, or if train lacks some or is skewed.

    names: all labels. weigh: whether the task type supports class weights. If so, the warning about
    skewed labels suggests them.
    """
    label_sets = [example.class_names() for example in train]
    counts = collections.Counter(name for label_set in label_sets for name in label_set)
    if not counts:
        return []
    absent = [name for name in names if name not in counts]
    result = []
    if len(counts) > max(len(label_sets) / 2, SKEW):
        result.append(
            f"train has {len(counts):,} different labels in {len(label_sets):,} examples: check "
            "that the label has its own column"
        )
    if absent:
        listing = errors.several(map(repr, absent))
        result.append(
            f"{len(absent)} of {len(names)} labels never occur in the {len(train)} examples of "
            f"train and cannot be learned: {listing}"
        )
    alike = collections.defaultdict(list)
    for name in sorted(counts):
        alike[unicodedata.normalize("NFKC", name).casefold()].append(name)
    pairs = [" and ".join(map(ascii, group)) for group in alike.values() if len(group) > 1]
    if pairs:
        result.append(
            f"labels that differ only in case or in the form of a character: "
            f"{errors.several(pairs)}: correct them if each should be one label"
        )
    (common, max_count), (rare, min_count) = counts.most_common()[0], counts.most_common()[-1]
    if max_count > SKEW * min_count:
        result.append(
            f"labels are skewed: train has {max_count} of {common!r} and {min_count} of {rare!r}; "
            "accuracy says little about rare labels: look at macro_f1"
            + ", or set --config.kind.class_weights=true" * weigh
        )
    return result


def contradictions(train: Sequence[Example]) -> list[str]:
    """Returns a warning if texts of train occur again with another label.

    Ignores differences in case and whitespace.
    """
    first: dict[str, tuple[str, ...]] = {}
    others = []
    for example in train:
        names = tuple(sorted(example.class_names()))
        if names and first.setdefault(_normalised_text(example), names) != names:
            others.append(example)
    if not others:
        return []
    return [
        f"{len(others)} of {len(train)} examples of train have the text of an earlier one and "
        f"another label, the first at {others[0].where}: correct or remove them"
    ]


def negatives(train: Sequence[Example]) -> list[str]:
    """Returns a warning if a text's positive is a negative, too, or if only some have negatives."""
    examples = [e for e in train if isinstance(e, examples_lib.Sentence)]
    given = [example for example in examples if len(example.texts) > 2]
    wrong = [example for example in given if example.texts[1] in example.texts[2:]]
    without = [example for example in examples if len(example.texts) <= 2] if given else []
    result = []
    if wrong:
        result.append(
            f"{len(wrong)} of {len(train)} examples of train have their positive as a negative, "
            f"too, the first at {wrong[0].where}: correct or remove them"
        )
    if without:
        result.append(
            f"{len(without)} of {len(train)} examples of train have no negative, the first at "
            f"{without[0].where}; the others have some"
        )
    return result


def single_label(train: Sequence[Example], dev: Sequence[Example]) -> list[str]:
    """Returns a warning if all of dev has the same label, or tag, and train has others too."""
    found = {name for example in dev for name in example.classes()}
    if len(found) != 1 or all(found.issuperset(example.classes()) for example in train):
        return []
    return [
        f"dev has no other label than {found.pop()!r}, so its scores do not tell models apart: "
        "give a larger --dev=FILE, or more labelled examples"
    ]


def truncation(
    truncated: np.ndarray,
    split: str,
    lengths: rows_lib.Lengths,
    longest: int | None = None,
    question_length: int = 0,
) -> list[str]:
    """Returns a warning if the share of truncated examples in a split is above TRUNCATED.

    truncated: bool[examples], as in `rows.Encoded`. longest: the maximum number of tokens that the
    model can read. question_length: the maximum number of tokens of a question if only questions
    are truncated, otherwise 0.
    """
    share = float(np.mean(truncated)) if len(truncated) else 0.0
    if share <= TRUNCATED:
        return []
    if question_length:
        return [
            f"{share:.1%} of the questions of {split} are cut after {question_length} "
            "tokens: raise --config.kind.max_query_length"
        ]
    keys = ["max_length"] * (lengths.length != longest)
    keys += ["kind.max_target_length"] * bool(lengths.target_length)
    advice = f": raise --config.{' or --config.'.join(keys)}" if keys else ""
    target_length = lengths.target_length
    limit = f"{lengths.length} tokens" + f", or targets after {target_length}" * bool(target_length)
    return [f"{share:.1%} of the examples of {split} are cut after {limit}{advice}"]


def unread(truncated: np.ndarray, task_type: base.TaskType) -> list[str]:
    """Returns a warning if inputs to predict on were truncated."""
    count = int(np.sum(truncated))
    if not count:
        return []
    noun, limit = "inputs", f"{task_type.lengths.length}"
    if task_type.question_length:
        noun, limit = "questions", f"{task_type.question_length}"
    return [
        f"{count:,} of {len(truncated):,} {noun} are cut: the model was fine-tuned on at most "
        f"{limit} tokens"
    ]


def results(
    means: Mapping[float, float],
    chosen: float,
    predictions: Sequence[Mapping[str, Any]],
    highest: float = math.inf,
) -> list[str]:
    """Returns warnings about suspicious learning rates and about identical predictions.

    It warns if all rates have the same score, if the highest rate is the best one, or if all
    predictions are the same.

    means: {learning rate: its mean dev score}. chosen: the best learning rate. predictions: the
    predictions of the best model on dev. highest: the rate above which training often fails; no
    warning suggests a rate above it.
    """
    warnings = []
    limit = f" up to {highest:g}" if math.isfinite(highest) else ""
    if len(means) > 1 and len(set(means.values())) == 1:
        warnings.append(
            f"all rates have the same score on dev, so none of them is the best; {chosen:g} is "
            "used: give a larger dev, or --folds=5, to compare them"
        )
    elif len(means) > 1 and chosen == max(means) < highest:
        warnings.append(
            f"the best rate, {chosen:g}, is the highest one tried: try higher rates{limit}"
        )
    keys = ("label", "labels")
    predicted_labels = {
        str(prediction[key]) for prediction in predictions for key in keys if key in prediction
    }
    if len(predicted_labels) == 1 < len(predictions):
        warnings.append(
            f"every prediction on dev is {predicted_labels.pop()!r}: the model learned nothing; "
            + (f"try higher rates{limit}, or " if chosen < highest else "try ") + "more epochs"
        )
    return warnings


def quotes(train: Sequence[Example]) -> list[str]:
    """Returns a warning if the share of examples with a text in quotes is above QUOTED.

    TSV has no quoting, so the quotation marks are read as part of the text.
    """
    quoted = [any(text[:1] == text[-1:] == '"' for text in e.all_texts()) for e in _sample(train)]
    share = float(np.mean(quoted))
    if share <= QUOTED:
        return []
    return [
        f"{share:.0%} of the examples of train have a text in quotation marks, which are read as "
        "part of the text: TSV has no quoting"
    ]


def tokens(train: Sequence[Example], tokenizer: tokenizer_lib.Tokenizer) -> list[str]:
    """Returns warnings if the tokenizer does not suit the texts.

    It warns of many unknown tokens, and of an uncased tokenizer for entities in cased text.
    """
    texts = [text[:_MAX_CHARACTERS] for example in _sample(train) for text in example.all_texts()]
    result = []
    share = _unknown_share(texts, tokenizer)
    if share > UNKNOWN:
        lower_share = _unknown_share([text.lower() for text in texts], tokenizer)
        reason = (
            "most are known in lower case: the vocabulary is uncased, so the tokenizer must be too"
            if lower_share < share / 2
            else "check that the tokenizer is the checkpoint's own and of the right language"
        )
        result.append(f"{share:.1%} of the tokens of train are unknown to the tokenizer: {reason}")
    if isinstance(train[0], examples_lib.Words) and any(map(_is_entity, train)):
        upper, lower = tokenizer.encode_batch(["Paris", "paris"])
        if upper == lower and any(text != text.lower() for text in texts):
            result.append(
                "the tokenizer is uncased, and capital letters mark names: a cased checkpoint is "
                "usual for entities (Devlin et al., arXiv 1810.04805, section 5.3)"
            )
    return result


def table(tokenizer: tokenizer_lib.Tokenizer, rows: int) -> list[str]:
    """Returns a warning if more than SPARE of the `rows` embeddings have no vocabulary piece."""
    if rows - tokenizer.size <= SPARE:
        return []
    return [
        f"the tokenizer has {tokenizer.size:,} pieces and the model has {rows:,} embeddings: check "
        "that the tokenizer is the checkpoint's own"
    ]


def _is_entity(example: examples_lib.Words) -> bool:
    return any(tag.startswith("B-") for tag in example.tags or ())


def _unknown_share(texts: Sequence[str], tokenizer: tokenizer_lib.Tokenizer) -> float:
    ids = np.concatenate([np.array(row, int) for row in tokenizer.encode_batch(texts)] or [[]])
    return float(np.mean(ids == tokenizer.specials.unk)) if len(ids) else 0.0


def _normalised_text(example: Example) -> str:
    return "\n".join(map(words.squeezed, example.all_texts()))


def _sample(train: Sequence[Example]) -> Sequence[Example]:
    return train[:: max(1, len(train) // _MAX_EXAMPLES)]
