"""Adapters of PEFT: base + scale * B A is the fine-tuned model, by tensors and live in peft."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import safetensors.numpy

from bertjax import errors, hub
from bertjax.artifact import artifact, huggingface, peft
from bertjax.finetuning import strategies
from tests.helpers import encoders, proofs

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CASES = {  # family: (tokenizer, heads, targets)
    "bert": ("wordpiece", ("pooler", "classifier"), "query,value,wo"),
    "modernbert": ("bpe", ("classifier",), "query,value,wi,out"),
}


def tuned(family: str, source: str = "base"):
    """Returns (base, fine-tuned) artifacts; the latter has random matrices and another head."""
    kind, heads, targets = CASES[family]
    base = encoders.make_artifact(family, kind, num_layers=2, heads=heads, num_labels=3)
    config = {"name": "lora", "rank": 2, "alpha": 6.0, "targets": targets}
    method = strategies.make(config, base.fields)
    trained, frozen = jax.device_get(method.split(base.params, jax.random.key(0)))
    rng = np.random.default_rng(1)
    trained = jax.tree.map(
        lambda x: 0.3 * rng.standard_normal(x.shape).astype(np.float32), trained
    )
    params = jax.device_get(method.combine(trained, frozen))
    lora = method.lora(trained)
    return base, dataclasses.replace(base, params=params, lora=lora, source=source)


def tensors(file):
    return safetensors.numpy.load_file(file)


@pytest.mark.parametrize("family", CASES)
def test_the_base_with_the_adapter_is_the_whole_model(family, tmp_path):
    base, model = tuned(family)
    huggingface.write(base, tmp_path / "base")
    huggingface.write(model, tmp_path / "whole")
    peft.write(model, tmp_path / "adapter")
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    found = tensors(tmp_path / "base/model.safetensors")
    adapter = {
        name.removeprefix("base_model.model."): array
        for name, array in tensors(tmp_path / "adapter/adapter_model.safetensors").items()
    }
    ranks, alphas = config["rank_pattern"], config["alpha_pattern"]
    for name, a in adapter.items():
        target = name.removesuffix(".lora_A.weight")
        if target != name:
            rank, alpha = ranks.get(target, config["r"]), alphas.get(target, config["lora_alpha"])
            assert len(a) == rank and alpha / rank == 3.0
            assert any(f".{target}".endswith(f".{end}") for end in config["target_modules"])
            found[f"{target}.weight"] += 3.0 * adapter[f"{target}.lora_B.weight"] @ a
        elif ".lora_" not in name:
            assert any(f".{saved}." in f".{name}" for saved in config["modules_to_save"])
            found[name] = a
    whole = tensors(tmp_path / "whole/model.safetensors")
    assert found.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_allclose(found[name], array, atol=1e-4, err_msg=name)


def test_the_adapter_names_its_base_and_only_its_targets(tmp_path):
    _, model = tuned("bert", f"org/base@{COMMIT}")
    peft.write(model, tmp_path / "adapter", {"dev": {"accuracy": 91.5}})
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == ("org/base", COMMIT)
    assert config["task_type"] == "SEQ_CLS" and (config["r"], config["lora_alpha"]) == (2, 6.0)
    # "output.dense" would match attention.output.dense, too
    assert config["target_modules"] == [
        "0.output.dense", "1.output.dense", "attention.self.query", "attention.self.value"
    ]  # fmt: skip
    assert config["modules_to_save"] == ["classifier", "pooler"]
    card = (tmp_path / "adapter/README.md").read_text()
    assert "library_name: peft\n" in card and "base_model: org/base\n" in card
    assert "| dev | accuracy | 91.5 |" in card


@pytest.mark.parametrize("family", proofs.all_but(CASES, "modernbert"))
def test_peft_computes_the_same_logits(family, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    library = pytest.importorskip("peft")
    base, model = tuned(family)
    for name, each in (("base", base), ("whole", model)):
        huggingface.write(each, tmp_path / name)
    peft.write(model, tmp_path / "adapter")
    auto = transformers.AutoModelForSequenceClassification
    adapted = library.PeftModel.from_pretrained(
        auto.from_pretrained(tmp_path / "base"), tmp_path / "adapter"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "adapter")
    inputs = tokenizer(["the dog ran home"], return_tensors="pt")
    with torch.no_grad():
        ours = auto.from_pretrained(tmp_path / "whole").eval()(**inputs).logits
        theirs = adapted.eval()(**inputs).logits
    np.testing.assert_allclose(theirs, ours, atol=2e-4, rtol=1e-4)


def test_the_matrices_stay_in_the_artifact(tmp_path):
    _, model = tuned("bert")
    artifact.write(model, tmp_path / "artifact")
    read = artifact.read(tmp_path / "artifact")
    assert read.source == "base" and not hub.is_pinned(read.source)
    assert (read.lora.rank, read.lora.alpha, read.lora.heads) == (2, 6.0, ("classifier", "pooler"))
    assert read.lora.matrices.keys() == model.lora.matrices.keys()
    file = tmp_path / "artifact/lora.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(errors.UserError, match=r"lora[.]safetensors: its checksum differs"):
        artifact.read(tmp_path / "artifact")


def test_a_model_without_matrices_is_refused(tmp_path):
    base, _ = tuned("bert")
    with pytest.raises(errors.UserError, match=r"no LoRA matrices: .*--strategy=lora"):
        peft.write(base, tmp_path / "adapter")
