"""The layouts of folders on the Hub; each writes one folder of a species.

A layout is a function of (species, workshop, folder). The workshop caches the files that layouts
share: vocabularies, tokenizers and models as the installed transformers saves them.
"""

import functools
import json
import pathlib
import shutil
import tarfile
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import safetensors.torch
import torch
import transformers
from tokenizers import AddedToken

from tests.zoo import forms, theirs
from tests.zoo.species import Species

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "transformers4.tar.xz"
NEW = ("<new>", "brandnew")  # added words; EXTRA is an added special token
EXTRA = "[EXTRA]"

# model_type -> (beginning of their class names, ending of the class used by most layouts).
CLASSES: Mapping[str, tuple[str, str]] = {
    "albert": ("Albert", "ForPreTraining"),
    "bert": ("Bert", "ForPreTraining"),
    "camembert": ("Camembert", "ForMaskedLM"),
    "deberta-v2": ("DebertaV2", "ForMaskedLM"),
    "distilbert": ("DistilBert", "ForMaskedLM"),
    "electra": ("Electra", "ForPreTraining"),
    "gpt2": ("GPT2", "LMHeadModel"),
    "modernbert": ("ModernBert", "ForMaskedLM"),
    "mt5": ("MT5", "ForConditionalGeneration"),
    "roberta": ("Roberta", "ForMaskedLM"),
    "t5": ("T5", "ForConditionalGeneration"),
    "xlm-roberta": ("XLMRoberta", "ForMaskedLM"),
}


class Workshop:
    """Caches the files that the layouts of a species share, under `root`."""

    def __init__(self, root: pathlib.Path):
        self.root = root

    def _once(self, name: str, make: Callable[[pathlib.Path], Any]) -> pathlib.Path:
        folder = self.root / name
        if not folder.exists():
            partial = folder.with_name(folder.name + ".partial")
            partial.mkdir(parents=True)
            make(partial)
            partial.rename(folder)
        return folder

    def vocabulary(self, species: Species) -> pathlib.Path:
        """Returns a folder with the vocabulary files, tokenizer_config.json and config.json.

        That config.json has only model_type and, for some species, tokenizer_class.
        """

        def make(folder: pathlib.Path) -> None:
            species.vocabulary(folder)
            named = {key: species.config[key] for key in ("tokenizer_class",)
                     if key in species.config}  # fmt: skip
            write_json(folder / "config.json", {"model_type": species.model_type, **named})
            write_published(species, folder)

        return self._once(f"vocabulary/{species.name}", make)

    @functools.cache  # noqa: B019 - the workshop lives as long as its folders
    def tokenizer(self, species: Species) -> Any:
        """Returns the tokenizer that the installed transformers loads from the vocabulary files."""
        return transformers.AutoTokenizer.from_pretrained(self.vocabulary(species))

    def saved_tokenizer(self, species: Species) -> pathlib.Path:
        """Returns a folder with the tokenizer as the installed transformers saves it."""
        return self._once(
            f"tokenizer/{species.name}",
            lambda folder: self.tokenizer(species).save_pretrained(folder),
        )

    def model(self, species: Species, ending: str = "", *, rows: int = 0, sparse: bool = False,
              **changes: Any) -> pathlib.Path:  # fmt: skip
        """Returns a folder with config.json and model.safetensors of the class with this ending.

        rows: how many rows to append to the embeddings. sparse: whether to use the species' sparse
        sizes. changes: keys of the config.
        """
        beginning, usual = CLASSES[species.model_type]
        name = beginning + (ending or usual)
        details = "-".join([species.name, name, str(rows), *map(str, changes.values())])

        def make(folder: pathlib.Path) -> None:
            tokenizer = self.tokenizer(species)
            sizes = species.sparse if sparse and species.sparse else species.config
            ids = {
                key: tokenizer.convert_tokens_to_ids(value)
                if key.endswith("_token_id") and isinstance(value, str) else value
                for key, value in sizes.items()
            }  # fmt: skip
            size = len(tokenizer) + species.spare
            kind = getattr(transformers, f"{beginning}Config")
            config = kind(**{"vocab_size": size, **ids, **changes})
            torch.manual_seed(0)
            model = theirs.randomize(getattr(transformers, name)(config))
            if rows:
                model.resize_token_embeddings(size + rows, mean_resizing=False)
            model.save_pretrained(folder)

        return self._once(f"model/{details}{'-sparse' * sparse}", make)


def copy(source: pathlib.Path, target: pathlib.Path, names: Iterable[str] | None = None) -> None:
    """Copies the files with these names from `source`, by default all of them."""
    for name in names if names is not None else [file.name for file in source.iterdir()]:
        shutil.copy(source / name, target / name)


def write_json(file: pathlib.Path, value: Any) -> None:
    """Writes a JSON file."""
    file.write_text(json.dumps(value, indent=2))


