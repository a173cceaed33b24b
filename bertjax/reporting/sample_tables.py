"""Shows held-out samples: the text with its masked tokens, and the predictions below it."""

from collections.abc import Sequence

from bertjax.reporting import page, samples, tables


def shown(found: Sequence[samples.Sample], steps: Sequence[int]) -> page.Html:
    """Returns the samples with the predictions at `steps`.

    A cell has the likeliest piece and its probability; a right prediction is highlighted.
    """
    if not found:
        return page.note("The held-out text gives no sample with a token to predict.")
    parts = [
        page.note(
            "The likeliest piece and its probability at each checkpoint. Green: it is the true "
            "piece. The last column is the probability of the true piece at the last checkpoint."
        )
    ]
    for number, sample in enumerate(found, 1):
        source = f", {sample.source}" * bool(sample.source)
        parts += [
            page.element("h3", f"Sample {number}{source}"),
            _text(sample),
            _table(sample, steps),
        ]
    return page.joined(parts)


def _text(sample: samples.Sample) -> page.Html:
    marked = {token.position for token in sample.tokens}
    pieces = [
        page.element("mark", piece) if position in marked else page.text(piece)
        for position, piece in enumerate(sample.pieces)
    ]
    return page.element("div", page.joined(pieces, " "), style="text")


def _table(sample: samples.Sample, steps: Sequence[int]) -> page.Html:
    rows = []
    for token in sample.tokens:
        cells = []
        for guess in token.guesses:
            text = page.text(f"{guess.piece} {guess.probability:.0%}")
            cells.append(tables.Good(text) if guess.piece == token.truth else text)
        rows.append([token.truth, *cells, f"{token.guesses[-1].of_truth:.1%}"])
    names = [f"{step:,}" for step in steps]
    header = ["true piece", f"step {names[0]}", *names[1:], "true"]
    return tables.table(header, rows)
