"""The command line: `bertjax VERB --flag=value ...` calls `bertjax.commands.VERB.run(flags)`."""

import argparse
import difflib
import importlib
import os
import re
import sys
from collections.abc import Sequence
from types import ModuleType

import bertjax
from bertjax import errors, help_texts, progress
from bertjax.runtime import backend, compilation_cache

VERBS = {
    "tokenizer": "train a tokenizer on text",
    "prepare": "tokenize text into sharded records, once and in parallel",
    "pretrain": "train a model on prepared data, or resume a run",
    "finetune": "fine-tune a model on labelled data, with several learning rates and seeds",
    "plan": "estimate the memory, time and cost of a config on a slice of chips",
    "evaluate": "score a model on held-out or labelled data",
    "predict": "fill the [MASK]s of a text, continue a prompt, or run a fine-tuned model",
    "mine": "find hard negatives for pairs of texts, to train embeddings with",
    "embed": "write the vectors of the texts in a file",
    "probe": "measure what each layer of a frozen model knows about labels",
    "average": "average the parameters of several checkpoints or models",
    "export": "write a model as a Hugging Face folder or as an artifact",
    "import": "convert a Hugging Face folder or a T5X checkpoint to an artifact",
    "inspect": "show the contents of a run, a checkpoint, an artifact or prepared data",
}
_COMPUTE_VERBS = ("pretrain", "finetune", "evaluate", "predict", "embed", "mine", "probe")
_RESUME_ADVICE = "run the same command again to resume"
# {command that can be resumed: what to do after an interruption, as printed in the message}
RESUMABLE = {
    "prepare": _RESUME_ADVICE,
    "pretrain": _RESUME_ADVICE,
    "embed": _RESUME_ADVICE,
    "finetune": "run the same command again: it keeps the finished runs and resumes this one",
}


# {command: what to do if the memory of the device is too small}
_MEMORY_ADVICE = {
    "pretrain": "set config.micro_batch_size, config.remat=full or a mesh over more devices; "
    "`bertjax plan` shows how much a config needs",
    "finetune": "set config.micro_batch_size, config.remat=full or a lower config.max_length",
}


def _usage() -> str:
    verbs = "\n".join(f"  {verb:<10} {summary}" for verb, summary in VERBS.items())
    return (
        f"usage: bertjax VERB [--flag=value ...]\n\n{verbs}\n\n"
        "`bertjax VERB --help` shows the flags and an example, `bertjax --version` the version."
    )


def _load(verb: str) -> ModuleType:
    with progress.stage("loading bertjax", shown=sys.stderr is not None and sys.stderr.isatty()):
        return importlib.import_module(f"bertjax.commands.{verb}")


def _asks_for_help(argv: Sequence[str]) -> bool:
    return "-h" in argv or "--help" in argv


def _help(verb: str, argv: Sequence[str]) -> str:
    """Returns the help text of a command; with --config=FILE, it shows the values of FILE."""
    files = [word.partition("=")[2] for word in argv if word.startswith("--config=")]
    return help_texts.rendered(_load(verb), files[-1]) if files else help_texts.stored(verb)


def _run(verb: str, argv: Sequence[str]) -> None:
    argv = _join_config_values(argv)
    if _asks_for_help(argv):
        print(_help(verb, argv), end="")
        return
    command = _load(verb)
    parser = help_texts.parser(command)
    if "--print_config" in argv:
        _require_only_config(parser)
    flags, rest = parser.parse_known_args(argv)
    overrides: dict[str, str] = {}
    swept: dict[str, str] = {}
    for word in rest:
        prefix, _, setting = word.partition(".")
        key, equals, value = setting.partition("=")
        if prefix not in ("--config", "--beam", "--sweep") or prefix[2:] not in flags:
            raise errors.UserError(_unknown_message(word, argv, flags, command, parser.prog))
        if not equals:
            parser.error(f"{word} needs a value: give {word}=VALUE")
        (swept if prefix == "--sweep" else overrides)[key] = value
    flags.overrides, flags.sweep = overrides, swept
    for name in ("output", "workdir"):
        if getattr(flags, name, None) == "":  # "" would mean the current folder
            parser.error(f"--{name}= is empty: give a folder")
    command.run(flags)


