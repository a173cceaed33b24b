"""Executes the notebooks and writes them with their outputs, as they are committed.

    python notebooks/execute.py                # all, or name some

What differs from run to run is left out: progress on stderr, and when a cell ran. Images are
reduced to a palette, which makes them four times smaller.
"""

import base64
import io
import pathlib
import sys

import nbclient
import nbformat
from PIL import Image

HERE = pathlib.Path(__file__).resolve().parent
COLOURS = 32


def execute(path: pathlib.Path) -> None:
    """Executes the notebook at `path` and replaces it."""
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=1800, kernel_name="python3", record_timing=False
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
            for output in cell.outputs:
                if "image/png" in output.get("data", {}):
                    output.data["image/png"] = _small(output.data["image/png"])
    notebook.metadata.pop("language_info", None)  # of this machine's Python
    notebook.metadata["language_info"] = {"name": "python"}
    path.write_text(nbformat.writes(notebook, indent=1) + "\n", encoding="utf-8")


def _small(png: str) -> str:
    """Returns an image with fewer colours; both are base64."""
    image = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    content = io.BytesIO()
    image.quantize(COLOURS).save(content, "PNG", optimize=True)
    return base64.b64encode(content.getvalue()).decode()


if __name__ == "__main__":
    for each in map(pathlib.Path, sys.argv[1:] or sorted(HERE.glob("*.ipynb"))):
        print(each)
        execute(each)
