"""The tokenizer classes of transformers: the vocabulary that each reads, the defaults of its rules.

A folder names its class in tokenizer_config.json or config.json, or has that of its model_type.
Options missing from the files take the defaults of the class: albert-base-v2, for example, is
lowercased by AlbertTokenizer, although no file of the folder sets this.

Sources: transformers 4.57 and 5, models/auto/tokenization_auto.py for MODEL_TYPES, the arguments of
models/*/tokenization_*.py for the defaults. The names omit a final "Fast".
"""

from collections.abc import Mapping
from typing import Any, NamedTuple


class Class(NamedTuple):
    """The properties of a tokenizer class.

    kind: of its vocabulary: wordpiece (vocab.txt), bpe (vocab.json and merges.txt), sentencepiece,
        bytes (none), pipeline (none but tokenizer.json, which holds all rules), or any.
    defaults: the defaults of its options, under transformers' names.
    layout: how ids follow from SentencePiece's pieces, see `sentencepiece_model.LAYOUTS`.
    """

    kind: str
    defaults: Mapping[str, Any] = {}
    layout: str = "plain"


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
    "RobertaTokenizer": _BYTE_LEVEL,
    "GPT2Tokenizer": _BYTE_LEVEL,
    "BartTokenizer": _BYTE_LEVEL,
    "LongformerTokenizer": _BYTE_LEVEL,
    "ByT5Tokenizer": BYTES,
    # No rules of their own: the files hold all rules.
    "PreTrainedTokenizerFast": ANY,
    "TokenizersBackend": ANY,
    # Their vocabulary files are not read; tokenizer.json holds their rules.
    **dict.fromkeys(
        ("CodeLlamaTokenizer", "CohereTokenizer", "DebertaTokenizer", "DebertaV2Tokenizer",
         "GPTNeoXTokenizer", "GemmaTokenizer", "LlamaTokenizer", "MPNetTokenizer",
         "Qwen2Tokenizer", "XLNetTokenizer"),
        PIPELINE,
    ),
}  # fmt: skip
MODEL_TYPES = {
    "albert": "AlbertTokenizer",
    "bert": "BertTokenizer",
    "camembert": "CamembertTokenizer",
    "convbert": "ConvBertTokenizer",
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

    For a fast class that is not in the table, returns PIPELINE: tokenizer.json holds its rules.
    """
    if name in CLASSES:
        return CLASSES[name]
    return CLASSES.get(name.removesuffix("Fast"), PIPELINE if name.endswith("Fast") else None)
