"""Few-shot prompting: builds prompts with labelled examples, and picks the likeliest answer.

    examples = [("2 + 2", "4"), ("3 + 5", "8")]
    prompt = prompting.few_shot(examples, "1 + 6")
    prompting.choose(bertjax.load("gpt2/"), [prompt], ["7", "9"])[0].text        # "7"

See Brown et al., arXiv 2005.14165, section 2.4.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertjax import errors
from bertjax.inference import pretrained, scoring

TEMPLATE = "Input: {text}\nOutput: {label}"


def few_shot(
    examples: Sequence[tuple[str, str]],
    text: str,
    *,
    instruction: str = "",
    template: str = TEMPLATE,
    separator: str = "\n\n",
) -> str:
    """Returns a prompt: the instruction, each example, and `text` without a label.

    The prompt does not end with the white space that the template has before the label, because
    this white space belongs to the label.

    examples: pairs (text, label).
    template: the format of an example; must contain {text} once and end with {label}.
    separator: the text between two parts of the prompt.
    Raises UserError for an invalid template.
    """
    if template.count("{text}") != 1 or not template.endswith("{label}"):
        raise errors.UserError(
            f"template = {template!r}: must contain {{text}} once and end with {{label}}"
        )
    question = template.removesuffix("{label}").rstrip()
    space = template.removesuffix("{label}")[len(question) :]
    blocks = [question.replace("{text}", example) + space + label for example, label in examples]
    parts = [instruction] if instruction else []
    return separator.join([*parts, *blocks, question.replace("{text}", text)])


class Choice(NamedTuple):
    """The result of `choose`: the best choice, its index, and the scores of all choices."""

    text: str
    index: int
    scores: tuple[float, ...]


def choose(
    model: pretrained.Pretrained,
    prompts: Sequence[str],
    choices: Sequence[str] | Sequence[Sequence[str]],
    *,
    normalize: bool = True,
) -> list[Choice]:
    """Returns for each prompt the choice that is its likeliest continuation.

    A space is inserted between a prompt and a choice that have no white space between them, unless
    the prompt is empty. Scores are log probabilities in nats. With a decoder, white space at the
    end of the prompt is scored too.

    choices: one list for all prompts, or one list for each prompt.
    normalize: whether to divide a score by the number of scored tokens, so that long choices are
        not penalised.
    Raises UserError if the model does not generate text, if a choice is empty, if a prompt has no
    choices, or if a text is too long.
    """
    if isinstance(prompts, str) or isinstance(choices, str):
        raise errors.UserError("prompts and choices must be lists of texts, not one text")
    if all(isinstance(choice, str) for choice in choices):
        lists = [list(choices)] * len(prompts)
    else:
        lists = [list(options) for options in choices]
    if len(lists) != len(prompts):
        raise errors.UserError(
            f"the number of prompts, {len(prompts)}, differs from the number of choice lists, "
            f"{len(lists)}: give one list per prompt"
        )
    if not all(choice.strip() for options in lists for choice in options) or not all(lists):
        raise errors.UserError("each prompt needs choices, and no choice may be empty")
    if not prompts:
        return []
    contexts, answers = [], []
    for prompt, options in zip(prompts, lists, strict=True):
        for choice in options:
            spaced = prompt[-1:].isspace() or choice[0].isspace() or not prompt
            contexts.append(prompt)
            answers.append(choice if spaced else " " + choice)
    scores, counts = scoring.log_likelihood_of_continuations(model, contexts, answers)
    if normalize:
        scores = scores / np.maximum(counts, 1)  # the count is 0 if the choice adds no token
    edges = np.cumsum([len(options) for options in lists])[:-1]
    return [
        Choice(options[int(part.argmax())], int(part.argmax()), tuple(map(float, part)))
        for options, part in zip(lists, np.split(scores, edges), strict=True)
    ]
