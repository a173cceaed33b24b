"""Draws a batch: input tokens, tokens to predict, and attention masks.

    batch = experiment.stream(dataset, vocabulary, phase).batch(0)
    show.tokens(tokenizer, batch, [0, 1])      # a matplotlib Figure
    show.attention(batch, row=0)

Works for the batches of every objective: the features of the batch decide what is drawn. The upper
line shows the input tokens, the lower line the tokens to predict at their positions.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.models.common import masks

Batch = Mapping[str, np.ndarray]

# {role of a token: (its colour, its label in the legend)}
COLOURS = {
    "masked": ("#f5a742", "masked"),
    "random": ("#e58a9e", "replaced with another piece"),
    "kept": ("#8fb8de", "unchanged, but predicted"),
    "sentinel": ("#c7b3e5", "sentinel"),
    "prefix": ("#cfe8c6", "prefix, seen by all"),
    "second": ("#f3eed9", "second segment"),
    "special": ("#d9d9d9", "special token"),
    "padding": ("#f2f2f2", "padding"),
    "target": ("#fbe3c0", "predicted"),
    "edge": ("#ffffff", "span boundary"),
    "text": ("#ffffff", ""),
}
_SENTINELS = ("#c7b3e5", "#a9dcd3", "#f2c9d4", "#d6dc9a", "#b9cff0", "#e8c4a0", "#c9e6b3")
_EDGE, _INK, _GREY = "#b8b8b8", "#202020", "#9a9a9a"

# In points. A character of DejaVu Sans Mono is 0.602 times as wide as it is high.
_FONT, _CHARACTER, _LINE, _WIDTH, _MARGIN = 8.0, 4.82, 13.0, 640.0, 62.0


@dataclasses.dataclass
class Cell:
    """One position: the input piece, the piece to predict ("" if none), and their colours.

    gap: space before the cell in points, larger between words than within a word. outlined: whether
    the position is a boundary of a masked span.
    """

    piece: str
    predicted: str = ""
    colour: str = COLOURS["text"][0]
    predicted_colour: str = COLOURS["target"][0]
    gap: float = 4.0
    outlined: bool = False

    @property
    def width(self) -> float:
        """The width of the cell in points."""
        return _CHARACTER * max(len(self.piece), len(self.predicted)) + 4


def tokens(tokenizer: Any, batch: Batch, rows: Sequence[int] = (0,)) -> Any:
    """Draws rows of a batch as a matplotlib Figure: pieces in boxes, wrapped like text.

    The token to predict is drawn below the input token: in an encoder at each masked position, in a
    decoder at each position whose target counts in the loss.

    tokenizer: a `bertjax.data.tokenizers.tokenizer.Tokenizer`. rows: indices of rows of the batch.
    """
    drawer, roles = _Drawer(), set()
    for row in rows:
        row_values = {n: v[row] for n, v in batch.items() if v.ndim == 1 and v.dtype.kind == "i"}
        drawer.title(", ".join([f"row {row}", *(f"{n} {v}" for n, v in row_values.items())]))
        cells_of_row = _Row(tokenizer, {name: value[row] for name, value in batch.items()})
        for stack, cells in cells_of_row.streams():
            drawer.cells(stack, cells)
        roles |= cells_of_row.roles
    return drawer.figure([role for role in COLOURS if role in roles])


def attention_masks(batch: Batch) -> dict[str, masks.Mask]:
    """Returns the attention masks of a batch, by name ("encoder", "decoder to encoder", ...)."""

    def padding_mask(prefix: str) -> masks.Mask:
        keys = (f"{prefix}{name}" for name in ("attention_mask", "segment_ids"))
        return masks.of_batch(*(batch[name] if name in batch else None for name in keys))

    if "decoder_input_ids" in batch:
        cross = padding_mask("")
        if "segment_ids" in batch:
            cross = masks.segments(batch["decoder_segment_ids"], batch["segment_ids"])
        return {"encoder": padding_mask(""), "decoder": masks.causal() & padding_mask("decoder_"),
                "decoder to encoder": cross}  # fmt: skip
    if "targets" in batch:
        prefix = "prefix_mask" in batch
        return {"decoder": (masks.prefix(batch["prefix_mask"]) if prefix else masks.causal())
                & padding_mask("")}  # fmt: skip
    return {"encoder": padding_mask("")}


def attention(batch: Batch, row: int = 0, title: str = "") -> Any:
    """Draws the attention masks of a row as a matplotlib Figure.

    Each line is a query and each column is a key. A dark cell means that the query attends to the
    key.
    """
    from matplotlib.figure import Figure

    lengths = {"encoder": batch["input_ids"].shape[1], "decoder": batch["input_ids"].shape[1]}
    if "decoder_input_ids" in batch:
        lengths["decoder"] = batch["decoder_input_ids"].shape[1]
    pictures = {}
    for name, mask in attention_masks(
        {name: value[row : row + 1] for name, value in batch.items()}
    ).items():
        stack, _, memory = name.partition(" to ")
        shape = lengths[stack], lengths[memory or stack]
        pictures[name] = np.broadcast_to(mask.dense(*shape)[0], shape)
    widths = [picture.shape[1] for picture in pictures.values()]
    scale = 2.6 / max(picture.shape[0] for picture in pictures.values())
    figure = Figure((scale * sum(widths) + 0.6 * len(widths), 3.3), dpi=100, layout="constrained")
    panels = np.ravel(figure.subplots(1, len(widths), width_ratios=widths))
    for axes, (name, picture) in zip(panels, pictures.items(), strict=True):
        axes.imshow(picture, cmap="Blues", vmin=0, vmax=1.4, interpolation="nearest")
        axes.set_title(name, fontsize=9, loc="left")
        axes.set_xlabel("key", fontsize=8)
        axes.set_ylabel("query", fontsize=8)
        axes.tick_params(labelsize=7, colors=_GREY)
        axes.set_anchor("N")
    if title:
        figure.suptitle(title, fontsize=10, weight="bold", x=0.01, ha="left")
    return figure


class _Row:
    """One row of a batch as cells."""

    def __init__(self, tokenizer: Any, features: Mapping[str, np.ndarray]):
        self._tokenizer, self._features = tokenizer, features
        self._special = set(np.flatnonzero(tokenizer.special_mask()).tolist())
        self._sentinels = set(tokenizer.reserved_sentinels.tolist())
        self._palette: dict[int, str] = {}
        self._continuations = tokenizer.continuations()
        self.roles: set[str] = set()

    def streams(self) -> list[tuple[str, list[Cell]]]:
        """Returns ("encoder" or "decoder", its cells) for each stack that has inputs."""
        if "decoder_input_ids" in self._features:
            return [("encoder", self._cells("")), ("decoder", self._cells("decoder_"))]
        return [("decoder" if "targets" in self._features else "encoder", self._cells(""))]

    def _cells(self, prefix: str) -> list[Cell]:
        ids = self._features[f"{prefix}input_ids"]
        packed = f"{prefix}segment_ids" in self._features
        segments = self._features[f"{prefix}{'segment_ids' if packed else 'attention_mask'}"]
        count = int((segments > 0).sum())
        cells = [self._cell(int(i)) for i in ids[:count]]
        for previous, cell, segment in zip(segments, cells[1:], segments[1:count], strict=False):
            if segment != previous:
                cell.gap = 18.0
        if "targets" in self._features and (prefix or "decoder_input_ids" not in self._features):
            self._predict(cells)
        if not prefix:
            self._mark(cells)
        if count < len(ids):
            self.roles.add("padding")
            text = f"{len(ids) - count} x padding"
            cells.append(Cell(text, colour=COLOURS["padding"][0], gap=8.0))
        return cells

    def _cell(self, i: int) -> Cell:
        (piece,) = self._tokenizer.readable([i])
        continues_word = i < len(self._continuations) and self._continuations[i]
        return Cell(piece, colour=self._colour(i, "text"), gap=0.0 if continues_word else 4.0)

    def _colour(self, i: int, role: str) -> str:
        if i in self._sentinels:
            self.roles.add("sentinel")
            return self._palette.setdefault(i, _SENTINELS[len(self._palette) % len(_SENTINELS)])
        role = "special" if i in self._special else role
        self.roles.add(role)
        return COLOURS[role][0]

    def _predict(self, cells: list[Cell]) -> None:
        """Sets the token to predict of each decoder cell whose target counts in the loss."""
        columns = zip(
            cells, self._features["targets"], self._features["loss_weights"], strict=False
        )
        for cell, target, weight in columns:
            if weight > 0:
                (cell.predicted,) = self._tokenizer.readable([target])
                cell.predicted_colour = self._colour(int(target), "target")

    def _mark(self, cells: list[Cell]) -> None:
        """Colours masked tokens, the second segment and the prefix; outlines span boundaries."""
        for name, role in (("token_type_ids", "second"), ("prefix_mask", "prefix")):
            for cell, is_marked in zip(
                cells, self._features[name] if name in self._features else (), strict=False
            ):
                if is_marked and cell.colour == COLOURS["text"][0]:
                    cell.colour = COLOURS[role][0]
                    self.roles.add(role)
        if "masked_positions" not in self._features:
            return
        used = self._features["masked_weights"] > 0
        for position, target in zip(
            self._features["masked_positions"][used],
            self._features["masked_ids"][used],
            strict=True,
        ):
            i = int(self._features["input_ids"][position])
            role = "masked" if i == self._tokenizer.specials.mask else "random"
            role = "kept" if i == target else role
            self.roles.add(role)
            cells[position].colour = cells[position].predicted_colour = COLOURS[role][0]
            (cells[position].predicted,) = self._tokenizer.readable([target])
        if "span_boundaries" in self._features:
            for position in np.unique(self._features["span_boundaries"][used]):
                cells[position].outlined = True
                self.roles.add("edge")


class _Drawer:
    """Collects boxes with text from top to bottom, then draws them; all lengths in points."""

    def __init__(self):
        self._boxes: list[tuple[float, float, float, str, str, str]] = []
        self._texts: list[tuple[float, float, str, str, str]] = []
        self._y = 0.0

    def title(self, text: str) -> None:
        """Adds a line with a title."""
        self._texts.append((0.0, self._y + 0.5 * _LINE, text, _INK, "bold"))
        self._y += _LINE + 3

    def cells(self, stack: str, cells: Sequence[Cell]) -> None:
        """Adds cells, wrapped to as many lines as they need. stack: "encoder" or "decoder"."""
        words = [f"{stack} reads", "predicts" if any(cell.predicted for cell in cells) else ""]
        for line, word in enumerate(words):
            self._texts.append((0.0, self._y + (line + 0.5) * _LINE, word, _GREY, "normal"))
        height, x = 1, _MARGIN
        for cell in cells:
            if x > _MARGIN and x + cell.gap + cell.width > _WIDTH:
                self._y += height * _LINE + 5
                height, x = 1, _MARGIN
            x += cell.gap if x > _MARGIN else 0.0
            self._box(x, self._y, cell, cell.piece, cell.colour, _INK if cell.outlined else _EDGE)
            if cell.predicted:
                height, lower_y = 2, self._y + _LINE
                self._box(x, lower_y, cell, cell.predicted, cell.predicted_colour, _EDGE)
            x += cell.width
        self._y += height * _LINE + 9

    def figure(self, roles: Sequence[str]) -> Any:
        """Returns the matplotlib Figure, with a legend of the roles."""
        from matplotlib.collections import PatchCollection
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle

        x = _MARGIN
        for role in roles:
            colour, label = COLOURS[role]
            if label:
                cell = Cell(" " + label + " ", gap=6.0)
                if x + cell.width > _WIDTH:
                    x, self._y = _MARGIN, self._y + _LINE + 4
                self._box(x, self._y, cell, label, colour, _INK if role == "edge" else colour)
                x += cell.width + cell.gap
        height = self._y + _LINE + 4
        figure = Figure(figsize=((_WIDTH + 8) / 72, height / 72), dpi=110)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_xlim(-4, _WIDTH + 4)
        axes.set_ylim(height, -2)
        axes.axis("off")
        patches = [Rectangle((x, y), width, _LINE) for x, y, width, *_ in self._boxes]
        faces, edges = ([box[i] for box in self._boxes] for i in (4, 5))
        axes.add_collection(
            PatchCollection(patches, facecolors=faces, edgecolors=edges, linewidths=0.7)
        )
        style = {"fontsize": _FONT, "va": "center", "parse_math": False}
        for x, y, width, text, *_ in self._boxes:
            axes.text(x + width / 2, y + _LINE / 2, text, ha="center", family="monospace",
                      color=_INK, **style)  # fmt: skip
        for x, y, text, colour, weight in self._texts:
            axes.text(x, y, text, color=colour, weight=weight, **style)
        return figure

    def _box(self, x: float, y: float, cell: Cell, text: str, face: str, edge: str) -> None:
        self._boxes.append((x, y, cell.width, text, face, edge))
