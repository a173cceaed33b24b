"""Filters of `prepare`: which documents are left out, and why.

    filters = Filters(min_chars=200, keep_languages=("de",), deduplicate="exact")
    filters.reasons()           # ("other_language", "too_short", "exact_duplicate")

The filters are applied in the order of `reasons`; a document counts for the first one that drops
it. Whether a document is a duplicate depends on the others (see `prepare_duplicates`); all other
filters read the document alone. Documents without text are not filtered: they are counted as empty.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

from bertjax import errors
from bertjax.data.corpus import templates
from bertjax.data.prepared import duplicates, overlap

LANGUAGE_FIELD = "language"
KEPT = 0  # the verdict on a document that is kept; others are 1 + an index of `Filters.reasons`


@dataclasses.dataclass(frozen=True)
class Filters:
    """The filters of one preparation. By default none is on.

    keep_languages: keeps documents whose `language_field` is one of these; (): all.
    min_chars, max_chars: bounds of the characters of a document; 0: no bound.
    decontaminate: patterns of the files of test sets; drops documents that overlap with one.
    deduplicate: one of `duplicates.MODES`; "near" drops exact duplicates too.
    """

    keep_languages: tuple[str, ...] = ()
    language_field: str = LANGUAGE_FIELD
    min_chars: int = 0
    max_chars: int = 0
    decontaminate: tuple[str, ...] = ()
    deduplicate: str = "none"

    def validate(self) -> None:
        """Raises UserError if a value is impossible or a package is missing."""
        if self.deduplicate not in duplicates.MODES:
            raise errors.UserError(
                f"deduplicate = {self.deduplicate!r}: must be one of {', '.join(duplicates.MODES)}"
            )
        if self.deduplicate == "near":
            duplicates.check_installed()
        for name in ("min_chars", "max_chars"):
            if getattr(self, name) < 0:
                raise errors.UserError(f"{name} = {getattr(self, name)}: must be 0 or more")
        if 0 < self.max_chars < self.min_chars:
            raise errors.UserError(
                f"max_chars = {self.max_chars}: must be min_chars = {self.min_chars} or more"
            )
        if not self.keep_languages and self.language_field != LANGUAGE_FIELD:
            raise errors.UserError(
                f"language_field = {self.language_field!r}: has no effect without keep_languages"
            )
        if not all(self.keep_languages):
            raise errors.UserError(
                f"keep_languages = {','.join(self.keep_languages)!r}: contains an empty name"
            )

    @property
    def field(self) -> str:
        """The field with the language; "" if it is not read."""
        return self.language_field if self.keep_languages else ""

    def reasons(self) -> tuple[str, ...]:
        """Returns the names of the reasons for which a document may be left out."""
        return (
            *["other_language"] * bool(self.keep_languages),
            *["too_short"] * bool(self.min_chars),
            *["too_long"] * bool(self.max_chars),
            *(f"overlaps {pattern}" for pattern in self.decontaminate),
            *["exact_duplicate"] * (self.deduplicate != "none"),
            *["near_duplicate"] * (self.deduplicate == "near"),
        )

    def options(self) -> dict[str, Any]:
        """Returns the values of the filters that are on, for the manifest."""
        values: dict[str, Any] = {}
        if self.keep_languages:
            values["keep_languages"] = ",".join(self.keep_languages)
            values["language_field"] = self.language_field
        for name in ("min_chars", "max_chars"):
            if getattr(self, name):
                values[name] = getattr(self, name)
        if self.decontaminate:
            values["decontaminate"] = ",".join(self.decontaminate)
        if self.deduplicate != "none":
            values["deduplicate"] = self.deduplicate
        return values

    def judge(self, runs: overlap.Runs | None) -> Callable[[templates.Document], int]:
        """Returns the function that judges a document by all filters except `deduplicate`.

        runs: those of the test sets of `decontaminate`. The function returns KEPT, or 1 + the index
        of a reason.
        """
        numbers = {reason: 1 + i for i, reason in enumerate(self.reasons())}

        def verdict(document: templates.Document) -> int:
            text = document.text
            if not text or text.isspace():
                return KEPT
            if self.keep_languages and document.language not in self.keep_languages:
                return numbers["other_language"]
            if len(text) < self.min_chars:
                return numbers["too_short"]
            if 0 < self.max_chars < len(text):
                return numbers["too_long"]
            test_set = -1 if runs is None else runs.set_of(text)
            return KEPT if test_set < 0 else numbers[f"overlaps {self.decontaminate[test_set]}"]

        return verdict


NONE = Filters()
