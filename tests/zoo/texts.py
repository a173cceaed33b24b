"""The texts whose ids are compared, and the corpus that the small vocabularies are trained on."""

from pydoc_data import topics

# {mask}, {cls}, {sep} and {pad} stand for a vocabulary's own special tokens.
TEMPLATES = (
    "The quick brown fox jumps over the lazy dog.",
    "a",
    "HELLO World, na\u00efve Caf\u00e9 in Z\u00fcrich! \u00c5ngstr\u00f6m",
    "two  spaces and   three",
    " leading and trailing ",
    "tab\there\nand a new line\r\n",
    "don't, you're; we'll -- the GPT's ``quoted'' \"words\" (1,234.56%) of $99 & more?!",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 and \u4e2d\u6587 characters",
    "I like \U0001f642 and \U0001f469\u200d\U0001f467 and \u2764\ufe0f very much",
    "\u1f08\u03b3\u03b1\u03b8\u1f78\u03c2 \u039a\u0391\u039b\u039f\u03a3 "
    "\u0130stanbul I\u011fd\u0131r",
    "e\u0301 and \u00e9, \ufb01ne \u00bd \u2460 \uff21\uff22 \u2126",
    "\u1ecdm\u1ecd \u1eb9l\u1eb9\u0301w\u00e0 \u1e63\u00e9",
    "\ud55c\uad6d\uc5b4 \u0939\u093f\u0928\u094d\u0926\u0940 "
    "\u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "a\u00a0b\u200bc\u2028d\u3000e\u00adf\ufeffg",
    "x" * 120 + " word",
    "Paris is the {mask} of France.",
    "Die Glocke l\u00e4utete {mask}.",
    "{mask} comes first, then {mask}{mask} and ({mask})!",
    "typed{cls}by a {sep} user {pad}",
    "UPPER {mask} Lower",
)
# For vocabularies with words that were added after training.
ADDED = "a <new> word, two<new>words; [EXTRA] and [extra], the Brandnew brandnew newton"
# For T5: sentinels typed in the text.
SENTINELS = "<extra_id_0> walks in <extra_id_1>park<extra_id_2>."

PAIRS = (("The first text.", "And the second one!"), ("a", "b c"))


def corpus() -> list[str]:
    """Returns about 100 kB of English prose of the standard library, and the plain texts above."""
    names = ("assignment", "class", "exceptions", "import", "strings", "with", "yield")
    lines = [line.strip() for name in names for line in topics.topics[name].splitlines()]
    plain = [text for text in TEMPLATES if "{" not in text]
    return [*filter(None, lines), *plain]
