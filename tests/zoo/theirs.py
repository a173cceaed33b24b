"""Computes a folder's ids and outputs with any version of transformers; needs no bertjax."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers

from tests.zoo import texts

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)  # the models are too small to gain from threads

LENGTH, ROWS = 24, 4
FEWEST = 320  # assumed vocab_size if config.json lacks it
# End of the class's name -> our name of its `logits`.
LOGITS = {
    "ForMaskedLM": "mlm_logits",
    "ForNextSentencePrediction": "nsp_logits",
    "ElectraForPreTraining": "rtd_logits",
    "ForSequenceClassification": "class_logits",
    "ForMultipleChoice": "class_logits",
    "ForTokenClassification": "token_logits",
    "ForConditionalGeneration": "logits",
    "LMHeadModel": "logits",
}


def rendered(tokenizer: Any) -> list[str]:
    """Returns the texts with the tokenizer's own special tokens filled in."""
    known = tokenizer.get_vocab()
    mask = tokenizer.mask_token or ("<extra_id_0>" if "<extra_id_0>" in known else "mask")
    names = {
        "mask": mask,
        "cls": tokenizer.cls_token or tokenizer.bos_token or "",
        "sep": tokenizer.sep_token or tokenizer.eos_token or "",
        "pad": tokenizer.pad_token or "",
    }
    given = [*(text.format(**names) for text in texts.TEMPLATES), texts.ADDED]
    return [*given, texts.SENTINELS] if "<extra_id_0>" in known else given


