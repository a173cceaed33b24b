"""Few-shot evaluation: a decoder or an encoder-decoder labels a file from k examples in its prompt.

    options = few_shot.Options(shots=4, seeds=5)
    few_shot.evaluate(model, task, pool, examples, options)
    # {"accuracy": {"mean": 71.2, "std": 3.1, ...}, "majority_accuracy": 50.0, ...}

Nothing is trained. The answer is the label whose words are the likeliest continuation of the prompt
(Brown et al., arXiv 2005.14165, section 2.4). The result depends on the shots and on their order
(Zhao et al., arXiv 2102.09690), so they are drawn several times. Every draw contains all labels, if
there are enough shots, in a random order.
"""

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax import errors, progress
from bertjax.data.batches import rng
from bertjax.finetuning import report
from bertjax.finetuning import scores as scores_lib
from bertjax.finetuning import task as task_lib
from bertjax.finetuning.examples import splits
from bertjax.finetuning.examples import types as examples_lib
from bertjax.finetuning.task_types import classification
from bertjax.inference import pretrained, prompting

Example = examples_lib.Sentence
_PROMPTS = 64  # prompts between two updates of the progress bar


@dataclasses.dataclass(frozen=True)
class Options:
    """How prompts are built.

    shots: examples in a prompt; 0: the prompt has none. seeds: how many times they are drawn.
    template, instruction: see `prompting.few_shot`; the texts of a pair are joined by a line break.
    label_words: {label: the words that stand for it}; a label that is missing stands for itself.
    """

    shots: int
    seeds: int = 1
    template: str = prompting.TEMPLATE
    instruction: str = ""
    label_words: Mapping[str, str] = dataclasses.field(default_factory=dict)


def check(task: task_lib.Task) -> None:
    """Raises UserError if the examples of a task have no single label to choose."""
    if task.kind != "classification" or task.numbers:
        raise errors.UserError(
            f"--shots can only be used with tasks that choose a label, such as classification and "
            f"pair, not with --task={task.name}"
        )


def evaluate(
    model: pretrained.Pretrained,
    pool: Sequence[Example],
    examples: Sequence[Example],
    options: Options,
    on_progress: progress.Done = lambda done, total: None,
) -> dict[str, Any]:
    """Returns the scores of all draws, and those of always answering the most frequent label.

    pool: the labelled examples from which the shots are drawn. It may be `examples` itself: the
    shots of a draw are then not scored. Raises UserError if there are fewer than two labels, if
    `pool` has too few examples, for an unknown label in `label_words`, and if a prompt is too long.
    """
    labels = classification.in_order(e.label for e in [*pool, *examples] if e.label is not None)
    if len(labels) < 2:
        raise errors.UserError(f"{examples[0].where}: there is only the label {labels[0]!r}")
    for name in options.label_words:
        if name not in labels:
            raise errors.UserError(
                f"--label_words: {name!r} is not a label; the labels are {errors.several(labels)}"
            )
    left = len(pool) - (1 if pool is examples else 0)
    if options.shots > left:
        raise errors.UserError(
            f"--shots={options.shots}: there are only {left} examples to draw them from"
        )
    words = {name: name for name in labels} | dict(options.label_words)
    draws = range(options.seeds if options.shots else 1)
    values = collections.defaultdict(list)
    for seed in draws:
        shots = draw(pool, options.shots, seed)
        drawn = {id(shot) for shot in shots}
        scored = [example for example in examples if id(example) not in drawn]
        prompts = [_prompt(shots, example, words, options) for example in scored]
        found: list[str] = []
        for start in range(0, len(prompts), _PROMPTS):
            part = prompts[start : start + _PROMPTS]
            choices = prompting.choose(model, part, list(words.values()))
            found += [labels[choice.index] for choice in choices]
            on_progress(seed * len(examples) + len(found), len(draws) * len(examples))
        targets = [example.label for example in scored]
        values["accuracy"].append(scores_lib.accuracy(targets, found))
        values["macro_f1"].append(scores_lib.macro_f1(targets, found, labels))
    counts = collections.Counter(example.label for example in examples)
    most_frequent, count = counts.most_common(1)[0]
    return {
        "shots": options.shots,
        "draws": len(draws),
        "examples": len(examples),
        **{name: report.summary(scores) for name, scores in values.items()},
        "majority_label": most_frequent,
        "majority_accuracy": 100.0 * count / len(examples),
    }


def draw(pool: Sequence[Example], shots: int, seed: int) -> list[Example]:
    """Returns `shots` examples in a random order, with all labels if there are enough shots."""
    if not shots:
        return []
    order = rng.permutation("shots", len(pool), seed)
    return splits.sample([pool[i] for i in order], shots)


def _prompt(
    shots: Sequence[Example], example: Example, words: Mapping[str, str], options: Options
) -> str:
    shown = [("\n".join(shot.texts), words[str(shot.label)]) for shot in shots]
    return prompting.few_shot(
        shown,
        "\n".join(example.texts),
        instruction=options.instruction,
        template=options.template,
    )


def lines(values: Mapping[str, Any]) -> list[str]:
    """Returns the scores as lines of text."""
    result = []
    for name in ("accuracy", "macro_f1"):
        stats = values[name]
        spread = "" if stats["std"] is None else f" +- {stats['std']:.2f}"
        draws = ", ".join(f"{value:.2f}" for value in stats["values"])
        note = f"   of the draws: {draws}" if len(stats["values"]) > 1 else ""
        result.append(f"  {name:<10}{stats['mean']:>7.2f}{spread}{note}")
    label = values["majority_label"]
    return [*result, f"  always {label!r}: accuracy {values['majority_accuracy']:.2f}"]