def write_published(species: Species, folder: pathlib.Path) -> None:
    """Writes the published tokenizer_config.json beside the vocabulary files."""
    listed = {}
    if species.lists_added:
        tokens = json.loads((folder / "tokenizer.json").read_text("utf-8"))["added_tokens"]
        listed["added_tokens_decoder"] = {str(token.pop("id")): token for token in tokens}
    write_json(folder / "tokenizer_config.json", {**listed, **species.published})


# Layouts of the tokenizer's files. The installed transformers saves the weights.


def published(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes the tokenizer files that the repository on the Hub has."""
    copy(workshop.model(species), folder)
    copy(workshop.vocabulary(species), folder, species.vocabulary_files)
    if "tokenizer.json" in species.files and "tokenizer.json" not in species.vocabulary_files:
        copy(workshop.saved_tokenizer(species), folder, ["tokenizer.json"])
        if species.of_2020:
            forms.make_old(folder / "tokenizer.json")
    copy(workshop.vocabulary(species), folder, ["tokenizer_config.json"])
    if species.specials is not None:
        write_json(folder / "special_tokens_map.json", species.specials)


def slow(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes the vocabulary files and tokenizer_config.json, as before tokenizer.json existed."""
    copy(workshop.model(species), folder)
    copy(workshop.vocabulary(species), folder,
         [*species.vocabulary_files, "tokenizer_config.json"])  # fmt: skip


def bare(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes only the vocabulary files: the rest follows from model_type."""
    copy(workshop.model(species), folder)
    copy(workshop.vocabulary(species), folder, species.vocabulary_files)


def fast(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json."""
    copy(workshop.model(species), folder)
    copy(workshop.saved_tokenizer(species), folder, ["tokenizer.json"])
    copy(workshop.vocabulary(species), folder, ["tokenizer_config.json"])


def saved(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes what the installed transformers saves."""
    copy(workshop.model(species), folder)
    copy(workshop.saved_tokenizer(species), folder)


def added(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes what the installed transformers saves after adding words and a special token."""
    copy(workshop.model(species, rows=len(NEW) + 1), folder)
    add_tokens(workshop.vocabulary(species), folder)


def add_tokens(source: pathlib.Path, target: pathlib.Path) -> None:
    """Loads the tokenizer in `source`, adds words and a special token, saves it to `target`."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens(list(NEW))
    tokenizer.add_tokens([AddedToken(EXTRA, special=True)], special_tokens=True)
    tokenizer.save_pretrained(target)


def added_slow(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes the vocabulary files, with the added words in added_tokens.json."""
    slow(species, workshop, folder)
    copy(workshop.model(species, rows=len(NEW) + 1), folder)
    write_json(folder / "tokenizer_config.json", species.published)  # added_tokens_decoder is newer
    tokenizer = workshop.tokenizer(species)
    first = len(tokenizer)
    listed = {token: first + i for i, token in enumerate((*NEW, EXTRA))}
    if (tokenizer.mask_token_id or 0) >= tokenizer.vocab_size:  # not a piece, as in DeBERTa
        listed[tokenizer.mask_token] = tokenizer.mask_token_id
    write_json(folder / "added_tokens.json", listed)
    write_json(folder / "special_tokens_map.json", {"additional_special_tokens": [EXTRA]})


def saved_4(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes what transformers 4.57 saves, including config.json."""
    copy(workshop.model(species), folder)
    golden(species, "saved", workshop, folder)


def added_4(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes what transformers 4.57 saves after adding words and a special token."""
    copy(workshop.model(species, rows=len(NEW) + 1), folder)
    golden(species, "added", workshop, folder)


def golden(species: Species, name: str, workshop: Workshop, folder: pathlib.Path) -> None:
    """Unpacks the species' files of tests/golden/make_transformers4.py into a folder.

    name: "saved" or "added".
    """
    with tarfile.open(GOLDEN) as archive:
        for member in archive.getmembers():
            path = pathlib.PurePosixPath(member.name)
            if path.parts[:2] == (species.name, name):
                (folder / path.name).write_bytes(archive.extractfile(member).read())
    for file in workshop.vocabulary(species).glob("*.model"):
        forms.put_characters(folder, forms.characters(file))


# Layouts of weights and config.json. The installed transformers saves the tokenizer.


def sparse(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes a config.json without the keys whose value is the class's default."""
    saved(species, workshop, folder)
    copy(workshop.model(species, sparse=True), folder)
    file = folder / "config.json"
    content = json.loads(file.read_text())
    usual = getattr(transformers, f"{CLASSES[species.model_type][0]}Config")().to_dict()
    kept = {
        key: value
        for key, value in content.items()
        if key in ("model_type", "architectures") or usual.get(key, ...) != value
    }
    write_json(file, kept)


def _tensors(folder: pathlib.Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def _rewrite(folder: pathlib.Path, tensors: Mapping[str, torch.Tensor]) -> None:
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def shards(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Splits model.safetensors into two files with an index."""
    saved(species, workshop, folder)
    tensors = _tensors(folder)
    (folder / "model.safetensors").unlink()
    index = {}
    for number in (1, 2):
        file = f"model-0000{number}-of-00002.safetensors"
        part = {name: tensors[name] for name in sorted(tensors)[number - 1 :: 2]}
        safetensors.torch.save_file(part, folder / file, metadata={"format": "pt"})
        index |= dict.fromkeys(part, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})


def shard_absent(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes an index that names a missing file."""
    shards(species, workshop, folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def _half(dtype: torch.dtype, species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    saved(species, workshop, folder)
    _rewrite(folder, {name: tensor.to(dtype) for name, tensor in _tensors(folder).items()})


def bfloat16(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes the weights in bfloat16."""
    _half(torch.bfloat16, species, workshop, folder)


def float16(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes the weights in float16."""
    _half(torch.float16, species, workshop, folder)


def pickled_too(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes pytorch_model.bin beside model.safetensors."""
    saved(species, workshop, folder)
    torch.save(_tensors(folder), folder / "pytorch_model.bin")


def pickled(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes pytorch_model.bin without model.safetensors."""
    pickled_too(species, workshop, folder)
    (folder / "model.safetensors").unlink()


def old_names(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Names the arrays of layer norms gamma and beta, as in models converted from TensorFlow."""
    saved(species, workshop, folder)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    renamed = {}
    for name, tensor in _tensors(folder).items():
        for new, before in old.items():
            name = name.replace(new, before)
        renamed[name] = tensor
    _rewrite(folder, renamed)


def bare_encoder(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes the class without heads, whose tensors lack the prefix, as sentence-transformers."""
    copy(workshop.saved_tokenizer(species), folder)
    copy(workshop.model(species, "Model"), folder)


def prefixed_encoder(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes the class without heads, but with the tensor prefix of the classes with heads."""
    bare_encoder(species, workshop, folder)
    beginning = CLASSES[species.model_type][0]
    prefix = getattr(transformers, f"{beginning}Model").base_model_prefix
    _rewrite(folder, {f"{prefix}.{name}": t for name, t in _tensors(folder).items()})


def other_head_left_out(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes the weights of the class with heads and the config.json of the class without."""
    saved(species, workshop, folder)
    file = folder / "config.json"
    content = json.loads(file.read_text())
    write_json(file, content | {"architectures": [f"{CLASSES[species.model_type][0]}Model"]})


def untied(species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Adds an lm_head.weight that is not tied, as in the published T5 v1.1 and mT5."""
    saved(species, workshop, folder)
    tensors = _tensors(folder)
    generator = torch.Generator().manual_seed(1)
    tensors["lm_head.weight"] = torch.randn(tensors["shared.weight"].shape, generator=generator)
    _rewrite(folder, tensors)


# Endings of the classes: all that are read, and some that are refused.
TASKS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering",
         "ForMultipleChoice")  # fmt: skip
_OF_TYPE = {
    "albert": ("Model", "ForPreTraining", "ForMaskedLM", *TASKS),
    "bert": ("Model", "ForPreTraining", "ForMaskedLM", "ForNextSentencePrediction",
             "LMHeadModel", *TASKS),
    "camembert": ("Model", "ForMaskedLM", *TASKS),
    "deberta-v2": ("Model", "ForMaskedLM", *TASKS),
    "distilbert": ("Model", "ForMaskedLM", *TASKS),
    "electra": ("Model", "ForPreTraining", "ForMaskedLM", *TASKS),
    "gpt2": ("Model", "LMHeadModel", *TASKS[:3]),
    "modernbert": ("Model", "ForMaskedLM", *TASKS),
    "mt5": ("Model", "ForConditionalGeneration", "EncoderModel"),
    "roberta": ("Model", "ForMaskedLM", "ForCausalLM", *TASKS),
    "t5": ("Model", "ForConditionalGeneration", "EncoderModel"),
    "xlm-roberta": ("Model", "ForMaskedLM", *TASKS),
}  # fmt: skip


def of_class(ending: str, species: Species, workshop: Workshop, folder: pathlib.Path) -> None:
    """Writes what the installed transformers saves for the class with this ending."""
    copy(workshop.saved_tokenizer(species), folder)
    changes = {}
    if species.model_type == "gpt2":  # their classifier reads the last token before the padding
        changes = {"pad_token_id": 0} if ending in TASKS else {}
    elif ending in ("LMHeadModel", "ForCausalLM"):
        changes = {"is_decoder": True}
    copy(workshop.model(species, ending, **changes), folder)


def classes(model_type: str) -> dict[str, Callable]:
    """Returns ending -> layout, for each class of a model type."""
    return {ending: functools.partial(of_class, ending) for ending in _OF_TYPE[model_type]}


TOKENIZERS = {
    f.__name__: f for f in (published, slow, bare, fast, saved, added, added_slow, saved_4, added_4)
}
WEIGHTS = {
    f.__name__: f
    for f in (
        sparse, shards, shard_absent, bfloat16, float16, pickled, pickled_too, old_names,
        bare_encoder, prefixed_encoder, other_head_left_out,
    )
}  # fmt: skip
