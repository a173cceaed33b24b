import jax.numpy as jnp
import numpy as np
import pytest

from bertjax import run_log, step_log


def test_an_interval_whose_steps_were_all_skipped_has_no_loss(tmp_path, capsys):
    with step_log.StepLog(tmp_path, 0, 6, {"mlm_loss": 1.0}, log_every=2) as log:
        for number, bad in enumerate((0, 0, 1, 2, 0, 0), start=1):
            term = jnp.float32(np.nan if bad else 10.0 * number), jnp.float32(5.0)
            general = dict.fromkeys(("loss", "learning_rate", "grad_norm", "skipped"), term[1])
            report = {**general, "skipped_in_row": jnp.int32(bad), "terms": {"mlm_loss": term}}
            log.step(number, report, tokens=32)
        log._log_pending()
    lines = run_log.read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [2, 4, 6]
    assert [line["train/loss"] for line in lines] == [3.0, pytest.approx(np.nan, nan_ok=True), 11.0]
    assert "train/mlm_loss" not in lines[1]
    assert "loss 11.000" in capsys.readouterr().err


def test_share_of_time_waiting_for_data_is_logged_and_shown(tmp_path, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(step_log.time, "perf_counter", lambda: now[0])
    report = dict.fromkeys(("loss", "learning_rate", "grad_norm", "skipped"), jnp.float32(1.0))
    report |= {"skipped_in_row": jnp.int32(0), "terms": {"mlm_loss": (report["loss"],) * 2}}
    with step_log.StepLog(tmp_path, 0, 6, {"mlm_loss": 1.0}, log_every=2) as log:
        for number, wait in enumerate((900.0, 1.0, 2.0, 1.0, 0.0, 0.0), start=1):
            with log.waiting():
                now[0] += wait
            with log.paused():
                now[0] += 500.0  # an evaluation counts as neither training nor waiting
            now[0] += 4.0
            log.step(number, report, tokens=32, timed=number > 1)  # the first step is compiled
            log._log_pending()
    lines = run_log.read_metrics(tmp_path / "metrics.jsonl")
    assert [line["data_wait"] for line in lines] == [1 / 5, pytest.approx(3 / 11), 0.0]
    shown = capsys.readouterr().err
    assert "20% waiting for data" in shown
    assert "waiting" not in shown.splitlines()[-1]
