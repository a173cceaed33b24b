"""Writes transformers4.tar.xz: the folders of the zoo as transformers 4 saves them, no weights.

    python -m tests.golden.make_transformers4      # with transformers 4.57, torch, sentencepiece

Per species "saved" and "added", the latter with words and a special token added: config.json and
the tokenizer's files. SentencePiece's table of characters, 240 kB in each, is left out and put back
by `layouts.golden`.
"""

import io
import lzma
import pathlib
import tarfile
import tempfile

from tests.zoo import forms, layouts, species


def write(root: pathlib.Path) -> None:
    """The folders of every species."""
    workshop = layouts.Workshop(root / "workshop")
    for one in species.SPECIES:
        for layout in (layouts.saved, layouts.added):
            folder = root / "folders" / one.name / layout.__name__
            folder.mkdir(parents=True)
            layout(one, workshop, folder)
            (folder / "model.safetensors").unlink()
            (folder / "generation_config.json").unlink(missing_ok=True)
            forms.put_characters(folder, b"")


def pack(root: pathlib.Path) -> bytes:
    """The folders as an archive that is the same whenever it is made."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for path in sorted(path for path in root.rglob("*") if path.is_file()):
            info = tarfile.TarInfo(path.relative_to(root).as_posix())
            info.size = path.stat().st_size
            archive.addfile(info, io.BytesIO(path.read_bytes()))
    return lzma.compress(file.getvalue(), preset=9 | lzma.PRESET_EXTREME)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        write(pathlib.Path(folder))
        layouts.GOLDEN.write_bytes(pack(pathlib.Path(folder) / "folders"))
