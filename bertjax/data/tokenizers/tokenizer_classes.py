"""The tokenizer classes of transformers: the vocabulary files they read and their default options.

The class is named in tokenizer_config.json or config.json; otherwise it follows from the model_type
in config.json. An option that is missing from the files has the default of the class. For example,
AlbertTokenizer lowercases the texts of albert-base-v2, although no file of the folder sets this.

Sources: transformers 4.57 and 5. MODEL_TYPES is from models/auto/tokenization_auto.py. The defaults
are the default arguments in models/*/tokenization_*.py. A final "Fast" is removed from names.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Class(NamedTuple):
    """The properties of a tokenizer class.

    kind: the kind of its vocabulary: wordpiece (vocab.txt), bpe (vocab.json and merges.txt),
        sentencepiece, bytes (no file), pipeline (only tokenizer.json, which contains all rules),
        or any (the class reads all of these).
    defaults: the defaults of its options, under transformers' names.
    layout: how ids follow from SentencePiece's pieces, see `sentencepiece_model.LAYOUTS`.
    added: special tokens that the class appends to a vocabulary that lacks them.
    unsupported: options that are refused if they are on, since their rules are not in the files.
    """

    kind: str
    defaults: Mapping[str, Any] = {}
    layout: str = "plain"
    added: tuple[str, ...] = ()
    unsupported: tuple[str, ...] = ("split_by_punct",)


_BERT = Class("wordpiece", {"do_lower_case": True, "tokenize_chinese_chars": True})
_T5 = Class("sentencepiece", {"extra_ids": 100})
_BYTE_LEVEL = Class("bpe", {"add_prefix_space": False})
PIPELINE = Class("pipeline")
BYTES = Class("bytes", {"extra_ids": 125})
ANY = Class("any")

CLASSES: dict[str, Class] = {
    **dict.fromkeys(
        ("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "ConvBertTokenizer",
         "MobileBertTokenizer", "SqueezeBertTokenizer"),
        _BERT,
    ),
    "AlbertTokenizer": Class("sentencepiece", {"do_lower_case": True, "keep_accents": False}),
    "T5Tokenizer": _T5,
    "MT5Tokenizer": _T5,
    "XLMRobertaTokenizer": Class("sentencepiece", layout="xlm-roberta"),
    "CamembertTokenizer": Class("sentencepiece", layout="camembert"),
    "DebertaV2Tokenizer": Class(
        "sentencepiece", {"do_lower_case": False, "split_by_punct": False}, added=("[MASK]",),
        unsupported=("split_by_punct", "do_lower_case"),
    ),
    "RobertaTokenizer": _BYTE_LEVEL,
    "GPT2Tokenizer": _BYTE_LEVEL,
    "BartTokenizer": _BYTE_LEVEL,
    "LongformerTokenizer": _BYTE_LEVEL,
    "ByT5Tokenizer": BYTES,
    # These classes have no rules of their own: all rules are in the files.
    "PreTrainedTokenizerFast": ANY,
    "TokenizersBackend": ANY,
    # The vocabulary files of these classes are not read: all rules are in tokenizer.json.
    **dict.fromkeys(
        ("CodeLlamaTokenizer", "CohereTokenizer", "DebertaTokenizer", "GPTNeoXTokenizer",
         "GemmaTokenizer", "LlamaTokenizer", "MPNetTokenizer", "Qwen2Tokenizer", "XLNetTokenizer"),
        PIPELINE,
    ),
}  # fmt: skip
MODEL_TYPES = {
    "albert": "AlbertTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "convbert": "ConvBertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
    "distilbert": "DistilBertTokenizer",
    "electra": "ElectraTokenizer",
    "ernie": "BertTokenizer",
    "gpt2": "GPT2Tokenizer",
    "longformer": "LongformerTokenizer",
    "bart": "BartTokenizer",
    "megatron-bert": "BertTokenizer",
    "mobilebert": "MobileBertTokenizer",
    "modernbert": "PreTrainedTokenizerFast",
    "mt5": "MT5Tokenizer",
    "nezha": "BertTokenizer",
    "nomic_bert": "BertTokenizer",
    "roberta": "RobertaTokenizer",
    "roberta-prelayernorm": "RobertaTokenizer",
    "squeezebert": "SqueezeBertTokenizer",
    "t5": "T5Tokenizer",
    "umt5": "T5Tokenizer",
    "xlm-roberta": "XLMRobertaTokenizer",
    "xlm-roberta-xl": "XLMRobertaTokenizer",
    "xmod": "XLMRobertaTokenizer",
}


def find(name: str) -> Class | None:
    """Returns the class called `name`, with or without "Fast" at its end; None if it is unknown.

    For a fast class that is not in the table, returns PIPELINE: its rules are in tokenizer.json.
    """
    if name in CLASSES:
        return CLASSES[name]
    return CLASSES.get(name.removesuffix("Fast"), PIPELINE if name.endswith("Fast") else None)
