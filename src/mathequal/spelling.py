r"""One spelling for LaTeX, Unicode and plain text that mean the same; words become single characters.

A text such as `\text{ cm}`, and a word in plain letters, is replaced by one private character, so that no rule on
formulas reads it as a product of letters: `Spelled.words` says which word each stands for.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

_TEENS = ("ten", "eleven", "twelve", *(f"{s}teen" for s in ("thir", "four", "fif", "six", "seven", "eigh", "nine")))
_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TENS = (f"{stem}ty" for stem in ("twen", "thir", "for", "fif", "six", "seven", "eigh", "nine"))
NUMBER_WORDS = (
    *_DIGITS,
    *_TEENS,
    *(f"{ten} {digit}" if digit != "zero" else ten for ten in _TENS for digit in _DIGITS),
)
"""From 0 to 99."""
AND, OR = r"\land ", r"\lor "
FIRST_WORD = 0xE000
WORD = "[\ue000-\uf8ff]"
"""The private characters that stand for words, as a part of regular expressions."""
MAX_WORDS = 200

TRIGONOMETRIC = "arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|sec|csc"
_FUNCTIONS = rf"{TRIGONOMETRIC}|ln|log|exp|gcd|lcm"
_GREEK = r"pi|theta|alpha|beta|phi|lambda|omega"
_CHARACTERS = str.maketrans(
    {"−": "-", "–": "-", "—": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi "}
    | {"∞": r"\infty ", "°": r"\degree ", "º": r"\degree ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx "}
    | {"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "±": r"\pm ", "∓": r"\mp ", "²": "^2", "³": "^3", "θ": r"\theta "}
    | {"⟨": r"\langle ", "⟩": r"\rangle ", "∠": r"\angle ", "△": r"\triangle ", "½": r"\frac{1}{2}", "′": "'"}
    | {"ℝ": r"\mathbb{R}", "∅": r"\emptyset ", "’": "'", "，": ",", "（": "(", "）": ")", "：": ":", "∖": r"\setminus "}
)
_SEPARATOR = r"(?:\{,\}|\s*,\s*\\!|\\!\s*,|\\[,;: ]|~|\s)\s*"
_GROUPS = re.compile(rf"(?<![\d.,\\^_])\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?!\d)", re.ASCII)
_ARGUMENT = r"(?:[0-9a-zA-Z]|\\pi(?![a-zA-Z]))"
_AND, _OR = (rf"\s*,?\s*(?<![a-zA-Z\\]){word}(?![a-zA-Z])\s*" for word in ("and", "or"))


def _table(*rules: tuple[str, str]) -> list[tuple[re.Pattern, str]]:
    return [(re.compile(pattern), spelling) for pattern, spelling in rules]


_BEFORE_WORDS = _table(
    (r"^\s*(?:\*\*|[\"“])|(?:\*\*|[\"”])\s*$", ""),
    (r"(?<![a-zA-Z\\])([dt]?frac|sqrt)(?=\s*[{[])", r"\\\1"),
    (r"\\\$\s*((?>\d+(?:,\d{3})*(?:\.\d+)?|\.\d+))(?=\.?\s*(?:$|[,;$]))", r"\1\\text{ dollars}"),
    (r"\\?\$", " "),
    (r"\\phantom\s*(?:\{[^{}]*\}|\\?[^\\{}])|\\hspace\*?\s*\{[^{}]*\}|\\q?quad(?![a-zA-Z])", " "),
    (r"(?<!\\)\\[!,;:> ]|[~\s]", " "),
    (r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*\.?", ""),
    (
        r"\\(?:display|text|script)style(?![a-zA-Z])|\\(?:no)?limits(?![a-zA-Z])|\\(?:bf|rm|it)(?![a-zA-Z])"
        r"|\\(?:text)?color\s*\{[^{}]*\}",
        "",
    ),
    (r"(?<=[\d}])(\s*/?\s*)\\mathrm\s*\{\s*([mgshLl])\s*\}", r"\1\\text{\2}"),
    (r"\\mathbb\s*\{\s*P\s*\}", "P"),  # a probability
    (r"\\(?:mathrm|mathbf|mathit|boldsymbol|operatorname\*?)\s*\{\s*([a-zA-Z]|[\d.,]+)\s*\}", r"\1"),
    (r"\\(?:mathbf|boldsymbol|vec|underline)(?:\s*\{((?:[^{}]|\{[^{}]*\})*)\}|\s+([a-z]))", r"\1\2"),
    (r"\\(?:overline|overrightarrow|overleftrightarrow|widehat)\s*\{\s*([A-Z]{2,})\s*\}", r"\1"),  # a segment, an arc
    (r"\\(det|Pr)(?=\s*\(?[A-Z])", r"\\text{\1}"),
    (rf"\\(?:mathrm|text|operatorname)\s*\{{\s*({_FUNCTIONS}|{_GREEK})\s*\}}", r"\\\1 "),
    (r"\\operatorname\s*\{\s*(max|min)\s*\}", r"\\\1 "),
    (r"\\(?:textnormal|textbf|textit|textrm|textsf|texttt|mathrm|mathsf|mbox|hbox|operatorname\*?)\s*\{", r"\\text{"),
    (r"\\text\s*\{", r"\\text{"),
    (r"\\text\{\s*infinity\s*\}", r"\\infty "),
    (r"(\\text\{[^{}^]*)\^\s*\{?(-?\d)\}?\s*\}", r"\1}^\2"),
    (r" {2,}", " "),  # rules that begin with spaces take time with the cube of how many there are
)
_AFTER_WORDS = _table(
    (
        r"\^\s*(?:\{\s*\\circ\s*\}|\\circ(?![a-zA-Z]))|\^\s*\\degree|\\degree(?![a-zA-Z])|\\textdegree(?![a-zA-Z])",
        r"\\degree ",
    ),
    (r"\\?%", r"\\percent "),
    (r"√\s*(\d+|[a-zA-Z])", r"\\sqrt{\1}"),
    (r"√", r"\\sqrt "),
    (r"(?<![a-zA-Z\d.\\_^{])(\d*\.?\d+)[eE]([+-]?\d{1,3})(?![\d.a-zA-Z])", r"\1\\cdot 10^{\2}"),
    (rf"(?<![a-zA-Z\\])({_FUNCTIONS}|{_GREEK}|(?:max|min)(?=\s*[({{\\]))(?![a-zA-Z])", r"\\\1 "),
    (r"(?<![a-zA-Z\\])(?:infinity|infty|inf|oo)(?![a-zA-Z])", r"\\infty "),
    (r"\*\*", "^"),
    (r"\\(?:times|cdot|ast|cdotp)(?![a-zA-Z])\s*|\*", r"\\cdot "),
    (r"\\div(?![a-zA-Z])\s*", "/"),
    (r"\\(?:leqslant|leqq?|le)(?![a-zA-Z])\s*|<\s*=", r"\\le "),
    (r"\\(?:geqslant|geqq?|ge)(?![a-zA-Z])\s*|>\s*=", r"\\ge "),
    (r"\\(?:neq?)(?![a-zA-Z])\s*|\\not\s*=|(?<![\d)])!=", r"\\ne "),
    (r"^<([^<>]*,[^<>]*)>$", r"\\langle \1\\rangle "),
    (r"\\lt(?![a-zA-Z])", "<"),
    (r"\\gt(?![a-zA-Z])", ">"),
    (r"\\(?:colon|ratio)(?![a-zA-Z])", ":"),
    (r"\\[lr]?[vV]ert(?![a-zA-Z])|\\\||\\mid(?![a-zA-Z])", "|"),
    (r"\\lbrace(?![a-zA-Z])", r"\\{"),
    (r"\\rbrace(?![a-zA-Z])", r"\\}"),
    (r"\\lbrack(?![a-zA-Z])", "["),
    (r"\\rbrack(?![a-zA-Z])", "]"),
    (r"\\varnothing(?![a-zA-Z])", r"\\emptyset "),
    (r"\\(?:mathbb|mathds)\s*\{?\s*R\s*\}?|\\R(?![a-zA-Z])", r"\\reals "),
    (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
    (r"\\[dt]binom(?![a-zA-Z])", r"\\binom"),
    (rf"\\(frac|binom)\s*({_ARGUMENT})", r"\\\1{\2}"),
    (r"\\(frac|binom)\s+\{", r"\\\1{"),
    (rf"(\\(?:frac|binom)\s*\{{(?:[^{{}}]|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})*\}})\s*({_ARGUMENT})", r"\1{\2}"),
    (rf"\\sqrt(\[[^\[\]]*\])?\s*({_ARGUMENT})", r"\\sqrt\1{\2}"),
    (r"\{([^{}]*)\\choose(?![a-zA-Z])([^{}]*)\}", r"\\binom{\1}{\2}"),
    (r"\^\s*\(([^()]*)\)", r"^{\1}"),
    (r"([_^])\s*\{\s*(\w)\s*\}(?!\s*\d)", r"\1\2"),
    (r"(?:\{\})?_(\d+|\{\d+\})\s*C\s*_(\d+|\{\d+\})", r"\\binom{\1}{\2}"),
    (r"\\pmod\s*\{?\s*(\w+)\s*\}?", r"\\pmod{\1}"),
    (r"\\log\s*_e(?![a-zA-Z])", r"\\ln "),
    (r"(?<=[_^])\s+", ""),
    (r"\{([,:])\}", r"\1"),
)
_TEXT = re.compile(r"\\text\{([^{}]*)\}")
# Plain words: units, and what no formula has, which is four letters in a row.
_UNIT_WORDS = r"sq|cu|in|ft|mi|cm|mm|km|kg|mph|min|sec|hr|hrs|day|way|per|yd|lb|lbs|oz|cents?|a\.m|p\.m|am|pm|AM|PM"
_PLAIN_WORD = re.compile(
    rf"(?<![a-zA-Z\\{{])[a-zA-Z]{{4,}}(?:'s)?(?![a-zA-Z])|(?<=[\d)}}\ue000-\uf8ff])\s*(?<![a-zA-Z\\])(?:{_UNIT_WORDS})\.?(?![a-zA-Z(])"
)
_ONLY_WORDS = re.compile(r"(?:[Aa]\s+)?[a-zA-Z][a-zA-Z'-]+(?:\s+[a-zA-Z'-]+)+|[Aa]\s+[a-zA-Z'-]+")
_NO_WORD = re.compile(rf"\b(?:and|or|{_FUNCTIONS}|{_GREEK}|sqrt)\b")
_SHORT_WORD = re.compile(rf"(?<={WORD})\s*[a-zA-Z]{{2,3}}(?![a-zA-Z])|(?<![a-zA-Z\\])[a-zA-Z]{{2,3}}\s+(?={WORD})")
_ENDING = re.compile(r"(?:(?<!\.)\.|[\s;\\])+$")
_REPEATED = re.compile(r"(\.\d*?)(\d)\2{2,}(?:\.{3}|\\[lc]?dots(?![a-zA-Z]))", re.ASCII)  # 0.1666...
_SAYS = (
    r"(?:(?:so|thus|hence|therefore),?\s)?"
    r"(?:(?:the|there|it|this)\s[a-z' ]*?(?:is|are|equals):?|[a-z' ]*[a-z]{4}:)"
)
"""Words before a value, which say no more than that it is the answer."""
_PREFACE = re.compile(rf"\s*(?:\\text\{{\s*{_SAYS}\s*(?:\}}|(?P<opened>\s))|{_SAYS}(?=\s))", re.IGNORECASE)
_DENIES = re.compile(r"\b(?:not|no|never|nor|neither|none|if|unless|wrong|incorrect|half|twice)\b|n't", re.IGNORECASE)
"""What makes of such words something else than a preface."""


@dataclass(frozen=True)
class Spelled:
    """A formula in one spelling, and the words, in small letters, for which its private characters stand."""

    formula: str
    words: tuple[str, ...]

    def part(self, formula: str) -> "Spelled":
        return Spelled(formula.strip(), self.words)

    def word(self, character: str) -> str:
        return self.words[ord(character) - FIRST_WORD]

    def text(self) -> str:
        """The formula with its words."""
        return " ".join(re.sub(WORD, lambda match: f" {self.word(match[0])} ", self.formula).split())


@lru_cache(maxsize=4096)  # references and frequent answers come again and again
def spelled(text: str) -> Spelled:
    r"""`text` in one spelling.

    >>> spelled(r"$\dfrac12\text{ cm}^2$.").text(), spelled("3pi/4").text(), spelled(r"10\,080").text()
    ('\\frac{1}{2} cm ^2', '3\\pi /4', '10080')
    """
    words: list[str] = []

    def keep(word: str) -> str:
        plain = " ".join(word.replace("\\", " ").casefold().strip(' .,:"“”').split())
        if not plain:
            return next((mark for mark in ",:" if mark in word), " ")
        if len(words) >= MAX_WORDS or re.search("[\ue000-\uf8ff]", word):
            return " "
        words.append(plain)
        return chr(FIRST_WORD + len(words) - 1)

    def replace_text(match: re.Match) -> str:
        inside = match[1].strip().strip(",").strip()
        if inside in ("and", "or"):
            return AND if inside == "and" else OR
        comma = "," if match[1].strip().startswith(",") else ""
        return comma + keep(match[1]) + ("," if match[1].strip().endswith(",") and not comma else "")

    text = re.sub("[\ue000-\uf8ff]", "", text).translate(_CHARACTERS)
    text = _GROUPS.sub(lambda match: re.sub(_SEPARATOR, "", match[0]), text)
    for pattern, spelling in _BEFORE_WORDS:
        text = pattern.sub(spelling, text)
    text = _ENDING.sub("", text).strip()
    if (preface := _PREFACE.match(text)) and not _DENIES.search(preface[0]):
        text = (r"\text{" if preface["opened"] else "") + text[preface.end() :].strip()
    text = _unwrapped(text)
    only_words = _ONLY_WORDS.fullmatch(text) and re.search("[a-zA-Z]{4}", text) and not _NO_WORD.search(text)
    if only_words or text.casefold().replace("-", " ") in NUMBER_WORDS:
        return Spelled(keep(text), tuple(words))
    text = _TEXT.sub(replace_text, text)
    text = re.sub(_AND, lambda _: AND, text)
    text = re.sub(_OR, lambda _: OR, text)
    text = _REPEATED.sub(r"\1\\overline{\2}", text)
    text = _REPEATING.sub(_repeating, _roots(text))
    for pattern, spelling in _AFTER_WORDS:
        text = pattern.sub(spelling, text)
    for pattern in (_PLAIN_WORD, _SHORT_WORD):
        text = pattern.sub(lambda match: keep(match[0]), text)
    return Spelled(" ".join(_ENDING.sub("", text).split()), tuple(words))


def _unwrapped(text: str) -> str:
    r"""What is inside a `\text{...}` around the whole that says more than words: `24 cm`."""
    match = re.fullmatch(rf"{_TEXT.pattern}(\^\{{?\d\}}?)?", text)
    formula = match and re.search(r"^\s*[-+]?[\d.]+(?:\s|$|[,/:])|[=<>^+\\]", match[1])
    return match[1].strip() + (match[2] or "") if match and formula else text


_REPEATING = re.compile(r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*(?:\{(\d{1,20})\}|(\d))", re.ASCII)


def _repeating(match: re.Match) -> str:
    r"""The fraction that a decimal with a repeating end is."""
    whole, digits, *periods = match.groups()
    period = periods[0] or periods[1]
    nines = 10 ** len(digits) * (10 ** len(period) - 1)
    top = int(whole + digits + period) - int(whole + digits or 0)
    return rf"\frac{{{top}}}{{{nines}}}"


def _roots(text: str) -> str:
    r"""`\sqrt{...}` for `sqrt(...)`."""
    while match := re.search(r"\\?(?<![a-zA-Z])sqrt\s*\(|√\s*\(", text):
        depth, end = 1, match.end()
        while end < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if depth:
            return text
        text = f"{text[: match.start()]}\\sqrt{{{text[match.end() : end - 1]}}}{text[end:]}"
    return re.sub(r"(?<![a-zA-Z\\])sqrt\s*(\d+|[a-zA-Z](?![a-zA-Z]))", r"\\sqrt{\1}", text)
