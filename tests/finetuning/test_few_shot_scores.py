"""`bertjax evaluate --shots`: labels by prompts, over several draws of the shots."""

import json

import pytest

from bertjax import __main__, errors
from bertjax.artifact import artifact
from bertjax.finetuning import few_shot
from bertjax.finetuning.examples import types as examples_lib
from bertjax.inference import prompting
from tests.helpers import scored

TEXTS = ("the cat sat", "a dog ran", "cat and mat", "dog ran home", "the cat", "a dog", "cat cat")


@pytest.fixture(scope="module")
def gpt():
    return scored.make("gpt2", "bpe", max_length=128)


@pytest.fixture(scope="module")
def root(tmp_path_factory, gpt):
    root = tmp_path_factory.mktemp("few_shot")
    artifact.write(gpt.source, root / "gpt")
    lines = [f"{text}\t{'cat' if 'cat' in text else 'dog'}" for text in TEXTS]
    (root / "data.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return root


def _examples():
    return [
        examples_lib.Sentence((text,), "cat" if "cat" in text else "dog", where=f"data.tsv:{i}")
        for i, text in enumerate(TEXTS, 2)
    ]


def test_the_command_reports_every_draw(root, gpt, capsys):
    file = root / "numbers.json"
    words = [
        "evaluate", f"--model={root / 'gpt'}", "--task=classification", "--shots=2",
        "--shot_seeds=3", f"--data={root / 'data.tsv'}", "--label_words=cat=a cat,dog=dog",
        r"--template={text}\n= {label}", f"--json={file}",
    ]  # fmt: skip
    assert __main__.main(words) == 0
    out, found = capsys.readouterr().out, json.loads(file.read_text())
    assert "2 shots, drawn 3 times, on 7 examples of" in out
    assert "always 'cat': accuracy 57.14" in out
    assert found["majority_accuracy"] == pytest.approx(400 / 7)
    expected = []
    for seed in range(3):
        shots = few_shot.draw(_examples(), 2, seed)
        shown = [(e.texts[0], {"cat": "a cat", "dog": "dog"}[e.label]) for e in shots]
        rest = [e for e in _examples() if e not in shots]
        assert len(rest) == 5
        prompts = [
            prompting.few_shot(shown, e.texts[0], template="{text}\n= {label}") for e in rest
        ]
        choices = prompting.choose(gpt, prompts, ["a cat", "dog"])
        right = [("cat", "dog")[c.index] == e.label for c, e in zip(choices, rest, strict=True)]
        expected.append(100 * sum(right) / len(right))
    assert found["accuracy"]["values"] == pytest.approx(expected)
    assert found["accuracy"]["mean"] == pytest.approx(sum(expected) / 3)


def test_draws_differ_and_have_all_labels():
    draws = [few_shot.draw(_examples(), 2, seed) for seed in range(8)]
    assert all({e.label for e in shots} == {"cat", "dog"} for shots in draws)
    assert len({tuple(shots) for shots in draws}) > 4
    assert {shots[0].label for shots in draws} == {"cat", "dog"}  # the order is random, too
    assert few_shot.draw(_examples(), 0, 1) == []


def test_bad_options_are_refused_in_a_line(root, gpt, capsys):
    base = ["evaluate", f"--model={root / 'gpt'}", f"--data={root / 'data.tsv'}"]
    for flags, message in (
        (["--task=classification", "--shot_seeds=2"], "--shot_seeds can only be used with --shots"),
        (["--shots=2"], "--shots needs --task"),
        (["--task=ner", "--shots=2"], "tasks that choose a label"),
        (["--task=classification", "--shots=-1"], "--shots=-1: must be 0 or more"),
        (["--task=classification", "--shots=2", "--label_words=cat"], "give LABEL=WORDS"),
        (["--task=classification", "--shots=2", "--mask_rate=0.1"], "--mask_rate cannot be used"),
    ):
        assert __main__.main([*base, *flags]) == 2
        assert message in " ".join(capsys.readouterr().err.split())
    examples = _examples()
    with pytest.raises(errors.UserError, match="there are only 6 examples"):
        few_shot.evaluate(gpt, examples, examples, few_shot.Options(7))
    with pytest.raises(errors.UserError, match="'fish' is not a label; the labels are cat, dog"):
        few_shot.evaluate(
            gpt, examples, examples, few_shot.Options(1, label_words={"fish": "a fish"})
        )
