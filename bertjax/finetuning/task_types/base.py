"""The base class of task types: converts examples to rows of ids, and outputs to predictions.

A task type is one file of `finetuning/task_types` with `Config`, a frozen dataclass of its options
(`config.kind` in a config), and `TaskType`, a subclass of the class below:

    unbound = classification.TaskType("sst2", classification.Config())
    bound = dataclasses.replace(unbound, labels=("no", "yes"), tokenizer=..., lengths=...)
    encoded = bound.encode(examples)
    step = jax.jit(bound.predict_step(model))
    outputs = batching.forward(step, params, bound.batches(encoded, 32))
    bound.decode(examples, encoded, outputs)        # one prediction per example

A batch has the rows' arrays, stacked and padded to common lengths, and "example_weights"
float32[B]. These weights are 0 for padding rows; every loss multiplies by them. A batch has
"token_type_ids" only for a model with two token types: `batches` omits them for RoBERTa,
DistilBERT, ModernBERT and GPT-2.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np

from bertjax import errors, metrics
from bertjax.artifact import artifact
from bertjax.data.tokenizers import special_tokens
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from bertjax.finetuning import batching, feature_cache, inserted_prompt, rows, split_files
from bertjax.finetuning.examples import readers
from bertjax.inference import pretrained

Apply = Callable[..., dict[str, jax.Array]]
Batch = dict[str, jax.Array]
Prediction = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class TaskType(abc.ABC):
    """How a model learns and predicts one task.

    task: the task's name. config: the options of the task type.
    The fields below are set when a model is bound to the task:
    labels: names in the order of the head's outputs. lengths: the maximum numbers of tokens in a
    row and in a target.
    prompt_ids: ids to insert after the first token of each row. absent: features that the model
    does not read. projection: kinds of the layers behind the pooling of text vectors that are
    trained, see `projection.kinds`. num_texts: texts per example of type Sentence; 0 means any
    number.
    """

    task: str
    config: Any
    labels: tuple[str, ...] = ()
    tokenizer: tokenizer_lib.Tokenizer | None = None
    lengths: rows.Lengths = dataclasses.field(default_factory=lambda: rows.Lengths(0))
    prompt_ids: tuple[int, ...] = ()
    absent: tuple[str, ...] = ()
    projection: tuple[str, ...] = ()
    num_texts: int = 0

    model_kinds: ClassVar[tuple[str, ...]]  # KINDs of the model families that it supports
    heads: ClassVar[tuple[str, ...]]  # of the task; (): the model's own "lm"; in an encoder, none
    libraries: ClassVar[tuple[str, ...]] = ()  # optional packages that `scores` needs
    Config: ClassVar[type]
    # Returns {split: path} of a task's files, given the task and the path of --data.
    find_files: ClassVar[Callable[[Any, str], dict[str, str]]] = staticmethod(split_files.find)
    any_texts: ClassVar[bool] = False  # whether a model reads both single texts and pairs
    # Converts (record, value of its label column) to a label; raises UserError for a bad value. If
    # `read_label` is None, labels are numbers or names, according to `Task.numbers`.
    read_label: ClassVar[Callable[[readers.Record, Any], Any] | None] = None
    # Fields of Config that earlier versions did not store, with the values that they used.
    former: ClassVar[Mapping[str, Any]] = {}
    across_rows: ClassVar[bool] = False  # whether the loss of a row depends on others in its batch
    packs: ClassVar[bool] = False  # whether it gives the model `rows.inputs`, with packed rows
    searches: ClassVar[bool] = False  # whether dev and test may be collections, see `Queries`
    loops: ClassVar[bool] = False  # whether a prediction needs `predict_loop`
    # {output: its meaning}, for the description of an exported program; {}: has no such program
    output_notes: ClassVar[Mapping[str, str]] = {}

    @property
    def name(self) -> str:
        """The name of the task type, which is the name of its file."""
        return type(self).__module__.rpartition(".")[2]

    def _with(self, **options: Any) -> Self:
        """Returns a copy of the task type with these options changed."""
        return dataclasses.replace(self, config=dataclasses.replace(self.config, **options))

    # Before a model is bound

    def for_model(self, source: artifact.Artifact) -> Self:
        """Returns the task type with options adapted to the model that fine-tuning starts from."""
        return self

    def for_train(self, examples: Sequence[Any]) -> Self:
        """Returns the task type with the options chosen that its config leaves to the examples."""
        del examples
        return self

    def label_names(self, examples: Sequence[Any]) -> list[str]:
        """Returns the labels of the training examples in order; [] for a type without labels."""
        del examples
        return []

    def num_labels(self) -> int:
        """Returns the number of outputs of the head."""
        return len(self.labels)

    def output_bias(self) -> float:
        """Returns the bias of each output of a new head, before training."""
        return 0.0

    # Examples to rows

    @abc.abstractmethod
    def check(self, examples: Sequence[Any]) -> None:
        """Raises UserError for an example that cannot be encoded, such as an unknown label."""

    @abc.abstractmethod
    def features(self) -> dict[str, rows.Feature]:
        """Returns {name: Feature} for the arrays in a row."""

    @abc.abstractmethod
    def _encode(self, examples: Sequence[Any]) -> rows.Encoded:
        """Returns the examples as rows. They have passed `check`, but may lack labels."""

    def encode(self, examples: Sequence[Any]) -> rows.Encoded:
        """Returns the examples as rows.

        Raises UserError for a label that the task does not have, or for a wrong number of texts.
        """
        for example in examples:
            if not self._fits(example):
                raise errors.UserError(
                    f"{example.where or f'task {self.task}'}: has "
                    f"{_text_count(example.num_texts())}, but the model is trained on "
                    f"{_text_count(self.num_texts)}"
                )
        self.check(examples)
        return self._encode(examples)

    def _fits(self, example: Any) -> bool:
        return not self.num_texts or example.num_texts() in (None, self.num_texts)

    def batches(
        self, encoded: rows.Encoded, batch_size: int, passes: int = 0, tasks: int = 1
    ) -> batching.Batches:
        """Returns the rows in batches.

        passes: how often the rows will be read; 0 if unknown. tasks: see `batching.fitted`.
        """
        table = self.features() | feature_cache.features(encoded.rows[0])
        if rows.TEACHER in encoded.rows[0]:
            table[rows.TEACHER] = rows.Feature(np.float32, "")
        features = {name: feature for name, feature in table.items() if name not in self.absent}
        return batching.Batches(
            encoded.rows, features, self.lengths, batch_size, passes, tasks, self.order(encoded)
        )

    def order(self, encoded: rows.Encoded) -> batching.Order | None:
        """Returns the order of the rows in training; None for each row once an epoch."""
        del encoded
        return None

    def shares(self, encoded: rows.Encoded) -> list[str]:
        """Returns a text for each task of a mixture: its share of train; [] for a single task."""
        del encoded
        return []

    # The model

    @abc.abstractmethod
    def normalizers(self, batch: Batch) -> dict[str, jax.Array]:
        """Returns {loss name: total weight in the batch}, by which the loss sum is divided."""

    @abc.abstractmethod
    def loss(self, apply: Apply, batch: Batch) -> metrics.Terms:
        """Returns {name: (sum, weight)} for the loss and other metrics.

        The loss comes first; its name ends in "_loss".
        """

    @abc.abstractmethod
    def outputs(self, apply: Apply, batch: Batch) -> dict[str, jax.Array]:
        """Returns the arrays for `decode`, as {name: array}; their first axis is the batch."""

    def single_outputs(self, apply: Apply, batch: Batch) -> dict[str, jax.Array]:
        """Returns `outputs` for an exported program, whose inputs [B, L] have one row an example.

        The batch has only the inputs of the model.
        """
        return self.outputs(apply, batch)

    # For distillation

    can_be_taught: ClassVar[bool] = False  # whether it defines `soft_targets` and `teacher_loss`

    def soft_targets(self, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        """Returns what a student learns from a teacher's outputs, [R, C]: logits or numbers."""
        raise NotImplementedError(f"{self.name} has no soft targets")

    def teacher_loss(self, outputs: Batch, targets_BC: jax.Array, temperature: float) -> jax.Array:
        """Returns the loss [B] between a student's model outputs and a teacher's soft targets."""
        raise NotImplementedError(f"{self.name} has no soft targets")

    def predict_step(self, model: Any) -> Callable[..., dict[str, jax.Array]]:
        """Returns step(params, batch) -> outputs, without dropout."""

        def step(params: Any, batch: Batch) -> dict[str, jax.Array]:
            apply = functools.partial(model.apply, {"params": params}, deterministic=True)
            return self.outputs(self.prompted(apply), batch)

        return step

    def predict_loop(
        self, model: pretrained.Pretrained, encoded: rows.Encoded
    ) -> dict[str, np.ndarray]:
        """Returns the outputs for `decode`, for a type that needs many forward passes."""
        raise NotImplementedError(f"{self.name} predicts in one forward pass")

    def chunks(self, num_rows: int) -> int:
        """Returns the number of chunks into which the type splits a batch, if `across_rows`."""
        return 1

    def prompted(self, apply: Apply) -> Apply:
        """Wraps `apply` so that each row has the prompt after its first token.

        The prompt's positions are removed from the outputs.
        """
        return inserted_prompt.around(apply, self.prompt_ids) if self.prompt_ids else apply

    # Outputs to predictions

    @abc.abstractmethod
    def decode(
        self, examples: Sequence[Any], encoded: Any, outputs: Mapping[str, np.ndarray]
    ) -> list[Prediction]:
        """Returns one prediction per example."""

    @abc.abstractmethod
    def scores(
        self, examples: Sequence[Any], predictions: Sequence[Prediction]
    ) -> dict[str, float]:
        """Returns all scores for this task type; `Task.metrics` says which are reported.

        Scores range from 0 to 100 where that is usual (accuracy, F1, BLEU).
        """

    def tuned(
        self,
        examples: Sequence[Any],
        predictions: Sequence[Prediction],
        outputs: Mapping[str, np.ndarray],
    ) -> Self:
        """Returns the task type with options, such as a threshold, tuned on labelled dev examples.

        predictions: the result of `decode` for these outputs.
        """
        del examples, predictions, outputs
        return self

    @property
    def tunes(self) -> bool:
        """Whether `tuned` may change options, so that a model needs a dev."""
        return type(self).tuned is not TaskType.tuned

    def asked(self, examples: Sequence[Any]) -> Self:
        """Returns the task type with options adapted to the examples to predict on."""
        del examples
        return self

    def lines(self, prediction: Prediction, top: int) -> list[str]:
        """Returns a prediction as lines of text to print: its probabilities, or its label.

        top: how many labels or answers to list.
        """
        if "probabilities" in prediction:
            best = list(prediction["probabilities"].items())[:top]
            return ["   ".join(f"{label} {p:.3f}" for label, p in best)]
        value = prediction["text" if "text" in prediction else "label"]
        return [f"{value:.4f}" if isinstance(value, float) else str(value)]

    # Warnings, reports and stored forms

    weighs_classes: ClassVar[bool] = False  # whether `config.class_weights` is an option

    @property
    def pooling(self) -> str:
        """How text vectors are pooled; "" for a type that does not train text vectors."""
        return ""

    @property
    def question_length(self) -> int:
        """The maximum number of tokens in a question if only questions are truncated, else 0."""
        return 0

    def report_notes(self) -> list[str]:
        """Returns lines for report.md on how to read the scores."""
        return []

    def to_json(self) -> dict[str, Any]:
        """Returns what an artifact stores for `task_types.of_artifact`."""
        return {
            "name": self.task,
            "kind": self.name,
            "config": dataclasses.asdict(self.config),
            "labels": list(self.labels),
            "max_length": self.lengths.length,
            "prompt_ids": list(self.prompt_ids),
            "num_texts": self.num_texts,
        }

    def lengths_of(self, max_length: int) -> rows.Lengths:
        """Returns the lengths for rows of at most `max_length` tokens."""
        return rows.Lengths(max_length)

    # For Hugging Face folders, which `artifact.hf_tasks` reads and writes. `task`: `Artifact.task`;
    # its "config" may lack keys if bertjax did not write the folder. `content`: the content of
    # config.json.

    hf_class: ClassVar[str] = ""  # end of the class name in transformers; "": it has none
    hf_task: ClassVar[str] = ""  # the task's name for a folder that bertjax did not write
    hf_labelled: ClassVar[bool] = False  # whether config.json has the labels, as id2label
    hf_num_labels: ClassVar[int] = 0  # the model's num_labels if config.json has no labels
    hf_pooled: ClassVar[bool] = False  # whether the class has a pooler in every family that has one

    @classmethod
    def hf_reads(cls, content: Mapping[str, Any]) -> bool:
        """Returns whether a folder is of this type. Several types may share an `hf_class`."""
        del content
        return True

    @classmethod
    def hf_derived(
        cls, content: Mapping[str, Any], labels: list[str], where: Any
    ) -> tuple[str, list[str], dict[str, Any]]:
        """Returns (name, labels, config) of the task of a folder that bertjax did not write.

        Raises UserError naming `where` if the task is not supported.
        """
        del content, where
        return cls.hf_task, labels, {}

    @classmethod
    def hf_config(cls, model: artifact.Artifact) -> dict[str, Any]:
        """Returns the keys of config.json that describe the task, without the labels."""
        del model
        return {}

    @classmethod
    def hf_generation(cls, task: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options of generation_config.json; {} for a type that generates no text."""
        del task
        return {}

    @classmethod
    def hf_max_length(cls, task: Mapping[str, Any], limit: int) -> int:
        """Returns the length, in tokens, to which transformers truncates a text.

        limit: the maximum length of the model.
        """
        return min(task["max_length"], limit)

    @classmethod
    def hf_ends(
        cls, task: Mapping[str, Any], tokenizer: tokenizer_lib.Tokenizer
    ) -> special_tokens.Ends | None:
        """Returns the special tokens around a text; None if they are the model's usual ones."""
        del task
        return special_tokens.of_rows(tokenizer)

    @classmethod
    def hf_refusal(cls, model: artifact.Artifact) -> str:
        """Returns why transformers cannot run the model; "" if it can."""
        del model
        return ""


def not_trained(place: str, label: str, labels: Sequence[str]) -> errors.UserError:
    """Returns the error for a label or a tag that is not one of the trained ones, `labels`."""
    return errors.UserError(
        f"{place}: {label} is not one of the labels of the training data "
        f"({errors.several(labels)}); correct it, or add examples of it to the training data"
    )


def summed(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    """Returns {text: probability} in the given order; probabilities of equal texts are added."""
    totals: dict[str, float] = {}
    for text, probability in pairs:
        totals[text] = totals.get(text, 0.0) + float(probability)
    return totals


def _text_count(number: int) -> str:
    return {1: "a single text", 2: "a pair of texts"}.get(number, f"{number} texts")
