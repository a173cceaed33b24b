"""Writes small vocabularies in the published forms; each function writes the files of one form.

Each has a few hundred pieces and is trained on `texts.corpus`. The special tokens are at the same
places as in the published vocabulary. Needs tokenizers and sentencepiece.
"""

import collections
import io
import json
import pathlib
from collections.abc import Sequence

import sentencepiece
import tokenizers
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from bertjax.data.tokenizers.sentencepiece_proto import sentencepiece_model_pb2
from tests.zoo import texts

PIECES = 320
SENTINELS = 100  # of T5 and mT5


def wordpiece(folder: pathlib.Path, *, lowercase: bool) -> None:
    """Writes BERT's vocab.txt: [PAD], some [unused], [UNK] [CLS] [SEP] [MASK], then the pieces.

    The pieces are the most frequent characters, beginnings and ends of words. The library's own
    trainer is not used, because its ids differ each time.
    """
    normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    cutter = pre_tokenizers.BertPreTokenizer()
    counts: collections.Counter[str] = collections.Counter()
    for text in texts.corpus():
        for word, _ in cutter.pre_tokenize_str(normalizer.normalize_str(text)):
            sizes = range(1, min(len(word), 9) + 1)
            counts.update({word[:1]: 9, **{f"##{letter}": 9 for letter in word[1:]}})
            counts.update(word[:size] for size in sizes)
            counts.update(f"##{word[-size:]}" for size in sizes if size < len(word))
    unused = [f"[unused{i}]" for i in range(4)]
    specials = ["[PAD]", *unused, "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    frequent = sorted(counts, key=lambda piece: (-counts[piece], piece))
    pieces = [*specials, *frequent[: PIECES - len(specials)]]
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), "utf-8")


def _byte_level() -> tokenizers.Tokenizer:
    """Returns a byte-level BPE without special tokens."""
    library = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES + 60,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    library.train_from_iterator(texts.corpus(), trainer)
    return library


def byte_level(folder: pathlib.Path, *, first: Sequence[str], last: Sequence[str]) -> None:
    """Writes vocab.json and merges.txt; first, last: special tokens before and after the pieces."""
    model = json.loads(_byte_level().to_str())["model"]
    pieces = sorted(model["vocab"], key=model["vocab"].get)
    ids = {piece: i for i, piece in enumerate([*first, *pieces, *last])}
    pairs = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), "utf-8")
    merges = "".join(f"{line}\n" for line in ("#version: 0.2", *pairs))
    (folder / "merges.txt").write_text(merges, "utf-8")


def modernbert(folder: pathlib.Path) -> None:
    """Writes ModernBERT's tokenizer.json: GPT-NeoX's BPE with runs of spaces and BERT's names."""
    library = _byte_level()
    library.normalizer = normalizers.NFC()
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    runs = [" " * n for n in range(24, 1, -1)]
    library.add_tokens([AddedToken("|||IP_ADDRESS|||", normalized=True)])
    library.add_special_tokens(["<|padding|>"])
    library.add_tokens([AddedToken(run, normalized=True) for run in runs])
    hidden = ("|||EMAIL_ADDRESS|||", "|||PHONE_NUMBER|||")
    library.add_tokens([AddedToken(name, normalized=True) for name in hidden])
    library.add_special_tokens(
        [
            *("<|endoftext|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]"),
            AddedToken("[MASK]", lstrip=True, special=True),
        ]
    )
    library.add_tokens([AddedToken(f"[unused{i}]", normalized=True) for i in range(3)])
    ends = [(name, library.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    library.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:0 [SEP]:0",
        special_tokens=ends,
    )  # fmt: skip
    library.save(str(folder / "tokenizer.json"))


def sentencepiece_model(
    folder: pathlib.Path, name: str, *, sentinels: int = 0, **options: object
) -> None:
    """Writes a unigram model to `folder / name`.

    sentinels: how many `<extra_id>` to add as pieces, as in mT5. options: of the trainer.
    """
    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(texts.corpus()),
        model_writer=file,
        minloglevel=2,
        num_threads=1,
        **{"vocab_size": PIECES, "hard_vocab_limit": False, **options},
    )
    data = file.getvalue()
    if sentinels:
        proto = sentencepiece_model_pb2.ModelProto.FromString(data)
        for number in reversed(range(sentinels)):  # in seqio's order, after the pieces
            piece = proto.pieces.add()
            piece.piece = f"\u2581<extra_id_{number}>"
            piece.score, piece.type = 0.0, piece.USER_DEFINED
        data = proto.SerializeToString()
    (folder / name).write_bytes(data)


def albert(folder: pathlib.Path) -> None:
    """Writes spiece.model with the options of ALBERT's README."""
    sentencepiece_model(
        folder, "spiece.model", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece="<pad>",
        control_symbols=["[CLS]", "[SEP]", "[MASK]"],
        user_defined_symbols=["(", ")", '"', "-", ".", "\u2013", "\u00a3", "\u20ac"],
    )  # fmt: skip


def t5(folder: pathlib.Path) -> None:
    """Writes T5's spiece.model: <pad> 0, </s> 1, <unk> 2, no <s>; sentinels are not pieces."""
    sentencepiece_model(folder, "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1)


def mt5(folder: pathlib.Path) -> None:
    """Writes mT5's spiece.model: bytes for unknown characters; sentinels are pieces."""
    sentencepiece_model(
        folder, "spiece.model", pad_id=0, eos_id=1, unk_id=2, bos_id=-1, byte_fallback=True,
        vocab_size=PIECES + 200, sentinels=SENTINELS,
    )  # fmt: skip


def deberta(folder: pathlib.Path) -> None:
    """Writes the spm.model of DeBERTa-v2 and v3, which lacks [MASK]."""
    names = {"pad": "[PAD]", "bos": "[CLS]", "eos": "[SEP]", "unk": "[UNK]"}
    sentencepiece_model(
        folder, "spm.model", **{f"{role}_piece": name for role, name in names.items()},
        **{f"{role}_id": i for i, role in enumerate(names)},
    )  # fmt: skip


def fairseq(folder: pathlib.Path) -> None:
    """Writes the sentencepiece.bpe.model of XLM-R and CamemBERT, which is a unigram model."""
    sentencepiece_model(folder, "sentencepiece.bpe.model", unk_id=0, bos_id=1, eos_id=2)
