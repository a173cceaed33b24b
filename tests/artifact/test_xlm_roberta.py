"""XLM-R's own classes of transformers: they predict the same as bertjax, and read its exports."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("google.protobuf")

import torch
import transformers

import bertjax
from bertjax import __main__
from tests.zoo import vocabularies

MASKED = "Paris is the <mask> of France."


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Returns a tiny XLM-R with random weights, its tokenizer as sentencepiece.bpe.model alone."""
    folder = tmp_path_factory.mktemp("xlm-r")
    vocabularies.fairseq(folder)
    tokenizer = transformers.XLMRobertaTokenizer.from_pretrained(str(folder))
    config = transformers.XLMRobertaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=24, max_position_embeddings=42, type_vocab_size=1, layer_norm_eps=1e-5,
        initializer_range=0.5,
    )  # fmt: skip
    torch.manual_seed(0)
    transformers.XLMRobertaForMaskedLM(config).save_pretrained(str(folder))
    return folder


def their_guesses(folder):
    """Returns {piece: probability} of the five likeliest pieces of text, by XLM-R's classes."""
    tokenizer = transformers.XLMRobertaTokenizer.from_pretrained(str(folder))
    model = transformers.XLMRobertaForMaskedLM.from_pretrained(str(folder)).eval()
    inputs = tokenizer(MASKED, return_tensors="pt")
    place = inputs["input_ids"][0].tolist().index(len(tokenizer) - 1)  # <mask> is the last piece
    with torch.no_grad():
        probabilities = model(**inputs).logits[0, place].softmax(-1)
    probabilities[tokenizer.all_special_ids] = 0  # fill_mask proposes no special pieces
    best = probabilities.topk(5)
    pieces = tokenizer.convert_ids_to_tokens(best.indices)
    return dict(zip(pieces, best.values.tolist(), strict=True))


def our_guesses(folder):
    (fills,) = bertjax.load(str(folder)).fill_mask(MASKED, top=5)
    return {fill.piece: fill.probability for fill in fills}


def test_the_guesses_for_a_mask_are_theirs(folder):
    assert our_guesses(folder) == pytest.approx(their_guesses(folder), rel=1e-4)


def test_their_classes_read_an_export(folder, tmp_path):
    export = tmp_path / "export"
    assert __main__.main(["export", f"--model={folder}", f"--output={export}", "--format=hf"]) == 0
    assert our_guesses(export) == our_guesses(folder)
    assert their_guesses(export) == pytest.approx(their_guesses(folder), rel=1e-4)
