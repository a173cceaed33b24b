"""Writes flax/FAMILY/: tiny models as transformers' Flax classes saved them, and what they gave.

    python tests/golden/make_flax.py     needs: pip install transformers==4.57.6 jax==0.4.30 \\
                                                            flax==0.8.5 'numpy<2' scipy==1.13.1

The last transformers with Flax classes wants a jax that bertjax does not run on, so the files are
kept. output.npz: the inputs and the logits.
"""

import pathlib

import numpy as np
import transformers

FOLDER = pathlib.Path(__file__).with_name("flax")
SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 40}


def main() -> None:
    """Writes the folders."""
    models = {
        "bert": transformers.FlaxBertForPreTraining(
            transformers.BertConfig(**SIZES, intermediate_size=12, max_position_embeddings=16)
        ),
        "gpt2": transformers.FlaxGPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=40, n_embd=8, n_layer=2, n_head=2, n_positions=16)
        ),
        "t5": transformers.FlaxT5ForConditionalGeneration(
            transformers.T5Config(
                vocab_size=40, d_model=8, d_kv=4, d_ff=12, num_layers=2, num_heads=2,
                feed_forward_proj="gated-gelu", tie_word_embeddings=False,
            )
        ),
    }  # fmt: skip
    ids = np.arange(5, 17).reshape(2, 6)
    for family, model in models.items():
        model.save_pretrained(FOLDER / family)
        inputs = {"input_ids": ids} | ({"decoder_input_ids": ids + 3} if family == "t5" else {})
        outputs = model(**inputs)
        logits = outputs["prediction_logits" if family == "bert" else "logits"]
        np.savez_compressed(FOLDER / family / "output.npz", **inputs, logits=np.asarray(logits))


if __name__ == "__main__":
    main()