def tokenize(folder: pathlib.Path, given: Sequence[str] | None = None) -> dict[str, list]:
    """Returns {"texts", "ids" of each, "pairs": ids of each pair, "version"} by AutoTokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    given = list(given) if given is not None else rendered(tokenizer)
    pairs = [tokenizer(*pair)["input_ids"] for pair in texts.PAIRS]
    ids = tokenizer(given)["input_ids"]
    return {"texts": given, "ids": ids, "pairs": pairs, "version": transformers.__version__}


def class_name(folder: pathlib.Path) -> str:
    """Returns the class that config.json names."""
    return json.loads((folder / "config.json").read_text())["architectures"][0]


def batch(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns rows of random tokens for the model in a folder; some rows are padded."""
    config = json.loads((folder / "config.json").read_text())
    vocab_size, name = config.get("vocab_size", FEWEST), class_name(folder)
    rng = np.random.default_rng(0)
    lengths = np.array([LENGTH, LENGTH // 2, 5, LENGTH - 1])
    mask = np.arange(LENGTH) < lengths[:, None]
    ids = rng.integers(12, vocab_size, (ROWS, LENGTH))
    ids[~mask] = config.get("pad_token_id") or 0
    features = {"input_ids": ids, "attention_mask": mask.astype(int)}
    if name.startswith(("Bert", "Albert", "Electra")):
        features["token_type_ids"] = (np.arange(LENGTH) >= lengths[:, None] // 2) * mask
    if name.startswith(("T5", "MT5")) and not name.endswith("EncoderModel"):
        decoded = np.arange(LENGTH // 2) < lengths[::-1, None] // 2
        features["decoder_input_ids"] = rng.integers(0, vocab_size, decoded.shape)
        features["decoder_attention_mask"] = decoded.astype(int)
    return {key: value.astype(np.int32) for key, value in features.items()}


def outputs(folder: pathlib.Path) -> dict[str, np.ndarray]:
    """Returns hidden states and logits of the model in a folder, by our names, without padding."""
    name = class_name(folder)
    model, loading = getattr(transformers, name).from_pretrained(
        folder, attn_implementation="eager", torch_dtype=torch.float32, output_loading_info=True
    )
    features = batch(folder)
    given = {key: torch.tensor(value).long() for key, value in features.items()}
    choices = name.endswith("ForMultipleChoice")
    if choices:
        given = {key: value.reshape(2, ROWS // 2, -1) for key, value in given.items()}
    with torch.no_grad():
        found = model.eval()(**given, output_hidden_states=True)
    tensors = {LOGITS[end]: found.logits for end in LOGITS if name.endswith(end)}
    if name.endswith("ForPreTraining") and "rtd_logits" not in tensors:
        tensors["mlm_logits"] = found.prediction_logits
        pair = "sop_logits" if "sop_logits" in found else "nsp_logits"
        tensors[pair] = found.get("sop_logits", found.get("seq_relationship_logits"))
    if name.endswith("ForQuestionAnswering"):
        tensors["span_logits"] = torch.stack([found.start_logits, found.end_logits], -1)
    random = any("pooler" in key for key in loading["missing_keys"])  # the file has no pooler
    if found.get("pooler_output") is not None and not random:
        tensors["pooled_output"] = found.pooler_output
    if "decoder_hidden_states" in found:
        tensors["hidden_states"] = torch.stack(found.decoder_hidden_states)
        tensors["encoder_hidden_states"] = torch.stack(found.encoder_hidden_states)
    else:
        *states, last = found.hidden_states
        if name.startswith("ModernBert") and transformers.__version__.startswith("4."):
            last = model.base_model.final_norm(last).detach()  # transformers 4 returns it unnormed
        tensors["hidden_states"] = torch.stack([*states, last])
    if choices:
        tensors["class_logits"] = tensors["class_logits"].reshape(ROWS, 1)
    return {key: real(key, value.numpy(), features) for key, value in tensors.items()}


def real(name: str, value: np.ndarray, features: dict[str, np.ndarray]) -> np.ndarray:
    """Returns the values at tokens, without those at padding."""
    mask = features["attention_mask"].astype(bool)
    if "decoder_attention_mask" in features and not name.startswith("encoder"):
        mask = features["decoder_attention_mask"].astype(bool)
    if name.endswith("hidden_states"):
        return value[:, mask]
    return value[mask] if value.ndim == 3 else value


def randomize(model: Any) -> Any:
    """Returns the model with reproducible random weights, large enough to reveal errors."""
    generator = torch.Generator().manual_seed(0)
    width = model.config.hidden_size
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim == 1:
                parameter.copy_(float(name.endswith("weight")) + 0.2 * noise)
            elif "embed" in name.lower() or name.endswith("shared.weight"):
                parameter.copy_(0.3 * noise)
            else:
                parameter.copy_(noise / max(parameter.shape[1], width) ** 0.5)
    return model


def save(folder: pathlib.Path, group: str, given: Sequence[str] | None = None) -> None:
    """Writes theirs.json and theirs.npz into a folder; an exception is written to theirs.json.

    group: "tokenizers" for ids, otherwise outputs. given: the texts; default: `rendered`.
    """
    found: dict[str, Any] = {}
    arrays: dict[str, np.ndarray] = {}
    try:
        if group == "tokenizers":
            found = tokenize(folder, given)
        else:
            arrays = outputs(folder)
    except Exception as error:  # a folder that transformers cannot load is still a table cell
        found["error"] = f"{type(error).__name__}: {error}"
    np.savez(folder / "theirs.npz", **arrays)
    (folder / "theirs.json").write_text(json.dumps(found))


def load(folder: pathlib.Path) -> tuple[dict[str, list], dict[str, np.ndarray]]:
    """Returns (ids, outputs) written by `save`. Raises RuntimeError if `save` wrote an error."""
    found = json.loads((folder / "theirs.json").read_text())
    if "error" in found:
        raise RuntimeError(found["error"])
    with np.load(folder / "theirs.npz") as arrays:
        return found, dict(arrays)


def version_of(folder: pathlib.Path) -> int:
    """Returns the major version of transformers that `save` tokenized with; 0 if it did not."""
    version = json.loads((folder / "theirs.json").read_text()).get("version", "0")
    return int(version.split(".")[0])


def texts_of(folder: pathlib.Path) -> list[str] | None:
    """Returns the texts that `save` tokenized; None if it did not."""
    return json.loads((folder / "theirs.json").read_text()).get("texts")
