"""Sentence splitters: functions that split a document into sentences, listed in SPLITTERS.

    sentences.SPLITTERS["rules"]('"Stop!" cried Mr. Pott. He ran.')
    # ['"Stop!" cried Mr. Pott.', 'He ran.']

Sentences are never empty. "rules" and "lines" put single spaces in place of line breaks. "none"
keeps all white space: its pieces, one after the other, are the document. A blank line always ends a
sentence. "rules" is made for prose in languages that end sentences with . ! ? or the CJK marks; its
abbreviations are English. One regular expression finds the possible ends of sentences. The words
before and after a full stop decide whether it is the end of a sentence.
"""

import itertools
import re
from collections.abc import Callable, Iterator, Sequence

# The pattern begins with a character class, so that the regex engine quickly skips to the next
# candidate. A candidate is one of these:
# - a blank line;
# - a mark such as . ! ? with the closing quotes, brackets and footnote marks after it, then white
#   space, and then neither a lower-case ASCII letter nor one of , ; : . ? !
# - a CJK mark, which needs no space after it.
# NOTE: quantifiers are possessive (*+, ++), because the engine would otherwise backtrack over a
# space to satisfy the look-ahead. A run of marks matches from its first mark only,
# because the time for a row of dots would otherwise grow with the square of their number.
_CANDIDATE = re.compile(
    r"""[\n.!?\u2026\u3002\uff01\uff1f\uff0e\u0964\u061f\u06d4]
    (?: (?<=\n) [^\S\n]*+ \n \s*+
      | (?<=[.!?\u2026\u0964\u061f\u06d4]) (?<![.!?\u2026][.!?\u2026]) [.!?\u2026]*+
        (?P<closers> (?: ["'\u201d\u2019\u00bb\u00b4)\]}*_] | \[\d{1,3}\] )*+ )
        (?P<space> \s++ )
        (?! ["'`\u201c\u2018\u00ab(\[]*+ [a-z,;:.?!] )
      | (?<=[\u3002\uff01\uff1f\uff0e]) [\u3002\uff01\uff1f]*+
        (?P<cjk_closers> [\u300d\u300f\u201d\u2019\uff09\u3011]*+ ) \s*+
    )""",
    re.VERBOSE,
)
_MARKS = ("\n\n", "\n", ". ", "\u3002", " ")  # where `chopped` cuts, best first
_BLANK = re.compile(r"\n\s*\n")
# A character of a script that is written without spaces: CJK marks, kana, ideographs, wide forms.
_UNSPACED = re.compile(
    "[\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff60\U00020000-\U0003ffff]"
)
_WORD_BEFORE = re.compile(r"[\w.'\u2019&]+\Z")
_WORD_AFTER = re.compile(r"[\"'`\u201c\u2018\u00ab(\[]*(\w+)(\.?)")
_NUMERAL = re.compile(r"\d|[ivxlc]+\Z", re.IGNORECASE)
_ACRONYM = re.compile(r"(?:[^\W\d_]{1,2}\.)+[^\W\d_]{1,2}\Z")
_LABEL = re.compile(r"\d{1,3}\Z|[IVXLC]+\Z|[ivx]+\Z|[A-Za-z]\Z")

_NEVER_END = frozenset(
    """
    mr mrs ms mme mlle mm messrs dr drs prof rev revd hon st ste sra gen col capt cmdr cdr lt lieut
    sgt cpl pvt maj adm gov sen rep pres supt insp det mt fr e.g i.e eg ie cf viz vs v approx ca al
    """.split()
)
_BEFORE_NUMBER = frozenset(
    """
    no nos nr fig figs eq eqs vol vols ch chap sec sect art arts p pp pt pts bk op par ver ed table
    jan feb mar apr jun jul aug sep sept oct nov dec
    """.split()
)
# A full stop after one of these ends a sentence only if the next word is in _FIRST_WORDS.
_MAY_END = frozenset("jr sr esq inc ltd co corp bros dept univ est etc ft bldg ave blvd".split())
_FIRST_WORDS = frozenset(
    """
    a an the this that these those he she it its we they i you his her their our my your there here
    in on at by for from with to of into after before during under over about and but or nor so yet
    if when while as since because although though however then thus therefore hence who whom whose
    what which where why how no not yes all any both each every few many more most much some several
    such one two three only even also once still just perhaps never now again later do does did is
    are was were will would can could may might must shall should let please see oh ah well mr mrs
    another other nothing everything nobody everybody
    """.split()
)