def _require_only_config(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        action.required = action.required and action.dest == "config"


def _join_config_values(argv: Sequence[str]) -> list[str]:
    """Returns `argv` with the flag and the value of `--config VALUE` joined by `=` into one word.

    Also joins those of `--config.KEY VALUE` and `--sweep.KEY VALUE`.
    """
    words: list[str] = []
    for word in argv:
        last = words[-1] if words else ""
        config_flag = re.fullmatch(r"--config(\.[^=]*)?|--sweep\.[^=]*", last)
        if config_flag and not word.startswith("--") and word != "-h":
            words[-1] = f"{last}={word}"
        else:
            words.append(word)
    return words


def _unknown_message(
    word: str, argv: Sequence[str], flags: argparse.Namespace, command: ModuleType, prog: str
) -> str:
    """Returns the error message for a `word` that is neither a known flag nor a flag's value."""
    see_help = f" (see `{prog} --help`)"
    if word.startswith("-"):
        return f"unknown flag {word}{_hint(word, list(vars(flags)), command)}{see_help}"
    index = len(argv) - 1 - argv[::-1].index(word)
    earlier_flags = [arg for arg in argv[:index] if arg.startswith("--")]
    if not earlier_flags:
        return f"{word} is not the value of a flag: give --flag={word}{see_help}"
    flag = earlier_flags[-1].partition("=")[0]
    if isinstance(getattr(flags, flag[2:], None), list):
        advice = f"repeat {flag} for several values; quote a text with spaces or a pattern with *"
    else:
        advice = "quote a text with spaces; separate several numbers by commas"
    return f"{flag} takes one value, but {word} is a second one: {advice}{see_help}"


def _hint(word: str, flags: Sequence[str], command: ModuleType) -> str:
    """Returns a hint that names the command's flags and config keys similar to an unknown flag."""
    key = word.lstrip("-").removeprefix("config.").partition("=")[0]
    leaf = key.split(".")[-1]
    suggestions = [f"--{name}" for name in difflib.get_close_matches(leaf, flags, 1, 0.7)]
    if hasattr(command, "config_keys"):
        suggestions += [f"--config.{name}=..." for name in errors.near(key, command.config_keys())]
    return errors.hint(suggestions)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns the exit code.

    0: done; 2: bad input, or too little memory of the device; 75: preempted, run the same command
    again; 130: interrupted; 141: the output is a pipe whose reader has closed it.
    """
    try:
        try:
            return _main(argv)
        finally:  # flushes also if argparse raises SystemExit
            if sys.stdout is not None:
                sys.stdout.flush()
    except BrokenPipeError:
        if not errors.output_is_unread():
            raise
        errors.discard_output()
        return errors.EXIT_UNREAD


def _main(argv: Sequence[str] | None) -> int:
    is_program = argv is None
    if is_program and sys.stdout is not None:  # JSON lines may contain unpaired surrogates
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    argv = list(sys.argv[1:] if argv is None else argv)
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0 if argv else errors.EXIT_BAD_INPUT
    if argv[0] in ("-V", "--version"):
        print(f"bertjax {bertjax.__version__}")
        return 0
    verb = argv.pop(0)
    if verb not in VERBS:
        hint = errors.did_you_mean(verb, VERBS)
        errors.tell(f"error: unknown command {verb!r}; {hint}the commands are {', '.join(VERBS)}")
        return errors.EXIT_BAD_INPUT
    if is_program and verb in _COMPUTE_VERBS and not _asks_for_help(argv):
        backend.start_with_kept_memory()
        compilation_cache.use()
    try:
        _run(verb, argv)
    except errors.Preempted as stop:
        errors.tell(errors.one_line(stop))
        return errors.EXIT_RESTART
    except KeyboardInterrupt:
        advice = f"; {RESUMABLE[verb]}" if verb in RESUMABLE else ""
        errors.tell(f"interrupted{advice}")
        return errors.EXIT_INTERRUPTED
    except (errors.UserError, OSError) as error:
        if os.environ.get("BERTJAX_TRACEBACK") or not errors.of_the_user(error):
            raise
        errors.tell(f"error: {errors.one_line(error)}")
        return errors.EXIT_BAD_INPUT
    except RuntimeError as error:
        reason = errors.device_memory(error)
        if os.environ.get("BERTJAX_TRACEBACK") or not reason:
            raise
        advice = _MEMORY_ADVICE.get(verb, "use shorter texts, or a smaller model")
        errors.tell(f"error: the device has too little memory ({reason}): {advice}")
        return errors.EXIT_BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())
