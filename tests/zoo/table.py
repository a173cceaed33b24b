"""The table of the zoo: species x layouts, the refused cells, and where ids differ on purpose.

Every species is in every tokenizer layout; one species of each model type is in the layouts of
weights and classes.
"""

import fnmatch
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tests.zoo import layouts
from tests.zoo import species as species_lib
from tests.zoo.species import Species

# Layouts that are impossible for a species, as "species/layout".
_ABSENT = (
    "ModernBERT-base/slow",  # it has only tokenizer.json
    "byt5-small/bare",  # it has no vocabulary file
    "byt5-small/fast",
    "byt5-small/added_slow",
    "gpt2/old_names", "modernbert/old_names", "t5*/old_names", "mt5*/old_names",
    "ModernBERT-base/old_names",  # their norms have other names
    "t5*/prefixed_encoder", "mt5*/prefixed_encoder",  # their tensors have no prefix
)  # fmt: skip
_UNTIED = ("t5-v1_1-base", "mt5-small")  # the species whose published weights have lm_head.weight

# "species/layout" -> part of the error message. All other cells must be read and be equal.
REFUSED: Mapping[str, str] = {
    "*/shard_absent": "model-00002-of-00002.safetensors",
    "*/pickled": "convert them to model.safetensors",
    "bert-base-uncased/LMHeadModel": "is_decoder",
    "roberta-base/ForCausalLM": "is_decoder",
    "*/EncoderModel": "is_encoder_decoder = False",
    "byt5-small/added": "the added token '<new>' is not supported",
    "byt5-small/added_4": "the added token '<new>' is not supported",
}


class Own(NamedTuple):
    """Texts whose ids differ from those of transformers on purpose.

    cells: "species/layout" each. texts: a part of each text. reason: which rule we follow, and why.
    version: major version of transformers, 4 or 5; 0 for both.
    """

    cells: Sequence[str]
    texts: Sequence[str]
    reason: str
    version: int = 0


def _each(species: str, names: str) -> list[str]:
    return [f"{one}/{layout}" for one in species.split() for layout in names.split()]


_MASKS = ("Paris is the", "Die Glocke", "comes first", "UPPER")
_SLOW = "slow bare added_slow"
_LOWERED = "bert-base-uncased all-MiniLM-L6-v2 distilbert-base-uncased electra-small-discriminator"
_MODEL = "published slow bare added_slow saved_4 added_4"  # have spiece.model (ALBERT, T5, mT5)
_FAIRSEQ = "xlm-roberta-base camembert-base"
_T5 = "t5-small t5-v1_1-base"
_DEBERTA = "deberta-v3-base"
_SPM = "published slow bare added_slow saved_4 added_4"  # have spm.model (DeBERTa)