def rules(document: str) -> list[str]:
    """Splits prose by rules for abbreviations, initials, numbers, quotes, ellipses and CJK."""
    pieces = []
    start = 0
    for candidate in _CANDIDATE.finditer(document):
        if _ends(document, start, candidate):
            pieces.append(document[start : candidate.end()])
            start = candidate.end()
    pieces.append(document[start:])
    return clean(pieces)


def lines(document: str) -> list[str]:
    """Splits a document at line breaks: each line is a sentence."""
    return clean(document.splitlines())


def paragraphs(document: str) -> list[str]:
    """Splits a document before blank lines: a paragraph with the white space before it is a
    sentence."""
    cuts = [0, *(blank.start() for blank in _BLANK.finditer(document)), len(document)]
    pieces = [document[start:stop] for start, stop in itertools.pairwise(cuts) if start < stop]
    if pieces and pieces[-1].isspace():  # the end of the document
        pieces[-2:] = ["".join(pieces[-2:])] if len(pieces) > 1 else []
    return pieces


KEEPS_WHITE_SPACE = "none"  # the splitter whose pieces are the whole document
SPLITTERS: dict[str, Callable[[str], list[str]]] = {
    "rules": rules,
    "lines": lines,
    KEEPS_WHITE_SPACE: paragraphs,
}


def chopped(text: str, limit: int) -> Iterator[str]:
    """Yields pieces of at most `limit` characters, cut at the end of a paragraph, line, sentence or
    word if there is one in the second half of the piece. White space at a cut begins a piece."""
    start = 0
    while len(text) - start > limit:
        low, high = start + limit // 2, start + limit
        cuts = (text.rfind(mark, low, high) + len(mark) for mark in _MARKS)
        stop = next((cut for cut in cuts if cut >= low), high)
        stop = start + len(text[start:stop].rstrip()) or stop
        yield text[start:stop]
        start = stop
    yield text[start:] if start else text


def clean(pieces: list[str]) -> list[str]:
    """Strips the pieces, joins the lines of each piece with spaces and drops empty pieces."""
    stripped = (piece.strip() for piece in pieces)
    return [" ".join(s.split()) if "\n" in s else s for s in stripped if s]


def spaced(pieces: Sequence[str]) -> list[str]:
    """Puts a space before each cleaned piece except the first and those after CJK characters."""
    spaces = ("" if _UNSPACED.match(piece[-1]) else " " for piece in pieces)
    return [space + piece for space, piece in zip(["", *spaces], pieces, strict=False)]


def _ends(text: str, start: int, candidate: re.Match[str]) -> bool:
    """Returns whether the candidate ends the sentence that starts at `start`."""
    space = candidate["space"]
    if space is None:  # a blank line or a CJK mark
        # After closing quotes or brackets the sentence continues ('"...!" he said'), unless a full
        # stop precedes them or white space follows.
        closers = candidate["cjk_closers"]
        return not closers or candidate[0][0] == "\u3002" or candidate[0][-1].isspace()
    if "\n" in space and _BLANK.search(space):
        return True
    after = candidate.end()
    if after == len(text) or text[after].islower():  # the pattern checks only ASCII letters
        return after == len(text)
    dot = candidate.start()
    if text[dot] != "." or text[dot + 1 : dot + 2] == "." or '"' in candidate["closers"]:
        return True
    return _full_stop_ends(text, start, dot, after)


def _full_stop_ends(text: str, start: int, dot: int, after: int) -> bool:
    """Returns whether the full stop at `dot` ends a sentence, not only an abbreviation or number.

    start: where the sentence starts. after: where the next word starts.
    """
    match = _WORD_BEFORE.search(text, max(start, dot - 12), dot)
    if match is None:
        return True
    word = match[0].lstrip("'\u2019")
    lower = word.lower()
    if lower in _NEVER_END:
        return False
    following = _WORD_AFTER.match(text, after)
    next_word = following[1] if following else ""
    if lower in _BEFORE_NUMBER:
        # In "No. I will not." the I is not a numeral; in "Vol. I" it is.
        return not (_NUMERAL.match(next_word) and (lower != "no" or next_word != "I"))
    single = len(word) == 1 and word.isalpha()
    if match.start() - start < 4 and _LABEL.match(word):
        if not text[start : match.start()].strip("\"'(\u201c\u2018 \n"):
            return False  # the label of an item or a section: "1. First", "IV. The"
    if single or lower in _MAY_END or _ACRONYM.match(word):
        starts_sentence = next_word.lower() in _FIRST_WORDS and not (following and following[2])
        return starts_sentence and not (single and word.islower())
    return True
