"""Sentence splitters for several languages: `sentences` for English, sentencex for the others.

    languages.splitter("rules", "de")("Er kam am 3. Mai. Dr. Ott, d.h. sein Arzt, kam auch.")
    # ['Er kam am 3. Mai.', 'Dr. Ott, d.h. sein Arzt, kam auch.']

sentencex (https://github.com/wikimedia/sentencex) accepts any language code: if it has no rules for
a language, it uses those of a related language or of English. LANGUAGES therefore lists only the
languages for which it has rules. As in English, a blank line always ends a sentence and a line
break alone does not. Unlike in English, sentences inside one pair of quotation marks stay together.
"""

import importlib.metadata
import re
from collections.abc import Callable
from types import ModuleType

from bertjax import errors
from bertjax.data.corpus import sentences

ENGLISH = "en"
# The languages of sentencex 1.0.32 (its src/languages). It has no rules for Norwegian or Swedish.
LANGUAGES = (
    *(ENGLISH, "am", "ar", "bg", "bn", "ca", "da", "de", "el", "es", "fi", "fr", "gu", "hi", "hy"),
    *("it", "ja", "kk", "kn", "ml", "mr", "my", "nl", "pa", "pl", "pt", "ru", "sk", "ta", "te"),
    "uk",
)

# Maximum number of characters passed to the library at once: it takes quadratic time if quotation
# marks are opened and never closed.
_MAX_CHARACTERS = 8192
# Each pattern matches a piece that ends with an abbreviation or ordinal, after which the library
# wrongly ends the sentence. For example, it splits "M. Dupont" after "M.", and German sentences
# between an ordinal and its noun. In the novels of the ELTeC corpus this affects every 60th French
# sentence.
_FALSE_ENDS = {
    "de": re.compile(r"(?<![\w.])(?:\d{1,2}|Fa|Hrn?|Frl)\.\s*\Z"),
    "fr": re.compile(r"(?<![\w.])(?:MM?|Mgr|Dr|Me|Mmes?|Mlles?|Ste?)\.\s*\Z"),
}


def splitter(name: str, language: str) -> Callable[[str], list[str]]:
    """Returns the splitter `name` of `sentences.SPLITTERS` with the rules of `language`.

    Raises UserError if `language` is not in LANGUAGES, or if sentencex is needed but not installed.
    Also raises UserError for a language other than English if the splitter is not "rules", because
    the other splitters do not depend on the language.
    """
    if language not in LANGUAGES:
        raise errors.UserError(f"language = {language!r}: must be one of {', '.join(LANGUAGES)}")
    if language == ENGLISH:
        return sentences.SPLITTERS[name]
    if name != "rules":
        raise errors.UserError(
            f"language = {language!r}: cannot be used with the splitter {name!r}, which is the "
            "same in every language: remove one of the two options"
        )
    library, false_end = _library(language), _FALSE_ENDS.get(language)

    def split(document: str) -> list[str]:
        pieces: list[str] = []
        for paragraph in sentences.paragraphs(document):
            for part in sentences.chopped(paragraph, _MAX_CHARACTERS):
                pieces += _join_false_ends(library.segment(language, part), false_end)
        return sentences.clean(pieces)

    return split


def rules_version() -> str:
    """Returns the name and version of the library that splits languages other than English."""
    return f"sentencex {importlib.metadata.version('sentencex')}"


def _library(language: str) -> ModuleType:
    try:
        import sentencex
    except ImportError as error:
        raise errors.UserError(
            f"language {language!r} needs the package sentencex: pip install 'bertjax[languages]'"
        ) from error
    return sentencex


def _join_false_ends(pieces: list[str], false_end: re.Pattern[str] | None) -> list[str]:
    """Joins each piece whose end matches `false_end` with the next piece."""
    if false_end is None:
        return pieces
    result: list[str] = []
    open_end = False
    for piece in pieces:
        if open_end:
            result[-1] += piece
        else:
            result.append(piece)
        open_end = false_end.search(piece[-8:]) is not None
    return result