OWN = (
    Own(_each("albert-base-v2", _MODEL), ("\u039a\u0391\u039b\u039f\u03a3", "\ud55c\uad6d"),
        "A sigma at the end of a word and the vowel signs of Hindi are as in Google's own code, "
        "which ALBERT was pretrained with, and in AlbertTokenizer(use_fast=False) of "
        "transformers 4. The `tokenizers` library has other rules for both."),
    Own(_each("albert-base-v2", "saved added"),
        ("\u039a\u0391\u039b\u039f\u03a3", "\ud55c\uad6d"),
        "As above: transformers 4 saves spiece.model too.", version=4),
    Own(_each("albert-base-v2", _MODEL + " saved added"),
        ("leading and trailing", "tab\there", "``quoted", "comes first", "typed"),
        "Transformers 4 keeps a space at the end of a text and around symbols of ALBERT. Native "
        "SentencePiece does not, and neither does transformers 5.", version=4),
    Own(_each("albert-base-v2", "added_slow added_4 added"), ("<new>",),
        "Transformers 4 keeps the space before an added token as a piece; 5 does not.", version=4),
    Own(_each("albert-base-v2", _SLOW), ("Die Glocke",),
        "Without tokenizer.json, both versions make added tokens of ALBERT's symbols such as ( "
        "and the full stop, which lose the space before them. Native SentencePiece keeps it, and "
        "so do both versions behind tokenizer.json."),
    Own(_each("albert-base-v2", _SLOW), ("``quoted", "comes first"), "As above.", version=5),
    Own(_each("roberta-base", _SLOW), _MASKS,
        "The mask takes the space before it, as in the published tokenizer.json of roberta-base "
        "and in transformers 4. Transformers 5 forgets this without tokenizer.json.", version=5),
    Own([*_each(_FAIRSEQ, _SLOW), *_each(_T5, _MODEL)], ("xxxx",),
        "Several segmentations have the same score: native SentencePiece's counts."),
    Own(_each(_T5, "saved added"), ("xxxx",),
        "As above: transformers 4 saves spiece.model too.", version=4),
    Own([*_each(_FAIRSEQ, "added_slow"),
         *_each(f"{_T5} mt5-small", "added_slow added_4 added")], ("<new>",),
        "Transformers 4 keeps the space before an added token as a piece; 5 does not.", version=4),
    Own(_each(_FAIRSEQ, "added_4"), ("<new>",),
        "tokenizer.json of transformers 4 keeps the space before an added token as a piece. "
        "Transformers 5 replaces the rules of that file.", version=5),
    Own([*_each(_LOWERED, "added_slow"), "albert-base-v2/added_slow"], ("[extra]",),
        "special_tokens_map.json says that [EXTRA] is special, and a special token is not lower-"
        "cased. Transformers 5 does not read this there.", version=5),
    Own(_each("mt5-small", _MODEL), ("\u65e5", "\U0001f642", "\ud55c\uad6d", "Die Glocke"),
        "Unknown characters are bytes, as spiece.model says and mT5 was pretrained. Both versions "
        "ignore byte_fallback of spiece.model and give <unk>. tokenizer.json alone is followed."),
    Own(_each("mt5-small", "saved added"),
        ("\u65e5", "\U0001f642", "\ud55c\uad6d", "Die Glocke"),
        "As above: transformers 4 saves spiece.model too.", version=4),
    Own(["mt5-small/bare"], ("comes first", "walks in"),
        "The sentinels are the pieces of spiece.model. Without extra_ids = 0 of the published "
        "tokenizer_config.json both versions add a hundred more, which have no embedding."),
    Own(["mt5-small/bare"], ("Paris is the", "UPPER"), "As above.", version=4),
    Own(_each(_DEBERTA, _SPM), ("\ufb01ne", "\u200b"),
        "Characters are normalized by the table in spm.model, which the model was pretrained with, "
        "as in transformers 4. DebertaV2Tokenizer of transformers 5 has only NFC.", version=5),
    Own(_each(_DEBERTA, _SPM), ("xxxx",),
        "Several segmentations have the same score: native SentencePiece's counts."),
    Own(_each(_DEBERTA, "saved added"), ("xxxx",),
        "As above: transformers 4 saves spm.model too.", version=4),
    Own(_each(_DEBERTA, "added_4 added"), ("<new>",),
        "Transformers 4 keeps the space before an added token as a piece; 5 does not.", version=4),
    Own(_each(_DEBERTA, "added_slow"), ("<new>", *_MASKS),
        "Both versions keep the space before a token of added_tokens.json as a piece, also before "
        "the mask, but not before the mask of the published folder, which has no such file."),
    Own(_each(_DEBERTA, "added_4"), ("<new>",),
        "tokenizer.json of transformers 4 keeps the space before an added token as a piece. "
        "Transformers 5 replaces the rules of that file.", version=5),
    Own(_each("byt5-small", "published slow saved saved_4"), (*_MASKS, "walks in"),
        "The sentinels are the ids of bytes, counting down from 258, which ByT5 was pretrained "
        "with. Both versions give those above 258, which it was not."),
)  # fmt: skip


class Cell(NamedTuple):
    """A species in a layout. group: tokenizers, weights or classes."""

    species: Species
    group: str
    layout: str
    make: Callable[[Species, layouts.Workshop, pathlib.Path], None]

    @property
    def name(self) -> str:
        """The cell's name in the tables: "species/layout"."""
        return f"{self.species.name}/{self.layout}"

    def own(self, version: int) -> tuple[str, ...]:
        """Returns parts of the texts whose ids must differ from this major version's."""
        if self.group != "tokenizers":
            return ()
        rules = [r for r in OWN if self.name in r.cells and r.version in (0, version)]
        return tuple(dict.fromkeys(text for rule in rules for text in rule.texts))

    @property
    def refused(self) -> str | None:
        """Part of the expected error message; None if the folder must be read."""
        return next((w for p, w in REFUSED.items() if fnmatch.fnmatchcase(self.name, p)), None)


def cells(names: Sequence[str] = ()) -> list[Cell]:
    """Returns every cell of the table, or only those of the species with these names."""
    found = []
    for species in species_lib.SPECIES:
        if names and species.name not in names:
            continue
        groups = {"tokenizers": layouts.TOKENIZERS}
        if species_lib.OF_TYPE[species.model_type] is species:
            groups |= {"weights": layouts.WEIGHTS, "classes": layouts.classes(species.model_type)}
        found += [
            Cell(species, group, layout, make)
            for group, table in groups.items()
            for layout, make in table.items()
        ]
        if species.name in _UNTIED:
            found.append(Cell(species, "weights", "untied", layouts.untied))
    return [cell for cell in found if not any(fnmatch.fnmatchcase(cell.name, p) for p in _ABSENT)]
