"""Rewrites the tokenizer files of a folder in place, into the other forms that layouts need."""

import base64
import json
import pathlib
from typing import Any

from sentencepiece import sentencepiece_model_pb2


def make_old(file: pathlib.Path) -> None:
    """Rewrites a tokenizer.json into the form written by version 0.9 of `tokenizers`."""
    content = json.loads(file.read_text("utf-8"))
    model = content["model"]
    for name in ("type", "byte_fallback", "ignore_merges"):
        model.pop(name, None)
    if "merges" in model:
        model["merges"] = [" ".join(pair) for pair in model["merges"]]

    def part(spec: Any) -> Any:
        if isinstance(spec, list):
            return [part(one) for one in spec]
        if not isinstance(spec, dict):
            return spec
        spec = {key: part(value) for key, value in spec.items() if key != "use_regex"}
        if spec.get("prepend_scheme") == "always":
            spec.pop("split", None)
            del spec["prepend_scheme"]
            spec |= {"str_rep": spec["replacement"], "add_prefix_space": True}
        return spec

    for name in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        content[name] = part(content[name])
    file.write_text(json.dumps(content, ensure_ascii=False), "utf-8")


def _proto(file: pathlib.Path) -> Any:
    return sentencepiece_model_pb2.ModelProto.FromString(file.read_bytes())


def characters(file: pathlib.Path) -> bytes:
    """Returns a SentencePiece model's table of characters (precompiled_charsmap)."""
    return _proto(file).normalizer_spec.precompiled_charsmap


def put_characters(folder: pathlib.Path, table: bytes) -> None:
    """Puts SentencePiece's table of characters into the tokenizer files of a folder.

    Those are every *.model file, and tokenizer.json where its normalizer has such a table.
    """

    def fill(value: Any) -> None:
        if isinstance(value, dict) and "precompiled_charsmap" in value:
            value["precompiled_charsmap"] = base64.b64encode(table).decode()
        for inner in value.values() if isinstance(value, dict) else value:
            if isinstance(inner, dict | list):
                fill(inner)

    for file in folder.glob("*.model"):
        proto = _proto(file)
        proto.normalizer_spec.precompiled_charsmap = table
        file.write_bytes(proto.SerializeToString())
    file = folder / "tokenizer.json"
    if file.exists():
        content = json.loads(file.read_text("utf-8"))
        fill([content["normalizer"]] if content["normalizer"] else [])
        file.write_text(json.dumps(content, indent=2, ensure_ascii=False), "utf-8")
