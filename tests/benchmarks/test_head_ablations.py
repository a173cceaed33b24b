"""benchmarks/head_ablations: the config of every row, and how its model is scored."""

import types

import pytest

from benchmarks import head_ablations
from bertjax import config as config_lib
from bertjax import plugins
from tests.helpers import corpora

ROWS = [(name, row) for name, (_, _, rows) in head_ablations.ABLATIONS.items() for row in rows]


@pytest.mark.parametrize(("ablation", "row"), ROWS)
def test_a_row_is_scored_by_the_head_mlm_of_its_own_model(ablation, row):
    file, common, rows = head_ablations.ABLATIONS[ablation]
    lines = dict(line.split("=") for line in (*common, rows[row]))
    config = config_lib.load(
        f"{corpora.ROOT}/{file}", {f"objective.{key}": value for key, value in lines.items()}
    )
    assert config.objective.masking == {"albert": "ngram"}.get(ablation, row.split("_sbo")[0])
    model = types.SimpleNamespace(config=config.to_dict())
    scored = head_ablations.as_mlm(model, pair="nsp", masking="token")
    assert scored.objective.name == "mlm" and scored.objective.pair == "nsp"
    assert scored.objective.masking == "token" and scored.objective.mask_rate == 0.15
    assert scored.model == config.model and "mlm" in scored.model.heads
    plugins.model(scored.family, scored.model)
