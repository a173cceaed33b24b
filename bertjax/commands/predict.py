"""Fill the [MASK]s of a text (BERT and its kin), or go on with a prompt (GPT-2, T5).

Examples:
  bertjax predict --model=run/ --text='The [MASK] sat on the mat.' --top=5
  bertjax predict --model=gpt2/ --prompt='The cat sat on' --max_new_tokens=20
  bertjax predict --model=gpt2/ --prompt='The cat' --temperature=0.8 --top_p=0.95 --seed=1
  bertjax predict --model=t5/ --prompt='The <extra_id_0> sat on the mat.' --num_beams=4

--text and --prompt may be given several times. Each mask gets the likeliest pieces with their
probabilities. A prompt goes on with the likeliest token each time, unless --temperature asks for
draws or --num_beams for a beam search; the text ends with the end-of-text token.
"""

import argparse

import bertjax
from bertjax import errors

# Fields of generation.Options, where their defaults stand.
OPTIONS = {
    "max_new_tokens": (int, "longest continuation, in tokens, default: 64"),
    "temperature": (float, "above 0: draw tokens, the lower the likelier; 0: do not draw"),
    "top_k": (int, "draw of the k likeliest tokens only"),
    "top_p": (float, "draw of the fewest tokens whose probabilities sum up to this"),
    "seed": (int, "decides the draws"),
    "num_beams": (int, "beams of a beam search"),
    "length_penalty": (float, "exponent of the length that a beam's score is divided by"),
}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--model", required=True, help="workdir, step of one, artifact or Hugging Face folder"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--text", action="append", help="text with masks; may be repeated")
    what.add_argument("--prompt", action="append", help="text to go on with; may be repeated")
    parser.add_argument("--top", type=int, help="with --text: guesses a mask, default: 5")
    options = parser.add_argument_group("with --prompt")
    for name, (kind, summary) in OPTIONS.items():
        options.add_argument(f"--{name}", type=kind, help=summary)


def run(flags: argparse.Namespace) -> None:
    """Prints each text and, below it, the guesses for its masks or what it goes on with."""
    given = {name: getattr(flags, name) for name in ("top", *OPTIONS)}
    given = {name: value for name, value in given.items() if value is not None}
    for name in given:
        if (name == "top") != (flags.prompt is None):
            raise errors.UserError(f"--{name} is for --{'text' if name == 'top' else 'prompt'}")
    model = bertjax.load(flags.model)
    if flags.prompt is None:
        for text, masks in zip(flags.text, model.fill_mask(flags.text, **given), strict=True):
            print(text)
            for fills in masks:
                print("  " + "   ".join(f"{fill.piece} {fill.probability:.3f}" for fill in fills))
        return
    for prompt, text in zip(flags.prompt, model.generate(flags.prompt, **given), strict=True):
        print(prompt)
        print("  " + text.replace("\n", "\n  "))
