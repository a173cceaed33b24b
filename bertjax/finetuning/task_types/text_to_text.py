"""Text to text: translation, summaries, answers, and any other task expressed as text (as in T5).

Raffel et al., arXiv 1910.10683, section 2.4. An encoder-decoder reads the source with its encoder
and generates the target. A decoder reads both as one row, with a loss on the target only (Radford
et al. 2018, section 3.3); attention within the source may be bidirectional, as in a prefix LM. The
prediction is generated token by token (answer "write") or is the likeliest label ("choose").

`finetuning.text_rows` makes the rows; `finetuning.text_forms` converts other examples to text.

Shapes: R rows, B batch, L length, T new tokens, V vocabulary, C labels.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertjax import errors, metrics, plugins
from bertjax.artifact import artifact
from bertjax.data.tokenizers import special_tokens
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import batching, rows, squad_scores, text_forms, text_rows, text_scores
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import base
from bertjax.inference import generation, pretrained, scoring
from bertjax.models.common import layers
from bertjax.objectives.common import losses

Example = examples_lib.Example  # any type; `text_forms` converts all but TextPair
ANSWERS = ("write", "choose")
ROWS = 32  # maximum number of rows in a batch that is scored
SUMS = ("log_likelihood", "right", "tokens")  # over each target, from `outputs`


@dataclasses.dataclass(frozen=True)
class Config:
    """Options of the conversion to text, and of the prediction."""

    prefix: str = ""  # text in front of every source: "translate English to Spanish: "
    task: str = ""  # name in front of labelled sentences; GLUE names select T5's input format
    max_target_length: int = 64  # maximum number of tokens in a target, including its end token
    answer: str = "write"  # write: generate the target; choose: take the likeliest label
    num_beams: int = 1  # number of beams in beam search; 1 means greedy decoding
    length_penalty: float = 1.0  # beams are ranked by score / length ** length_penalty
    separator: str = "\n"  # between a decoder's source and target; if it has no tokens: end of text
    reader: str = "encoder"  # what reads the source: encoder, causal, prefix; set from the model
    decoder_start_id: int = -1  # first input id of T5's decoder; -1: pad id; set from the model

    def __post_init__(self):
        def check(ok: bool, name: str, allowed: str) -> None:
            errors.check(ok, f"kind.{name}", getattr(self, name), allowed)

        check(self.max_target_length >= 2, "max_target_length", "2 or more")
        check(self.answer in ANSWERS, "answer", f"one of {', '.join(ANSWERS)}")
        check(self.reader in text_rows.READERS, "reader", f"one of {', '.join(text_rows.READERS)}")
        generation.Options(num_beams=self.num_beams, length_penalty=self.length_penalty)


@dataclasses.dataclass(frozen=True)
class Encoded(rows.Encoded):
    """One row per example. choices: ids of each choice of each row; () for answer "write"."""

    choices: tuple[Sequence[np.ndarray], ...] = ()


class TaskType(base.TaskType):
    """Predicts a generated or a chosen text with the model's own head "lm"."""

    model_kinds = ("encoder_decoder", "decoder")
    libraries = ("sacrebleu", "rouge_score", "sklearn")
    heads = ()  # the model's own "lm"
    loops = True
    Config = Config

    def for_model(self, source: artifact.Artifact) -> "TaskType":
        """Returns the task type with one option set from the model.

        For an encoder-decoder, it is decoder_start_id. For a decoder, it is the reader, unless the
        config sets it; the reader follows from the model's text_to_text task or its pretraining.
        Raises UserError if an encoder-decoder has a reader other than "encoder".
        """
        if plugins.family(source.family).KIND == "encoder_decoder":
            errors.check(self.config.reader == "encoder", "kind.reader", self.config.reader,
                         f"'encoder', because {source.family} models have one")  # fmt: skip
            start_id = source.fields.get("decoder_start_id", -1)
            return self._with(decoder_start_id=start_id)
        if self.config.reader != "encoder":
            return self
        if source.task is not None and "reader" in source.task["config"]:
            return self._with(reader=source.task["config"]["reader"])
        return self._with(reader="prefix" if artifact.reads_prefixes(source) else "causal")

    def label_names(self, examples: Sequence[Example]) -> list[str]:
        """Returns the labels, sorted. With answer "choose", a pair's first target is its label."""
        labels: set[Any] = set()
        for example in examples:
            if isinstance(example, examples_lib.Sentence):
                labels.add(example.label)
            elif isinstance(example, examples_lib.TextPair) and self.config.answer == "choose":
                labels.update(example.targets[:1])
        return sorted(label for label in labels if isinstance(label, str))

    def check(self, examples: Sequence[Example]) -> None:
        """Raises UserError for a label not in `labels`, or if fewer than two labels can be chosen.

        Any label is accepted if `labels` is empty.
        """
        labels, choosing = set(self.labels), self.config.answer == "choose"
        for example in examples if self.labels else ():
            if isinstance(example, examples_lib.TextPair):
                label = example.targets[0] if example.targets else None
            else:
                label = example.label
            if label is not None and label not in labels:
                raise base.not_trained(example.where or self.task, f"label {label!r}", self.labels)
        if choosing and len(self.labels) < 2 and not isinstance(examples[0], examples_lib.Choice):
            raise errors.UserError(
                f"{self.task}: config.kind.answer = 'choose' needs at least two labels, but their "
                f"number is {len(self.labels)}; use 'write'"
            )

    def features(self) -> dict[str, rows.Feature]:
        """Returns {name: Feature} for the arrays in a row."""
        return text_rows.features(self.config.reader)

    def _encode(self, examples: Sequence[Example]) -> Encoded:
        """Encodes each example as one row. Truncates sources and targets at the end.

        The first of several targets is used. Without a target, the loss weights are 0. Raises
        UserError if the lengths leave no room for a source.
        """
        form, pairs = self._form(self.tokenizer), self._pairs(examples)
        room = form.room(self.lengths.length)
        sources = self.tokenizer.encode_batch([self.config.prefix + pair.source for pair in pairs])
        targets = form.targets([pair.targets[0] if pair.targets else "" for pair in pairs])
        encoded, truncated = [], np.zeros(len(pairs), bool)
        for i, (pair, source, target) in enumerate(zip(pairs, sources, targets, strict=True)):
            truncated[i] = len(source) > room or len(target) > self.config.max_target_length
            prompt = form.prompt(source[:room])
            encoded.append(form.row(prompt, target if pair.targets else None))
        choices: tuple[Sequence[np.ndarray], ...] = ()
        if self.config.answer == "choose":
            shared = form.targets(self.labels)
            choices = tuple(
                form.targets(example.choices)
                if isinstance(example, examples_lib.Choice)
                else shared
                for example in examples
            )
        return Encoded(encoded, np.arange(len(pairs)), truncated, choices)

    def normalizers(self, batch: losses.Batch) -> dict[str, jax.Array]:
        """Returns the number of target tokens in the batch, by which the loss sum is divided."""
        return {"lm_loss": losses.target_weights(batch).sum()}

    def loss(self, apply: Callable[..., losses.Batch], batch: losses.Batch) -> metrics.Terms:
        """Returns lm_loss, the cross entropy in nats, and lm_accuracy, of the target tokens."""
        return losses.next_tokens(apply, {**batch, "loss_weights": losses.target_weights(batch)})

    def outputs(
        self, apply: Callable[..., losses.Batch], batch: losses.Batch
    ) -> dict[str, jax.Array]:
        """Returns three sums over each row's target: log_likelihood, right and tokens, float32[B].

        right: how many tokens of the target are the likeliest, given the true tokens before them.
        """
        return _sums(apply, batch)

    def predict_loop(self, model: pretrained.Pretrained, encoded: Encoded) -> dict[str, np.ndarray]:
        """Returns the sums of `outputs` for each row (0 if it has no target), and the predictions.

        With answer "write", the predictions are token_ids int32[R, T], with -1 after the end. With
        answer "choose", they are choices float32[R, C], the log-likelihoods of the choices.
        """
        form = self._form(model.tokenizer)
        inputs = [text_rows.prompted(row, self.prompt_ids) for row in encoded.rows]
        sums = self._all_sums(model, inputs)
        prompts = [form.prompt_of(row) for row in inputs]
        if self.config.answer == "choose":
            pairs = [(i, k) for i, ids in enumerate(encoded.choices) for k in range(len(ids))]
            inputs = [form.row(prompts[i], encoded.choices[i][k]) for i, k in pairs]
            sums_RC = np.full((len(prompts), max(map(len, encoded.choices))), -np.inf, np.float32)
            sums_RC[tuple(np.transpose(pairs))] = self._all_sums(model, inputs)["log_likelihood"]
            return sums | {"choices": sums_RC}
        vocabulary = model.model.config.vocab_size
        sequences = generation.generate(
            model.model,
            model.params,
            prompts,
            generation.Options(
                max_new_tokens=self.config.max_target_length,
                num_beams=self.config.num_beams,
                length_penalty=self.config.length_penalty,
            ),
            generation.Ids(form.end, form.pad, min(model.tokenizer.size, vocabulary), form.start),
            prefix=self.config.reader == "prefix",
        )
        ids_RT = np.full((len(sequences), self.config.max_target_length), -1, np.int32)
        for row, ids in zip(ids_RT, sequences, strict=True):
            row[: len(ids)] = ids
        return sums | {"token_ids": ids_RT}

    def decode(
        self, examples: Sequence[Example], encoded: rows.Encoded, outputs: dict[str, np.ndarray]
    ) -> list[dict[str, Any]]:
        """Returns {"text"}; for sentences and choices also "label", None if `text` is not a label.

        With answer "choose", there are also "probabilities": {text: p}, best first. If the example
        has a target, "target_tokens" is its number of tokens, and "right_tokens" is how many of
        them are predicted correctly, given the true tokens before them.
        """
        if self.config.answer == "choose":
            pairs = zip(examples, outputs["choices"], strict=True)
            results = [_choose(example, sums_C, self.labels) for example, sums_C in pairs]
        else:
            names = _by_text(self.tokenizer, self.labels, self.labels)
            texts = [self.tokenizer.decode(ids).strip() for ids in outputs["token_ids"]]
            results = [
                _prediction(example, text, names, self.tokenizer)
                for example, text in zip(examples, texts, strict=True)
            ]
        for result, tokens, right in zip(results, outputs["tokens"], outputs["right"], strict=True):
            if tokens:
                result |= {"target_tokens": int(tokens), "right_tokens": int(right)}
        return results

    def scores(
        self, examples: Sequence[Example], predictions: Sequence[dict[str, Any]]
    ) -> dict[str, float]:
        """Returns token_accuracy and other scores of the examples that have a target.

        Pairs: bleu, rouge1, rouge2, rougeL, SQuAD's exact_match and f1, and accuracy (identical
        texts). Questions: see `squad_scores`. Labels: accuracy, macro_f1, mcc; with two labels also
        f1. Numbers: pearson, spearman; a text that is not a number counts as 0. Words: precision,
        recall, f1, and accuracy of whole sentences. Choices: accuracy.
        """
        pairs = zip(examples, self._pairs(examples), predictions, strict=True)
        items = [(example, pair, prediction) for example, pair, prediction in pairs if pair.targets]
        if not items:
            return {}
        references = [pair.targets for _, pair, _ in items]
        texts = [prediction["text"] for _, _, prediction in items]
        tokens = sum(prediction["target_tokens"] for _, _, prediction in items)
        right = sum(prediction["right_tokens"] for _, _, prediction in items)
        result = {"token_accuracy": 100.0 * right / tokens}
        first = items[0][0]
        if isinstance(first, examples_lib.Question):
            impossible = any(example.impossible for example, _, _ in items)
            return squad_scores.scores(references, texts, impossible=impossible) | result
        if isinstance(first, examples_lib.Words):
            entities = [text_forms.entities(example) for example, _, _ in items]
            return text_scores.spans(entities, list(map(text_forms.read_entities, texts))) | result
        if not isinstance(first, examples_lib.TextPair):
            label_pairs = [(example.label, prediction["label"]) for example, _, prediction in items]
            return text_scores.of_labels(*zip(*label_pairs, strict=True), self.labels) | result
        clean = [[target.strip() for target in refs] for refs in references]
        best = [text if text in refs else refs[0] for refs, text in zip(clean, texts, strict=True)]
        return {
            "bleu": text_scores.bleu(references, texts),
            **text_scores.rouge(references, texts),
            **squad_scores.scores(references, texts),
            "accuracy": scores_lib.accuracy(best, texts),
            **result,
        }

    def _all_sums(
        self, model: pretrained.Pretrained, inputs: Sequence[text_rows.Row]
    ) -> dict[str, np.ndarray]:
        """Returns the sums of `outputs` for each row; they are 0 for a row without a target."""
        if not any(row["loss_weights"].any() for row in inputs):
            return {name: np.zeros(len(inputs), np.float32) for name in SUMS}
        table = self.features()
        longest = int(batching.row_lengths(inputs, table, "length").max())
        target_length = self.config.max_target_length
        length = batching.common(longest, max(longest, model.max_length))
        lengths = rows.Lengths(length, target_length)
        scored_length = target_length if self.config.reader == "encoder" else length
        width = layers.padded_vocab_size(model.model.config.vocab_size)
        size = max(1, min(ROWS, scoring.LOGITS // (scored_length * width)))
        sums: dict[str, np.ndarray] = {}
        for numbers, batch in batching.Batches(inputs, table, lengths, size).in_order():
            outputs = jax.device_get(_outputs(model.model, model.params, batch))
            for name, values in outputs.items():
                sums.setdefault(name, np.zeros(len(inputs), values.dtype))
                sums[name][numbers] = values[: len(numbers)]
        return sums

    def _pairs(self, examples: Sequence[Example]) -> list[examples_lib.TextPair]:
        return [text_forms.pair(example, self.config.task) for example in examples]

    def _form(self, tokenizer: tokenizer_lib.Tokenizer) -> text_rows.Form:
        return text_rows.Form(
            tokenizer,
            self.config.reader,
            self.config.separator,
            self.config.max_target_length,
            self.config.decoder_start_id,
        )

    def lengths_of(self, max_length: int) -> rows.Lengths:
        """Returns the lengths for rows of at most `max_length` tokens, and for targets."""
        return rows.Lengths(max_length, self.config.max_target_length)

    @classmethod
    def hf_config(cls, model: artifact.Artifact) -> dict[str, Any]:
        """Returns {"prefix": text in front of each source}; {} if there is none."""
        prefix = model.task["config"].get("prefix")
        return {"prefix": prefix} if prefix else {}

    @classmethod
    def hf_generation(cls, task: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options of generation_config.json."""
        return {
            "max_new_tokens": task["config"]["max_target_length"],
            "num_beams": task["config"]["num_beams"],
            "length_penalty": task["config"]["length_penalty"],
        }

    @classmethod
    def hf_max_length(cls, task: Mapping[str, Any], limit: int) -> int:
        """Returns the maximum length of a source; causal decoders reserve room for the target."""
        causal = task["config"]["reader"] == "causal"
        target_length = task["config"]["max_target_length"] if causal else 0
        return min(task["max_length"], limit) - target_length

    @classmethod
    def hf_ends(
        cls, task: Mapping[str, Any], tokenizer: tokenizer_lib.Tokenizer
    ) -> special_tokens.Ends | None:
        """Returns the special tokens around a source; None (the usual) for an encoder-decoder."""
        if task["config"]["reader"] == "encoder":
            return None
        return special_tokens.of_source(tokenizer, task["config"]["separator"])

    @classmethod
    def hf_refusal(cls, model: artifact.Artifact) -> str:
        """Returns why transformers cannot run a prefix LM; "" for other models."""
        if model.task["config"]["reader"] != "prefix":
            return ""
        return (
            f"this {model.family} model reads a source in both directions (kind.reader = 'prefix')"
            ", but transformers reads it from left to right"
        )


@functools.partial(jax.jit, static_argnames="model")
def _outputs(model: Any, params: Any, batch: losses.Batch) -> dict[str, jax.Array]:
    return _sums(functools.partial(model.apply, {"params": params}), batch)


def _sums(apply: Callable[..., losses.Batch], batch: losses.Batch) -> dict[str, jax.Array]:
    logits_BTV = apply(**losses.inputs(batch, losses.SEQUENCES))["logits"]
    targets_BT, weights_BT = batch["targets"], batch["loss_weights"]
    log_probs_BT = losses.log_probs(logits_BTV, targets_BT)
    right_BT = jnp.argmax(logits_BTV, axis=-1) == targets_BT
    sums = (log_probs_BT * weights_BT, right_BT * weights_BT, weights_BT)
    return {name: x_BT.sum(axis=1) for name, x_BT in zip(SUMS, sums, strict=True)}


def _choose(example: Example, sums_C: np.ndarray, labels: Sequence[str]) -> dict[str, Any]:
    texts, names = labels, labels
    if isinstance(example, examples_lib.Choice):
        texts, names = example.choices, range(len(example.choices))
    sums_C = sums_C[: len(texts)]
    probabilities_C = np.exp(sums_C - np.logaddexp.reduce(sums_C))
    order = np.argsort(-probabilities_C, kind="stable")
    return {
        "text": texts[order[0]],
        "label": names[order[0]],
        "probabilities": base.summed((texts[i], probabilities_C[i]) for i in order),
    }


def _by_text(
    tokenizer: tokenizer_lib.Tokenizer, texts: Sequence[str], values: Sequence[Any]
) -> dict[str, Any]:
    """Returns {text: value}, also for each text as the tokenizer decodes it (e.g. lower case)."""
    decoded = [tokenizer.decode(ids).strip() for ids in tokenizer.encode_batch(list(texts))]
    table: dict[str, Any] = {}
    for text, value in zip((*texts, *decoded), (*values, *values), strict=True):
        table.setdefault(text, value)  # the first of equal texts
    return table


def _prediction(
    example: Example, text: str, names: dict[str, str], tokenizer: tokenizer_lib.Tokenizer
) -> dict[str, Any]:
    if isinstance(example, examples_lib.Choice):
        names = _by_text(tokenizer, example.choices, range(len(example.choices)))
        return {"text": text, "label": names.get(text)}
    if isinstance(example, examples_lib.Sentence):
        return {"text": text, "label": names.get(text) if names else text_forms.number(text)}
    if isinstance(example, examples_lib.Question):
        return {"text": text, "answer": text}
    return {"text": text}
