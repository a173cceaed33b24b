"""Phases and mixtures of a run: what each step trains on, resumed anywhere, and bad configs."""

import contextlib
import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

import bertjax
from bertjax import (
    __main__,
    errors,
    experiment,
    metrics,
    phases,
    run_log,
    sharding,
    train,
    training_data,
)
from bertjax import checkpoint as checkpoint_lib
from bertjax import config as config_lib
from bertjax.data.prepared import prepare, sources
from bertjax.data.tokenizers import tokenizer as tokenizer_lib
from tests.helpers import corpora

ROOT = pathlib.Path(__file__).resolve().parent.parent
SMOKE = str(ROOT / "configs" / "modernbert_base.py") + ":smoke"
PHASES = (
    {"num_steps": 5},
    {"num_steps": 4, "data.length": 48, "batch_size": 8, "model.global_theta": 80_000.0},
    {"num_steps": 3, "objective.mask_rate": 0.1, "data.sources.web.weight": 0.2,
     "optimizer.weight_decay": 0.1,
     "data.sources.late.weight": 0.5, "optimizer.schedule": "linear"},
)  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Returns a folder with a tokenizer and the prepared sources web, books and late."""
    folder = tmp_path_factory.mktemp("sources")
    tokenizer_lib.train("wordpiece", corpora.documents(200), 150).save(folder / "tokenizer")
    for seed, (name, count) in enumerate({"web": 120, "books": 60, "late": 30}.items(), 1):
        file = corpora.write_jsonl(folder / f"{name}.jsonl", corpora.documents(count, seed))
        prepare.prepare([str(file)], str(folder / "tokenizer"), str(folder / name), workers=1,
                        heldout_fraction=0.2)  # fmt: skip
    return folder


def make_config(data, run_phases=PHASES, weights=None, **overrides):
    keys = {"model.vocab_size": "150", "num_steps": "12", "phases": "()", "phase2.num_steps": "0",
            "log_every": "1", "optimizer.decay_steps": "0", "optimizer.schedule": "constant",
            "optimizer.warmup_steps": "2", "checkpoint.every": "1000", "eval.every": "1000",
            "model.max_length": "64", "eval.max_samples": "16"}  # fmt: skip
    config = config_lib.load(SMOKE, keys | {k.replace("__", "."): v for k, v in overrides.items()})
    weights = {"web": 0.7, "books": 0.3, "late": 0.0} if weights is None else weights
    config.data.sources = {
        name: {"path": str(data / name), "weight": weight} for name, weight in weights.items()
    }
    config.phases = run_phases
    config.num_steps = sum(phase["num_steps"] for phase in run_phases)
    return config


def training_text(data, run):
    """Returns the training batches of the experiment `run`, from all three sources."""
    vocabulary = tokenizer_lib.load(str(data / "tokenizer")).vocabulary()
    opened = sources.open_split({n: data / n for n in ("web", "books", "late")}, "train")
    return training_data.TrainingData(run, opened, vocabulary)


def parameters(workdir, config):
    abstract_state = experiment.Experiment(config).abstract_state(sharding.make_mesh(config.mesh))
    state, _ = checkpoint_lib.Reader(workdir / "checkpoints").restore(abstract_state)
    return jax.device_get((state.params, state.opt_state))


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """Returns (workdir, config, the last held-out metrics) of an uninterrupted run."""
    workdir, config = tmp_path_factory.mktemp("whole") / "run", make_config(data)
    config.eval.every = 5
    return workdir, config, train.train_and_evaluate(config, workdir)


@contextlib.contextmanager
def stop_at(*steps):
    """Within this context, a run is stopped at any of the steps, as by SIGTERM."""
    with pytest.MonkeyPatch.context() as monkeypatch, pytest.raises(errors.Preempted):
        monkeypatch.setattr(train.signals.StopSignals, "reached", lambda self, step: step in steps)
        yield


def test_a_phase_keeps_what_it_does_not_set(data):
    first, second, third = phases.of(make_config(data))
    assert [(p.start, p.stop, p.length, p.batch_size) for p in (first, second, third)] == [
        (0, 5, 32, 16), (5, 9, 48, 8), (9, 12, 48, 8)
    ]  # fmt: skip
    thetas = [p.config.model.global_theta for p in (first, second, third)]
    assert thetas == [10_000.0, 80_000.0, 80_000.0]
    assert third.config.objective.mask_rate == 0.1 != second.config.objective.mask_rate
    assert second.place("batch_size") == "phases[1]['batch_size']" == third.place("batch_size")
    assert first.place("batch_size") == "batch_size"


def test_phases_by_tokens_and_a_ramp(data):
    by_tokens = ({"num_tokens": 16 * 32 * 3 + 1}, {"num_tokens": 8 * 32 * 2, "batch_size": 8})
    config = make_config(data)
    config.phases = by_tokens
    assert [phase.num_steps for phase in phases.of(config)] == [4, 2]
    assert phases.total_steps(config) == 6
    ramp = phases.batch_ramp(8, 32, num_tokens=4 * 32 * 96, parts=4)
    config.phases = (*ramp, {"num_steps": 5})
    assert [(phase.batch_size, phase.num_steps) for phase in phases.of(config)] == [
        (8, 12), (16, 6), (24, 4), (32, 3), (32, 5)
    ]  # fmt: skip


def test_the_rate_follows_the_schedule_of_each_phase(data):
    config = make_config(data)
    rate = phases.schedule(config)
    peak = config.optimizer.learning_rate
    expected = [0, 0.5, 1, 1, 1, 1, 1, 1, 1, 1, 2 / 3, 1 / 3]
    assert [float(rate(step)) / peak for step in range(12)] == pytest.approx(expected)
    lower = (*PHASES[:1], {**PHASES[1], "optimizer.learning_rate": peak / 4}, PHASES[2])
    rate = phases.schedule(make_config(data, lower))
    expected[5:] = [0.25, 0.25, 0.25, 0.25, 0.25, 1 / 6, 1 / 12]
    assert [float(rate(step)) / peak for step in range(12)] == pytest.approx(expected)


@pytest.mark.proof
def test_curves_have_the_phases_and_the_sources(whole, capsys):
    workdir, config, heldout = whole
    lines = run_log.read_metrics(workdir / "metrics.jsonl")
    training = [line for line in lines if "train/loss" in line]
    assert [line["step"] for line in training] == list(range(1, 13))
    epochs = {name: [line[f"data/{name}/epochs"] for line in training]
              for name in ("web", "books", "late")}  # fmt: skip
    assert epochs["late"][:9] == [0.0] * 9 and epochs["late"][-1] > 0
    for name in ("web", "books"):
        assert sorted(epochs[name]) == epochs[name] and epochs[name][0] > 0
        size = training[-1][f"data/{name}/tokens"] / epochs[name][-1]
        opened = train.open_data(config)[0].datasets[name]
        assert size == pytest.approx(opened.num_tokens)
    held = [line for line in lines if "eval/web/mlm_loss" in line]
    assert [line["step"] for line in held] == [5, 10, 12]
    shares = {"web": 0.2, "books": 0.3, "late": 0.5}
    mean = sum(share * held[-1][f"eval/{name}/mlm_loss"] for name, share in shares.items())
    assert held[-1]["eval/mlm_loss"] == pytest.approx(mean) == heldout["mlm_loss"]
    assert {f"eval/{name}/bits_per_byte" for name in shares} <= held[-1].keys()


@pytest.mark.proof
def test_the_unigram_baseline_is_that_of_the_mixture_of_the_phase(data, whole):
    workdir, config, _ = whole
    run = experiment.Experiment(config)
    text, (first, second, third) = training_text(data, run), phases.of(config)
    assert [text.last_alike(phase) for phase in (first, second, third)] == [second, second, third]
    vocabulary = tokenizer_lib.load(str(data / "tokenizer")).vocabulary()
    heldout = train.open_data(config)[1].datasets["web"]
    (held,) = [line for line in run_log.read_metrics(workdir / "metrics.jsonl")
               if line["step"] == 5 and "eval/loss" in line]  # fmt: skip
    losses = []
    for mixture in (second, third):
        log_probs, total = run.unigram(text, mixture), np.zeros(2)
        for batch in run.eval_batches(heldout, vocabulary, first, lambda size: slice(None)):
            ids, weights = metrics.predicted(batch)
            total += -(log_probs[ids] * weights).sum(), weights.sum()
        losses.append(total[0] / total[1])
    assert held["eval/web/unigram_loss"] == pytest.approx(losses[0], rel=1e-5)
    assert abs(losses[0] - losses[1]) > 1e-3, "the mixtures differ"


def test_stopped_in_any_phase_and_resumed_ends_bit_equal(data, whole, tmp_path):
    workdir, config, _ = whole
    for step in (5, 10):  # at a border, and in the last phase
        with stop_at(step):
            train.train_and_evaluate(config, tmp_path / "run")
    train.train_and_evaluate(config, tmp_path / "run")
    assert_equal(parameters(workdir, config), parameters(tmp_path / "run", config))
    baselines = [
        [line["eval/unigram_loss"] for line in run_log.read_metrics(run / "metrics.jsonl")
         if "eval/unigram_loss" in line]
        for run in (workdir, tmp_path / "run")
    ]  # fmt: skip
    assert baselines[0] == baselines[1] and len(set(baselines[0])) == 2


def test_the_model_of_a_checkpoint_has_the_values_of_its_phase(whole):
    workdir, _, _ = whole
    thetas = {
        step: bertjax.load(workdir / "checkpoints" / str(step)).model.config.global_theta
        for step in (5, 10)
    }
    assert thetas == {5: 10_000.0, 10: 80_000.0}


def test_each_phase_goes_on_reading_where_the_one_before_stopped(data):
    config = make_config(data)
    stream = training_text(data, experiment.Experiment(config))
    before, after = (stream.epochs(step) for step in (5, 6))
    assert all(0 <= after[name] - before[name] < 0.2 for name in after)
    same = (*PHASES[:1], {"num_steps": 7, "objective.mask_rate": 0.3})
    split, joint = (
        training_text(data, experiment.Experiment(make_config(data, run_phases)))
        for run_phases in (same, ({"num_steps": 12},))
    )
    counts = [
        {name: round(n * 1e9) for name, n in source.epochs(12).items()} for source in (split, joint)
    ]
    assert all(abs(counts[0][name] - counts[1][name]) < 0.2e9 for name in counts[0])


def test_phases_share_the_steps_and_the_samples_that_are_the_same(data, monkeypatch):
    other = ({"num_steps": 2, "optimizer.learning_rate": 1e-4, "data.sources.late.weight": 0.5},
             {"num_steps": 2, "micro_batch_size": 4}, {"num_steps": 2, "model.global_theta": 9.0},
             {"num_steps": 2, "objective.mask_rate": 0.1})  # fmt: skip
    config = make_config(data, ({"num_steps": 2, "batch_size": 8}, *other))
    run, mesh = experiment.Experiment(config), sharding.make_mesh(config.mesh)
    traces, original = [], experiment.step_lib.init_state
    monkeypatch.setattr(experiment.step_lib, "init_state",
                        lambda *args, **kwargs: traces.append(args) or original(*args, **kwargs))
    steps = [run.train_step(phase, mesh) for phase in phases.of(config)]
    assert [steps.index(step) for step in steps] == [0, 0, 2, 3, 4] and len(traces) == 1
    evals = [run.at(phase).eval_step() for phase in phases.of(config)]
    assert [evals.index(step) for step in evals] == [0, 0, 0, 3, 4]
    streams, make = [], training_data.loader.Stream
    monkeypatch.setattr(training_data.loader, "Stream",
                        lambda *args, **kwargs: streams.append(args) or make(*args, **kwargs))
    text = training_text(data, run)
    for phase in phases.of(config):
        text.stream(phase)
    assert len(streams) == 6  # of three sources, before and after the mask rate changes


def test_an_empty_first_phase_has_no_phase_before_it(data):
    empty_first = make_config(data, ({"num_steps": 0}, {"num_steps": 2}))
    only_phase2 = make_config(data, ({"num_steps": 2},))
    only_phase2.phases, only_phase2.phase2.num_steps = (), 2
    for config in (empty_first, only_phase2):
        (phase,) = phases.of(config)
        text = training_text(data, experiment.Experiment(config))
        shape = text.stream(phase).batch(0)["input_ids"].shape
        assert shape == (phase.batch_size, phase.length)
        assert text.epochs(2)["web"] > 0


@pytest.mark.proof
def test_a_run_with_sources_is_evaluated_and_inspected(data, whole, tmp_path, capsys, monkeypatch):
    workdir, _, _ = whole
    flags = [f"--data={data / 'books'}", "--max_samples=16", "--batch_size=16"]
    assert __main__.main(["evaluate", f"--model={workdir}", *flags]) == 0
    assert "on 16 samples of the heldout split of" in capsys.readouterr().out
    monkeypatch.chdir(data / "books")  # whose manifest does not describe the run's data
    assert __main__.main(["inspect", str(workdir)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    start = next(i for i, line in enumerate(lines) if line.startswith("data "))
    printed = zip(("data books", "late", "web"), lines[start : start + 3], strict=True)
    for name, line in printed:
        assert line.startswith(f"{name}: {data / name.split()[-1]}: ") and " tokens in " in line


def test_later_phases_and_sources_may_be_added(data, whole, tmp_path):
    _, config, _ = whole
    shorter = make_config(data, PHASES[:2], {"web": 0.7, "books": 0.3})
    with stop_at(7):
        train.train_and_evaluate(shorter, tmp_path / "run")
    changed = (PHASES[0], {**PHASES[1], "batch_size": 16}, PHASES[2])
    with pytest.raises(errors.UserError, match=r"phase 2, which has begun, batch_size = 16 \(it"):
        train.train_and_evaluate(make_config(data, changed), tmp_path / "run")
    with stop_at(8):
        train.train_and_evaluate(config, tmp_path / "run")
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["config"]["num_steps"] == 12 and "late=" in stored["data_fingerprint"]


def test_a_decay_branches_off_a_checkpoint_and_the_stable_run_goes_on(data, whole, tmp_path):
    workdir, _, _ = whole
    lines = (workdir / "metrics.jsonl").read_bytes()
    decay = (*PHASES[:1], {"num_steps": 3, "optimizer.schedule": "linear"})
    branch = workdir / "checkpoints" / "5"
    heldout = train.train_and_evaluate(
        make_config(data, decay), tmp_path / "decay", branch_from=branch
    )
    assert np.isfinite(heldout["mlm_loss"]) and (workdir / "metrics.jsonl").read_bytes() == lines
    alone = make_config(data, decay)
    train.train_and_evaluate(alone, tmp_path / "alone")
    assert_equal(parameters(tmp_path / "alone", alone), parameters(tmp_path / "decay", alone))
    with pytest.raises(errors.UserError, match=r"is a checkpoint of another run, and in phase 1"):
        other = make_config(data, decay, batch_size="8")
        train.train_and_evaluate(other, tmp_path / "other", branch_from=branch)
    with pytest.raises(errors.UserError, match=r"--branch_from=.*: is not a checkpoint; give"):
        train.train_and_evaluate(alone, tmp_path / "other", branch_from=workdir)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"phases": ({"num_steps": 5}, {"num_steps": 5})}, "num_steps = 12: must be 10, the steps"),
        ({"phases": ({"data.length": 5},)}, r"phases\[0\]: must have one of the keys num_steps"),
        ({"phases": ({"num_steps": -1},)}, r"\['num_steps'\] = -1: must be an integer, 0 or more"),
        ({"phases": ({"num_steps": 12, "seed": 3},)}, r"\['seed'\]: a phase cannot set this key"),
        ({"phases": ({"num_steps": 12, "batch_size": 1.5},)}, r"\['batch_size'\] = 1.5: must be"),
        ({"phases": ({"num_steps": 12, "data.length": 65},)},
         r"phases\[0\]\['data.length'\] = 65: must be between 8 and config.model.max_length = 64"),
        ({"phases": ({"num_steps": 12, "model.hidden_size": 48},)}, "change the model's param"),
        ({"phases": ("long",)}, r"phases\[0\] = 'long': must be a dict of config keys"),
        ({"data.sources.web.weight": -1.0}, "data.sources.web.weight = -1.0: must be a number"),
        ({"data.sources.web.weight": 0.0, "data.sources.books.weight": 0.0},
         "all weights are 0 in phase 1"),
        ({"data.sources": {"web": {"weight": 1.0}}}, 'sources.web: must be a dict with the keys'),
        ({"data.path": "prepared"}, "data.path = 'prepared': must be empty"),
        ({"phase2.num_steps": 3}, "config.phases and config.phase2.num_steps are both set"),
        ({"data.size_exponent": 2.0}, "data.size_exponent = 2.0: must be between 0 and 1"),
    ],
)  # fmt: skip
def test_impossible_phases_and_sources_are_refused(data, keys, message):
    config = make_config(data)
    for key, value in keys.items():
        *parents, leaf = key.split(".")
        group = config_lib.value_of(config, ".".join(parents)) if parents else config
        with group.unlocked():
            group[leaf] = value
    with pytest.raises(errors.UserError, match=message):
        config_lib.validate(config)


def test_sources_without_held_out_text_or_with_another_tokenizer_are_refused(data, tmp_path):
    texts = corpora.write_jsonl(tmp_path / "few.jsonl", corpora.documents(20))
    prepare.prepare([str(texts)], str(data / "tokenizer"), str(tmp_path / "train"), workers=1,
                    heldout_fraction=0.0)  # fmt: skip
    config = make_config(data)
    config.data.sources.web.path = str(tmp_path / "train")
    with pytest.raises(errors.UserError, match=r"web.path = .*: the heldout split contains"):
        train.open_data(config)
    tokenizer_lib.train("wordpiece", corpora.documents(9), 140).save(tmp_path / "tokenizer")
    prepare.prepare([str(texts)], str(tmp_path / "tokenizer"), str(tmp_path / "other"), workers=1,
                    heldout_fraction=0.2)  # fmt: skip
    config.data.sources.web.path = str(tmp_path / "other")
    with pytest.raises(errors.UserError, match=r"web.path = .*: .*different tokenizer from"):
        train.open_data(config)


def test_the_stored_config_is_read_back(data):
    config = make_config(data)
    stored = json.loads(json.dumps(config.to_dict()))
    assert config_lib.from_dict(stored).to_dict() == config.to_dict()
    assert [dataclasses.astuple(p)[:3] for p in phases.of(config_lib.from_dict(stored))] == [
        (0, 0, 5), (1, 5, 9), (2, 9, 12)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "tokens", "rates"),
    [  # tokens in rows of 1,024 and 8,192; rates at the start, the end, and between phases
        ("modernbert_base", (1719, 300), (8e-4, 3e-4, 3e-7)),
        ("modernbert_large", (1719, 300), (5e-4, 5e-5, 5e-8)),
        ("mmbert_base", (2300, 700), (8e-4, 8e-4, 1.6e-5)),
    ],
)
def test_published_phases(name, tokens, rates):
    run = config_lib.load(str(ROOT / "configs" / f"{name}.py"))
    parts = phases.of(run)
    for length, billions in zip((1024, 8192), tokens, strict=True):
        steps = [part for part in parts if part.length == length]
        total = sum(part.num_steps * part.batch_size * length for part in steps)
        assert total == pytest.approx(billions * 1e9, rel=1e-4)
    rate = phases.schedule(run)
    long_rows = next(part.start for part in parts if part.length == 8192)
    steps = (long_rows // 3, long_rows, run.num_steps)
    assert [float(rate(step)) for step in steps] == pytest.approx(rates, rel=1e-3)


def test_mmbert_adds_languages_and_masks_less():
    run = config_lib.load(str(ROOT / "configs" / "mmbert_base.py"))
    found = {}
    for part in phases.of(run):
        data = part.config.data
        languages = [name for name, source in data.sources.items() if source.weight]
        values = part.config.objective.mask_rate, data.size_exponent, len(languages)
        found[values] = part.config.model.local_theta
    assert found == {(0.3, 0.7, 61): 1e4, (0.15, 0.5, 110): 1.6e5, (0.05, 0.3, 111): 1.6e5}
