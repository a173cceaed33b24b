"""Command-line flags that say how a corpus is read, shared by `tokenizer` and `prepare`."""

import argparse

from bertjax.data.corpus import reader, templates


def add(parser: argparse.ArgumentParser) -> None:
    """Declares the flags."""
    parser.add_argument(
        "--format",
        choices=("auto", *reader.FILE_FORMATS),
        default="auto",
        help="format of the files; auto: by their suffixes; default: %(default)s",
    )
    parser.add_argument(
        "--text_field",
        default=templates.DEFAULT_FIELD,
        help="field (JSON, TFDS) or column (Parquet, CSV, TSV) with the text; default: %(default)s",
    )
    parser.add_argument(
        "--text_template",
        type=templates.unescaped,
        default="",
        help="several fields or columns with text between them, such as '{title}\\n{text}', where "
        "\\n is a line break; a null is empty text",
    )
    parser.add_argument(
        "--text_split",
        choices=reader.TEXT_SPLITS,
        default="file",
        help="plain text: each file is a document, or blank lines separate documents; "
        "default: %(default)s",
    )
    parser.add_argument(
        "--on_error",
        choices=reader.ON_ERROR,
        default="stop",
        help="bad input: stop with its file and line, or skip and count it; default: %(default)s",
    )
