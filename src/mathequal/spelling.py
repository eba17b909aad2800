r"""Bring a text into one spelling, and replace its words by single characters.

A text such as `\text{ cm}`, and a word in plain letters, becomes one private character, so that no rule for formulas
reads it as a product of letters. `Spelled.words` says which word each character stands for.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from mathequal.names import AND, FIRST_WORD, FUNCTIONS, OR, PLAIN_GREEK, WORD
from mathequal.numbers import number_in_words
from mathequal.rewrites import AFTER_WORDS, BEFORE_WORDS, CHARACTERS, rewrite
from mathequal.sentences import without_sentence

MAX_WORDS = 200
"""Words of one text; further ones are left out."""

# 10 080, 10\,080, 10,\!080 and 10{,}080 are one number.
_SEPARATOR = r"(?:\{,\}|\s*,\s*\\!|\\!\s*,|\\[,;: ]|~|\s)\s*"
_DIGIT_GROUPS = re.compile(rf"(?<![\d.,\\^_])\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?!\d)", re.ASCII)

_AND_OR = re.compile(r"\s*,?\s*(?<![a-zA-Z\\])(and|or)(?![a-zA-Z])\s*")
_TEXT = re.compile(r"\\text\{(\s*,)?([^{}]*?)(,\s*|(?<=\w)\s+and\s*)?\}")
# Words without \text: four letters in a row, which no formula has, and short units after a number ("5 cm").
_SHORT_UNITS = r"sq|cu|in|ft|mi|cm|mm|km|kg|mph|min|sec|hr|hrs|day|way|per|yd|lb|lbs|oz|cents?|a\.m|p\.m|am|pm|AM|PM"
_SHORT_UNITS += "|pct|ms|mg|mL|ml|nm|kJ|Hz|Pa"
_PLAIN_WORD = re.compile(
    r"(?<![a-zA-Z\\{])[a-zA-Z]{4,}(?:'s)?(?![a-zA-Z])"
    r"|(?<![a-zA-Z\\{])(?:one|two|six|ten)(?![a-zA-Z])"
    rf"|(?<=[\d)}}\ue000-\uf8ff])\s*(?<![a-zA-Z\\])(?:{_SHORT_UNITS})\.?(?![a-zA-Z(])"
)
# Two or three letters beside a word are one too: the "the" of "the mean".
_SHORT_WORD = re.compile(rf"(?<={WORD})\s*[a-zA-Z]{{2,3}}(?![a-zA-Z])|(?<![a-zA-Z\\])[a-zA-Z]{{2,3}}\s+(?={WORD})")
# "right triangle", "a circle", but not "x and y" or "sin theta"
_ONLY_WORDS = re.compile(r"(?:[Aa]\s+)?[a-zA-Z][a-zA-Z'-]+(?:\s+[a-zA-Z'-]+)+|[Aa]\s+[a-zA-Z'-]+")
_NO_WORD = re.compile(rf"\b(?:and|or|{FUNCTIONS}|{PLAIN_GREEK}|sqrt)\b")
# The full stop of "5.", but not the dots of "0.33..."
_ENDING = re.compile(r"(?:(?<!\.)\.|[\s;\\])+$")
# 0.1666... is 0.1\overline{6}
_REPEATED_DIGIT = re.compile(r"(\.\d*?)(\d)\2{2,}(?:\.{3}|\\[lc]?dots(?![a-zA-Z]))", re.ASCII)
# 0.1\overline{6}, .\bar3
_REPEATING_DECIMAL = re.compile(
    r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*(?:\{(\d{1,20})\}|(\d))(?!\s*\d)", re.ASCII
)
# 5\\,m and 5\\,m\\,s^{-1}: a space is set before units, but not before a variable; 5 m/s
_SYMBOL = r"(?:[kcmdnμ]?[mgsJLVWN]|h|l|mol|k?Pa|k?Hz|k?cal)(?![a-zA-Z])(?:\^\{?-?\d\}?)?"
_SPACE = r"(?:\\[,;: ]|~)"
_BARE_UNITS = re.compile(
    rf"(?<=[\d}}i])(?:\s*{_SPACE}\s*|\s*(?=k?m\s*(?:(?:/|{_SPACE})\s*[hs](?![a-zA-Z])|s\^)))({_SYMBOL}(?:(?:{_SPACE}|[\s/]|\\cdot)*{_SYMBOL})*)(?=[\s.$]*$)"
)


@dataclass(frozen=True)
class Spelled:
    """A formula in one spelling, and the words, in small letters, for which its private characters stand."""

    formula: str
    words: tuple[str, ...]

    def part(self, formula: str) -> "Spelled":
        """Return a part of the formula, with the same words."""
        return Spelled(formula.strip(), self.words)

    def word(self, character: str) -> str:
        """Return the word that a private character stands for."""
        return self.words[ord(character) - FIRST_WORD]

    def text(self) -> str:
        """Return the formula with its words in place."""
        with_words = re.sub(WORD, lambda match: f" {self.word(match[0])} ", self.formula)
        return " ".join(with_words.split())


class _WordList(list[str]):
    """The words of one text so far, each of which is replaced by a private character."""

    def replace(self, word: str) -> str:
        """Return the character that stands for `word`; of mere punctuation, its first comma or colon or a space."""
        plain = " ".join(word.replace("\\", " ").casefold().strip(' .,:"“”').split())
        if not plain:
            return "," if "," in word else ":" if ":" in word else " "
        if len(self) >= MAX_WORDS or re.search(WORD, word):
            return " "
        self.append(plain)
        return chr(FIRST_WORD + len(self) - 1)

    def replace_text(self, match: re.Match) -> str:
        r"""Replace a `\text{...}`; a comma at its beginning or end stays, since it may separate items of a list."""
        before, words, behind = match.groups(default="")
        joint = AND if "and" in behind else behind.strip()  # 7\\text{ goats and }4
        return {"and": AND, "or": OR}.get(words.strip()) or before.strip() + self.replace(words) + joint


@lru_cache(maxsize=4096)  # references and frequent answers come again and again
def spelled(text: str) -> Spelled:
    r"""Return `text` in one spelling.

    >>> spelled(r"$\dfrac12\text{ cm}^2$.").text(), spelled("3pi/4").text(), spelled(r"10\,080").text()
    ('\\frac{1}{2} cm ^2', '3\\pi /4', '10080')
    """
    words = _WordList()
    text = re.sub(WORD, "", text).translate(CHARACTERS)
    text = _DIGIT_GROUPS.sub(lambda match: re.sub(_SEPARATOR, "", match[0]), text)
    text = _BARE_UNITS.sub(lambda units: re.sub(r"(?<!\\)\b[a-zA-Z]+", r"\\text{ \g<0>} ", units[1]), text)
    text = rewrite(text, BEFORE_WORDS)
    text = _ENDING.sub("", text).strip()
    text = without_sentence(text)
    text = _unwrapped(text)
    if _is_phrase(text):
        return Spelled(words.replace(text), tuple(words))
    text = _TEXT.sub(words.replace_text, text)
    text = _AND_OR.sub(lambda match: AND if match[1] == "and" else OR, text)
    text = _REPEATED_DIGIT.sub(r"\1\\overline{\2}", text)
    text = _REPEATING_DECIMAL.sub(_repeating_fraction, text)
    text = rewrite(text, AFTER_WORDS)
    for pattern in (_PLAIN_WORD, _SHORT_WORD):
        text = pattern.sub(lambda match: words.replace(match[0]), text)
    return Spelled(" ".join(_ENDING.sub("", text).split()), tuple(words))


def _unwrapped(text: str) -> str:
    r"""Return what is inside a `\text{...}` around the whole, if that is more than words: `24 cm`, `x = 5`."""
    match = re.fullmatch(r"\\text\{([^{}]*)\}(\^\{?\d\}?)?", text)
    if match and re.search(r"^\s*[-+]?[\d.]+(?:\s|$|[,/:])|[=<>^+\\]", match[1]):
        return match[1].strip() + (match[2] or "")
    return text


def _is_phrase(text: str) -> bool:
    """Whether the whole text is words: `right triangle`, `twenty-four`."""
    if text.isascii() and number_in_words(text.casefold()) is not None:
        return True
    only_words = _ONLY_WORDS.fullmatch(text) and re.search("[a-zA-Z]{4}", text)
    return bool(only_words) and not _NO_WORD.search(text)


def _repeating_fraction(match: re.Match) -> str:
    r"""Return the fraction that a repeating decimal is: `0.1\overline{6}` is (16 - 1) / 90."""
    whole, digits, period_in_braces, period_digit = match.groups()
    period = period_in_braces or period_digit
    nines = 10 ** len(digits) * (10 ** len(period) - 1)
    top = int(whole + digits + period) - int(whole + digits or 0)
    return rf"\frac{{{top}}}{{{nines}}}"
