"""The command line as a newcomer meets it: version, help, flags, and output that nobody reads."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys

import jax.numpy as jnp
import pytest

import bertjax
from bertjax import __main__ as cli
from bertjax import config
from bertjax.artifact import artifact
from bertjax.commands import pretrain
from bertjax.inference import pretrained
from tests.helpers import children, tiny_model

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMOKE = f"{ROOT}/configs/bert_tiny.py:smoke"


def test_the_version_stands_in_one_place(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"bertjax {bertjax.__version__}\n"
    assert re.fullmatch(r"\d+\.\d+\.\d+", bertjax.__version__)
    command = [sys.executable, "setup.py", "--quiet", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == bertjax.__version__
    assert (ROOT / "bertjax" / "py.typed").exists()


@pytest.mark.parametrize("argv", [["--help"], ["tokenizer"], ["prepare", "--help"]])
def test_output_that_nobody_reads_is_no_error(argv):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "bertjax", *argv]
    stderr = writer if argv == ["tokenizer"] else subprocess.PIPE
    done = subprocess.run(command, stdout=writer, stderr=stderr, env=children.environment())
    os.close(writer)
    assert done.returncode == 141 and not done.stderr


def test_tokenizer_and_model_are_shown_in_one_line():
    source = tiny_model.make()
    tokenizer = source.tokenizer
    shown = f"{tokenizer.size} pieces, fingerprint {tokenizer.fingerprint[:12]}>"
    assert repr(tokenizer) == f"<Tokenizer: wordpiece, {shown}"
    count = artifact.num_params(source.params, tokenizer.size)
    model = (
        f"bert, {count:,} parameters; heads pooler, mlm, nsp; at most 40 tokens; "
        f"wordpiece of {tokenizer.size} pieces; step 7>"
    )
    assert repr(source) == f"<Artifact: {model}"
    assert repr(pretrained.Pretrained(source)) == f"<Pretrained: {model}"
    task = {"name": "sst2", "labels": ["bad", "good"]}
    tuned = dataclasses.replace(source, task=task)
    assert "; task sst2 of 2 labels; " in repr(tuned)


def _error(capsys, *argv: str) -> str:
    assert cli.main(list(argv)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_the_value_of_a_config_key_may_follow_a_space(monkeypatch):
    seen = {}
    monkeypatch.setattr(
        pretrain, "run", lambda flags: seen.update(flags.overrides, config=flags.config)
    )
    words = ["--config", SMOKE, "--workdir", "w", "--config.batch_size", "3", "--config.seed", "-1",
             "--config.data.path=a b"]  # fmt: skip
    assert cli.main(["pretrain", *words]) == 0
    assert seen == {"config": SMOKE, "batch_size": "3", "seed": "-1", "data.path": "a b"}


def test_stray_words_and_missing_values_are_refused_with_the_right_advice(capsys):
    run = ("pretrain", f"--config={SMOKE}", "--workdir=w")
    assert "--config.seed needs a value: give --config.seed=VALUE" in _error(
        capsys, *run, "--config.seed"
    )
    assert "did you mean --config.batch_size=..." in _error(capsys, *run, "--batch_size=3")
    assert "--text takes one value, but b is a second one: repeat --text" in _error(
        capsys, "predict", "--model=m", "--text", "a", "b"
    )
    rates = ("finetune", "--output=o", "--lr", "1e-5", "2e-5")
    assert "2e-5 is a second one: quote a text with spaces; separate several numbers by" in _error(
        capsys, *rates
    )
    assert "lost is not the value" in _error(capsys, "export", "lost", "--model=m", "--output=o")


@pytest.mark.parametrize("verb", ["pretrain", "plan"])
def test_help_lists_every_key_with_value_and_comment(capsys, verb):
    assert cli.main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    for key in config.keys(config.default()):
        assert key in ("objective.name",) or f"\n  {key}=" in shown, key
    lines = shown.splitlines()
    assert "  batch_size=256                    sequences per step, over all devices" in lines
    assert "with objective.name=span_corruption:" in lines
    assert cli.main([verb, "--help", f"--config={ROOT}/configs/t5_small.py"]) == 0
    shown = capsys.readouterr().out
    assert "\n  model.relative_buckets=32\n" in shown and "\n  optimizer.name=adafactor " in shown
    assert "objective.name=mlm" not in shown


@pytest.mark.parametrize("verb", ["pretrain", "plan"])
def test_the_resolved_config_is_printed(verb, capsys):
    words = [verb, f"--config={SMOKE}", "--print_config", "--config.optimizer.weight_decay", "0.02"]
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    (decay,) = [line for line in lines if line.startswith("  optimizer.weight_decay=0.02 ")]
    assert "never to biases" in decay and "[default:" in " ".join(lines)
    keys = {line.partition("=")[0].strip() for line in lines if re.match(r"  \S+=", line)}
    assert keys == set(config.keys(config.load(SMOKE))) - {"objective.name"}
    assert not [line for line in lines if "seed=0" in line and "[default" in line]
    assert cli.main([verb, f"--config={SMOKE}", "--print_config", "--config.sed=1"]) == 2
    assert "unknown config key 'sed'; did you mean seed?" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["pretrain", "plan"])
def test_sources_are_in_the_config_that_is_printed(verb, capsys):
    sources = {"web": {"path": "prepared/web", "weight": 1}}
    words = [verb, f"--config={SMOKE}", "--print_config", f"--config.data.sources={sources}"]
    assert cli.main(words) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "data.sources.web.path=prepared/web" in lines, "without a default"
    assert "data.sources.web.weight=1.0" in lines


def test_flags_of_plan_are_in_the_config_that_it_prints(capsys):
    words = ["plan", f"--config={SMOKE}", "--topology=v5e-4", "--mesh=fsdp:4", "--print_config"]
    assert cli.main(words) == 0
    out = capsys.readouterr().out
    assert "  mesh=fsdp:4 " in out and "  topology=v5e-4 " in out


@pytest.mark.parametrize(
    ("verb", "advice"), [("pretrain", "set config.micro_batch_size"), ("mine", "use shorter texts")]
)
def test_too_little_memory_of_the_device_is_one_line(verb, advice, monkeypatch, capsys):
    def run(verb, argv):
        jnp.zeros((1 << 44,)).block_until_ready()

    monkeypatch.setattr(cli, "_run", run)
    assert cli.main([verb]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("bertjax: error: the device has too little memory (Out of memory")
    assert advice in line
    monkeypatch.setenv("BERTJAX_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        cli.main([verb])


def test_another_error_of_jax_keeps_its_traceback(monkeypatch):
    def run(verb, argv):
        raise RuntimeError("INTERNAL: a bug")

    monkeypatch.setattr(cli, "_run", run)
    with pytest.raises(RuntimeError, match="a bug"):
        cli.main(["mine"])
