"""Classes of transformers with other values in config.json: the same logits, or one line.

Each key that changes what a class computes has a value here which is not its default.
"""

import numpy as np
import pytest

from bertjax import errors
from bertjax.artifact import huggingface
from tests.helpers import downstream, proofs, tiny_model

BERT = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 24,
}  # fmt: skip
SIZES = {
    "Bert": BERT, "Albert": BERT | {"embedding_size": 8}, "Electra": BERT | {"embedding_size": 8},
    "Roberta": BERT, "ModernBert": BERT | {"local_attention": 4},
    "DistilBert": {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24,
                   "max_position_embeddings": 24},
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24},
}  # fmt: skip
SEQUENCE, TOKEN = "ForSequenceClassification", "ForTokenClassification"
CHOICE, SPAN = "ForMultipleChoice", "ForQuestionAnswering"
MEAN = {"classifier_pooling": "mean"}

EQUAL = [
    ("Bert", SEQUENCE, {"hidden_act": "relu", "type_vocab_size": 3, "layer_norm_eps": 1e-2}),
    ("Albert", CHOICE, {"num_hidden_groups": 2, "hidden_act": "gelu", "layer_norm_eps": 1e-2}),
    ("Roberta", TOKEN, {"layer_norm_eps": 1e-2, "type_vocab_size": 2}),
    ("DistilBert", SEQUENCE, {"activation": "relu"}),
    ("Electra", SEQUENCE, {"hidden_act": "relu", "embedding_size": 16}),
    ("Electra", CHOICE, {"hidden_act": "relu"}),
    ("Electra", TOKEN, {"summary_type": "mean", "summary_activation": "tanh"}),  # not in this class
    ("ModernBert", SEQUENCE, MEAN | {"norm_eps": 1e-2}),
    ("ModernBert", CHOICE, MEAN | {"global_attn_every_n_layers": 2, "global_rope_theta": 300.0}),
    ("ModernBert", TOKEN, MEAN),
    ("ModernBert", SPAN, MEAN),
    ("GPT2", TOKEN, {"activation_function": "relu", "n_inner": 20, "layer_norm_epsilon": 1e-2}),
]
REFUSED = [
    ("Bert", SEQUENCE, {"hidden_act": "silu"}, "hidden_act"),
    ("Bert", SEQUENCE, {"is_decoder": True}, "is_decoder"),
    ("Albert", SEQUENCE, {"inner_group_num": 2}, "inner_group_num"),
    ("Roberta", SEQUENCE, {"hidden_act": "relu"}, "activation"),
    ("DistilBert", SEQUENCE, {"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds"),
    ("Electra", CHOICE, {"summary_type": "mean"}, "summary_type"),
    ("Electra", CHOICE, {"summary_type": "last"}, "summary_type"),
    ("Electra", CHOICE, {"summary_activation": "tanh"}, "summary_activation"),
    ("Electra", CHOICE, {"summary_activation": ""}, "summary_activation"),
    ("Electra", CHOICE, {"summary_use_proj": False}, "summary_use_proj"),
    ("ModernBert", SEQUENCE, {"classifier_bias": True}, "classifier_bias"),
    ("ModernBert", SEQUENCE, {"classifier_activation": "relu"}, "classifier_activation"),
    ("ModernBert", SEQUENCE, {"hidden_activation": "relu"}, "activation"),
    ("ModernBert", TOKEN, {"norm_bias": True}, "norm_bias"),
    ("ModernBert", TOKEN, {"attention_bias": True}, "attention_bias"),
    ("ModernBert", TOKEN, {"mlp_bias": True}, "mlp_bias"),
    ("GPT2", SEQUENCE, {"scale_attn_weights": False}, "scale_attn_weights"),
    ("GPT2", SEQUENCE, {"scale_attn_by_inverse_layer_idx": True}, "by_inverse_layer_idx"),
]


@pytest.fixture
def save(tmp_path):
    """Writes a random model of a class and our tokenizer; returns the model and the folder."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    transformers.utils.logging.disable_progress_bar()
    tokenizer = tiny_model.tokenizer("bpe")

    def save(family, ending, keys):
        ids = dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"))
        labels = {"num_labels": 3} if ending in (SEQUENCE, TOKEN) else {}
        config = getattr(transformers, f"{family}Config")(
            vocab_size=tokenizer.size, pad_token_id=tokenizer.specials.pad,
            **{**ids, **labels, **SIZES[family], **keys},
        )  # fmt: skip
        config._attn_implementation = "eager"
        theirs = getattr(transformers, f"{family}{ending}")(config)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for name, leaf in theirs.named_parameters():
                one = float(leaf.ndim == 1 and name.endswith("weight"))
                leaf.copy_(one + 0.3 * torch.randn(leaf.shape, generator=generator))
        theirs.save_pretrained(tmp_path / "hf")
        tokenizer.save(str(tmp_path / "hf"))
        return theirs, tmp_path / "hf"

    return save


@pytest.mark.parametrize(("family", "ending", "keys"), proofs.all_but(EQUAL, *EQUAL[::4]))
def test_logits_are_theirs(family, ending, keys, save, tmp_path):
    theirs, folder = save(family, ending, keys)
    model = huggingface.read(folder)
    inputs = downstream.batch(model.tokenizer)
    downstream.assert_same_logits(model, theirs, inputs)
    huggingface.write(model, tmp_path / "again")
    again = huggingface.read(tmp_path / "again")
    assert again.fields == model.fields
    np.testing.assert_array_equal(
        downstream.logits(again, inputs), downstream.logits(model, inputs)
    )


@pytest.mark.parametrize(("family", "ending", "keys", "word"), REFUSED)
def test_what_is_not_computed_is_refused(family, ending, keys, word, save):
    _, folder = save(family, ending, keys)
    with pytest.raises(errors.UserError, match=word) as caught:
        huggingface.read(folder)
    assert "\n" not in str(caught.value)
