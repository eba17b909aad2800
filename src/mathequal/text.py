r"""Bring LaTeX, Unicode and plain text into one spelling, and move the words out of the way of
formulas.

A text such as `\text{ cm}`, and a word in plain letters, is moved into Unicode's private area, so
that no rule for formulas reads it as a product of letters.

The rows of a table are applied in their order, and each row to what the rows before it have left.
The order matters: `_{\text{red}}` can only be read after `\textbf{` has become `\text{`.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from html.entities import name2codepoint

from mathequal.words import (
    AND,
    CURRENCIES,
    GREEK,
    MULTIPLES,
    OR,
    PLAIN_COMMANDS,
    PRIVATE,
    RUSSIAN,
    WORD,
    moved,
    number_in_words,
    without_sentence,
)


def _spellings(pairs: str) -> dict[str, str]:
    """Return what each sign or command stands for, with a space behind it where that is a
    command.
    """
    words = pairs.split()
    meanings = [word + " " if word[-1].isalpha() else word for word in words[1::2]]
    return dict(zip(words[::2], meanings, strict=True))


CHARACTERS = str.maketrans(
    # α to Ω, by their names in HTML, where ς is sigmaf
    {
        code: rf"\{name.removesuffix('f')} "
        for name, code in name2codepoint.items()
        if "Α" <= chr(code) <= "ω"
    }
    # full-width signs, subscripts, fractions
    | {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
    | {sign: f"_{{{value}}}" for value, sign in enumerate("₀₁₂₃₄₅₆₇₈₉")}
    | {
        sign: rf"\frac{{{unicodedata.normalize('NFKC', sign).replace('⁄', '}{')}}}"
        for sign in "½⅓⅔¼¾⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞"
    }
    # what is not seen, and what is only decoration
    | dict.fromkeys("\u00ad\u200b\u200c\u200d\u200e\u200f\u2060\ufeff✓✔✅∴∎■", "")
    # lost backslashes: \\f of \\frac read as a form feed
    | {code: rf"\{letter}" for code, letter in zip("\a\b\v\f", "abvf", strict=True)}
    | _spellings(
        "€ euro £ pound ₹ rupee ￥ yuan ¥ yuan ₩ won ₽ ruble ₺ lira ₫ dong ฿ baht ₪ shekel"
    )
    | _spellings("₴ hryvnia ₱ peso ₦ naira ¢ cent")
    | dict.fromkeys("−–—‐‑", "-")
    | _spellings(
        r"× \times · \cdot ⋅ \cdot ∙ \cdot ÷ / ⁄ / ∕ / ∞ \infty ° \degree º \degree ≤ \le ⩽ \le ≥ "
        r"\ge ⩾ \ge"
    )
    | _spellings(
        r"≠ \ne ≈ \approx ∪ \cup ∩ \cap ∈ \in ∖ \setminus ± \pm ∓ \mp ′ ' ’ ' 、 , ℝ \reals ∅ "
        r"\emptyset"
    )
    | _spellings(r"⟨ \langle ⟩ \rangle ⌊ \lfloor ⌋ \rfloor ⌈ \lceil ⌉ \rceil ∠ \angle △ \triangle")
)
_COMMANDS = _spellings(
    r"\times \cdot \ast \cdot \cdotp \cdot \cdot \cdot \div / \lt < \gt > \colon : \ratio : \mid | "
    r"\vert | \lvert | \rvert | \Vert | \lVert | \rVert | \lbrace \{ \rbrace \} \lbrack [ \rbrack "
    r"] \varnothing \emptyset \R \reals \dfrac \frac \tfrac \frac \cfrac \frac \dbinom \binom "
    r"\tbinom \binom \leq \le \leqslant \le \leqq \le \le \le \geq \ge \geqslant \ge \geqq \ge \ge "
    r"\ge \neq \ne \ne \ne \textdegree \degree \lg \log \infinity \infty"
)
"""Commands of the same meaning."""

Table = list[tuple[re.Pattern, str | Callable[[re.Match], str]]]

# The beginning of a name without a backslash, the end of a name, and a \text{ that may be in front
# of words
_SHORT = {"@start": r"(?<![a-zA-Z\\])", "@end": "(?![a-zA-Z])", "@text": r"(?:\\text\s*\{\s*)?"}


def table(*rows: tuple[str, str | Callable[[re.Match], str]]) -> Table:
    """Compile the patterns of a table, in which `@start`, `@end` and `@text` stand for longer
    ones.
    """
    return [
        (re.compile(re.sub("@(?:start|end|text)", lambda m: _SHORT[m[0]], pattern)), text)
        for pattern, text in rows
    ]


def rewrite(text: str, rows: Table) -> str:
    """Return `text` after every row, in order."""
    for pattern, replacement in rows:
        text = pattern.sub(replacement, text)
    return text


_NAMED = r"\\?(?<![a-zA-Z])(?:(?:operatorname|text|mathrm)\s*\{\s*)?"
_ARGUMENTS = r"\(((?:[^()]|\([^()]*\))*)\)"
_UNIT = r"(?:[kcmdn]?[mgsJLVWN]|h|l|mol|k?Pa|k?Hz|k?cal)@end(?:\^\{?-?\d\}?)?"
_SPACE = r"(?:\\[,;: ]|~)"

# Money: a plain number, perhaps of millions, beside the sign or code of a currency
_AMOUNT = (
    r"(?:\d{1,3}(?:,\d{3})++|\d\d?(?:,\d\d)+,\d{3}(?!\d)|\d++)(?:\.\d++)?|\.\d++|\d++,\d\d(?!\d)"
)
_FONT = r"(?:\\(?:text|textrm|mathrm|mbox)\s*\{\s*)?"
_GAP = rf"(?:\s|{_SPACE}|\\!|[{{}}])*+"
_MULTIPLE = rf"{_FONT}(?P<multiple>{'|'.join(MULTIPLES)})?"
_CODES = "|".join(sign for sign in CURRENCIES if re.fullmatch("[A-Z]{3}", sign))


def _pattern(signs: list[str]) -> str:
    """Return the pattern of any of these signs, whose dollar sign may have a backslash."""
    longest_first = sorted(map(re.escape, signs), key=len, reverse=True)
    return "|".join(longest_first).replace(r"\$", r"\\?\$")


# US\$7, CHF 7, kr 7, \text{USD }7, -€7
_MONEY_IN_FRONT = (
    rf"^\s*+{_FONT}(?P<minus>-?)\s*+{_FONT}\\?(?P<sign>{_pattern(list(CURRENCIES))})s?(?![a-z])"
    rf"{_GAP}(?:\\?\$)?(?P<amount>{_AMOUNT})(?:[.,]-{{1,2}})?{_GAP}{_MULTIPLE}{_GAP}\.?\s*$"
)
_SIGNS_BEHIND = [sign for sign in CURRENCIES if not re.fullmatch("[A-Z][$]", sign)]
# 7 USD, \$7 USD, $7$ kr, 7\text{ zł}; `$7 R$` may be a formula, and 7kr a product
_MONEY_BEHIND = (
    rf"^\s*+{_FONT}(?P<minus>-?)\s*+(?:\\?\$)?(?P<amount>{_AMOUNT})(?:[.,]-{{1,2}})?{_GAP}"
    rf"{_MULTIPLE}{_GAP}\$?{_GAP}{_FONT}(?:(?<!\d)|(?=[A-Z]{{3}}|zł|Kč|[a-z]{{3}}))"
    rf"(?P<sign>{_pattern(_SIGNS_BEHIND)})s?(?![a-z]){_GAP}\.?\$?\s*$"
)


def _money(match: re.Match) -> str:
    """Return an amount of money as `7\\text{ million dollar}`."""
    unit = CURRENCIES[match["sign"].replace("\\", "")]
    multiple = f" {match['multiple']}" if match["multiple"] else ""
    amount = re.sub(r"^(\d+),(\d\d)$", r"\1.\2", match["amount"]).replace(",", "")  # €7,50
    return rf"{match['minus']}{amount}\text{{{multiple} {unit}}}"


_RUSSIAN_UNIT = (
    rf"(?<=[\d}}])(?:\s|{_SPACE})*(?P<font>\\text\s*\{{\s*)?"
    r"(?:(?P<power>кв|куб|квадратны[йех]|кубически[йех])\.?\s+)?"
    rf"(?P<unit>{'|'.join(sorted(RUSSIAN, key=len, reverse=True))})\.?\s*"
    r"(?:\^\s*\{?(?P<exponent>[23])\}?)?\s*(?(font)\}(?:\^\{?(?P<behind>[23])\}?)?)\s*\.?\s*$"
)


def _english_unit(match: re.Match) -> str:
    """Return a unit in Russian as `\\text{ cm}^2`."""
    power = {"кв": "2", "ку": "3"}.get((match["power"] or "")[:2])
    power = power or match["exponent"] or match["behind"]
    return rf"\text{{ {RUSSIAN[match['unit']]}}}" + (f"^{power}" if power else "")


BEFORE_WORDS = table(
    # \\\\frac{1}{2}: doubled backslashes
    (r"(?s)^(?!.*\\begin).*", lambda match: re.sub(r"(?<!\\)\\\\(?=[a-zA-Z]{2})", r"\\", match[0])),
    (
        r"(?s)^(?!.*(?<!\\)\\[a-zA-Z])(?=.*\\\\[a-zA-Z]).*",
        lambda match: match[0].replace("\\\\", "\\"),
    ),
    # \\[4pt] ends a row, as \\ does
    (r"\\\\\s*\[\s*[-+]?[\d.]+\s*(?:pt|bp|pc|em|ex|mm|cm|in|mu|\\[a-z]+)\s*\]", r"\\\\"),
    # 10⁻³
    (
        r"[⁰¹²³⁴-⁹⁺⁻ⁿⁱ]+",
        lambda match: f"^{{{unicodedata.normalize('NFKC', match[0]).replace('−', '-')}}}",
    ),
    # **5** and "5": Markdown and quotation marks around the whole
    (r"^\s*(?:\*\*|[\"“])|(?:\*\*|[\"”])\s*$", ""),
    # frac{1}{2}, rac{1}{2} and a tab before ext{: lost backslashes
    (r"@start([dt]?frac|sqrt)(?=\s*[{[])", r"\\\1"),
    (
        r"\t(?=ext|imes|heta|an@end|au@end|riangle|frac)|(?<![a-zA-Z\\\t])(?=ext\s*\{|(?:imes|heta)@end)",
        r"\\t",
    ),
    (r"\r(?=ight|ho(?![a-z])|angle|floor|ceil)", r"\\r"),
    (r"@start(?=rac\s*[{\d])", r"\\f"),
    # \( and \], \boxed and \large, \therefore, \checkmark and \implies, "5 only", "only 5"
    (
        r"(?<!\\)\\[()\[\]]|\\(?:boxed|fbox|bold|[lL]arge|LARGE|[hH]uge|small|normalsize|therefore|checkmark|blacksquare"
        r"|square|Box|because|nonumber|notag|ensuremath)@end|\\(?:begin|end)\{equation\*?\}|`"
        r"|^\s*(?:\\(?:implies|(?:[lL]ong)?[rR]ightarrow)@end|only(?=\s)|\\text\s*\{\s*only\s*\})"
        r"|(?:\\text\s*\{\s*(?:is the )?only(?: solution)?\s*\}|\sonly)\s*\.?$",
        " ",
    ),
    # all real numbers except 2, all real numbers x
    (
        r"^\s*@text[aA]ll real(?:s| numbers)(?: [a-z])? (?:except|other than)(?: for)?\s*\}?"
        r"\s*(?:[a-z]\s*=\s*)?([-\d\\][^a-z]*(?:and\b\s*(?:[a-z]\s*=)?[^a-z]*)?)$",
        lambda match: (
            r"\reals \setminus \{" + re.sub(r",?\s*and\s*(?:[a-z]\s*=)?", ",", match[1]) + r"\}"
        ),
    ),
    (r"^\s*@text[aA]ll real numbers\s*\}?\s*[a-z]\s*$", r"\\reals "),
    # minus 5
    (r"^\s*(?:minus|negative)\s+(?=[\d\\.(])", "-"),
    # €5 is 5\text{ euro}, \$5 is 5\text{ dollars}; any other $ begins or ends a formula
    (r"U\.S\.\s*(?=dollars?@end)", "US "),
    (_MONEY_IN_FRONT, _money),
    (_MONEY_BEHIND, _money),
    # \frac{7}{2} USD and 7 USD per hour; 7,- without a currency
    (
        rf"(?<=[\d}}])(?:\s|{_SPACE})+({_CODES})(?=\s*(?:\.?\s*$|per\s|/\s*[a-z]))",
        lambda m: rf"\text{{ {CURRENCIES[m[1]]}}}",
    ),
    (rf"^\s*({_AMOUNT})[.,]-{{1,2}}\s*$", r"\1"),
    # 7 元, 7 个: the words for yuan, and for things that are counted
    (r"(?<=\d)\s*@text[元圆]\s*\}?\s*$", r"\\text{ yuan}"),
    (r"(?<=\d)\s*@text[个個人名只隻件本张張块塊条條次种種]\s*\}?\s*$", r"\\text{ items}"),
    (r"\\\$\s*((?>\d+(?:,\d{3})*(?:\.\d+)?|\.\d+))(?=\.?\s*(?:$|[,;$]))", r"\1\\text{ dollars}"),
    (r"\\?\$", " "),
    # 5 см, 5 кв. см, \text{5 см}
    (r"^\s*\\text\s*\{\s*(\d[^{}]*[а-яё.]\s*)\}\s*\.?$", r"\1"),
    (rf"^(\s*-?\d++),(\d\d?)(?={_RUSSIAN_UNIT})", r"\1.\2"),  # 7,5 см
    (_RUSSIAN_UNIT, _english_unit),
    # 5\,m\,s^{-1} and 5 m s^{-1}, but 5 m s is a product
    (
        rf"(?<=[\d}}i])(?:\s*{_SPACE}|\s*(?=k?m(?:\s|{_SPACE})*s\^))\s*"
        rf"({_UNIT}(?:(?:\s|{_SPACE}|/|\\cdot)*{_UNIT})*)(?=[\s.$]*$)",
        lambda match: r"\text{" + re.sub(r"\\cdot|\\.|[~{}]", " ", match[1]) + "}",
    ),
    # white space: \phantom{0}, \hspace{1cm}, \quad, \, and ~
    (r"\\phantom\s*(?:\{[^{}]*\}|\\?[^\\{}])|\\hspace\*?\s*\{[^{}]*\}|\\q?quad@end", " "),
    (r"(?<!\\)\\[!,;:> ]|[~\s]", " "),
    # \left( is (, \right. is nothing
    (r"\\(?:left|right|[bB]igg?[lr]?)@end\s*\.?", ""),
    # \displaystyle, \limits, \bf, \color{red}
    (
        r"\\(?:(?:display|text|script)style|(?:no)?limits|bf|rm|it)@end|\\(?:text)?color\s*\{[^{}]*\}",
        "",
    ),
    # \AA, 5'' and ^\circ F
    (r"\\text\s*\{\s*\\AA\s*\}|\\AA@end|\\mathring\s*\{?A\}?|Å", r"\\text{ angstrom}"),
    (r"(?<=\d)\s*(?:''|\^\{\\prime\s*\\prime\})", r"\\text{ arcsecond}"),
    (
        r"(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)\s*(?:\\(?:mathrm|text|rm)\s*\{\s*)?([CF])@end\s*\}?",
        r"\\text{ deg\1}",
    ),
    # 5\mathrm{m} is 5 metres, while \mathrm{m} elsewhere is a letter
    (r"(?:(?<=[\d}])|(?<=\\pi))(\s*/?\s*)\\mathrm\s*\{\s*([mgshLlNJ])\s*\}", r"\1\\text{\2}"),
    # np.arcsin, arctg and \tg
    (r"@start(?:np|math|sp)\.(?=[a-z])", ""),
    (
        r"\\?(?<![a-zA-Z])(arc)?(c?)tg@end",
        lambda match: rf"\{match[1] or ''}{'cot' if match[2] else 'tan'} ",
    ),
    # floor(x), \text{ceil}(x) and abs(x)
    (rf"{_NAMED}(floor|ceil)\s*\}}?\s*{_ARGUMENTS}", r"\\l\1 \2\\r\1 "),
    (rf"{_NAMED}abs\s*\}}?\s*{_ARGUMENTS}", r"|\1|"),
    # (1,2)^T
    (
        r"^(\s*(?:[^()]*=)?\s*\([^()]*,[^()]*\))\s*\^\s*\{?\s*(?:T|\\top|\\intercal)\s*\}?\s*$",
        r"\1",
    ),
    # arsinh and \operatorname{arccosh}
    (r"\\?(?<![a-zA-Z])(?:operatorname\s*\{\s*)?arc?(sinh|cosh|tanh)(?:\s*\}|@end)", r"\\\1^{-1}"),
    (r"cosec(?![a-z])", "csc"),
    # \mathbf{v}, \vec v, \mathrm{12}: fonts of letters and numbers
    (
        r"\\(?:math(?:rm|bf|it|cal|bb(?=\s*\{\s*P))|boldsymbol|operatorname\*?)\s*\{\s*([a-zA-Z]|[\d.,]+)\s*\}",
        r"\1",
    ),
    (
        r"\\(?:mathbf|boldsymbol|vec|overrightarrow|underline|colorbox\s*\{\w+\})(?:\s*\{((?:[^{}]|\{[^{}]*\})*)\}|\s+([a-z]))",
        r"\1\2",
    ),
    # \overline{AB} is a segment, \widehat{AB} an arc
    (r"\\(?:overline|overrightarrow|overleftrightarrow|widehat)\s*\{\s*([A-Z]{2,})\s*\}", r"\1"),
    # \det A and \Pr(A) name a value
    (r"\\(det|Pr)(?=\s*\(?[A-Z])", r"\\text{\1}"),
    # \mathrm{sin} is \sin
    (rf"\\(?:mathrm|text|operatorname)\s*\{{\s*\\?({PLAIN_COMMANDS}|infinity)\s*\}}", r"\\\1 "),
    # \textbf{even} and \mbox{even} are \text{even}
    (
        r"\\(?:text(?:normal|bf|it|rm|sf|tt)?|math(?:rm|sf)|[mh]box|operatorname\*?)\s*\{",
        r"\\text{",
    ),
    # 7^{\text{th}}
    (r"(?<=\d)\s*\^\s*\{?\s*(?:\\text\{)?(st|nd|rd|th)\s*\}{0,2}@end", r"\\text{\1}"),
    # \lambda_{\text{red}}, \begin{align*}
    (r"_\s*\{\s*\\text\{\s*([^{}\s]*)\s*\}\s*\}", r"_{\1}"),
    (r"\\(begin|end)\{(\w+)\*\}", r"\\\1{\2}"),
    # m_{\max} is m_{max}
    (r"_\s*(?:\{\s*\\(max|min)\s*\}|\\(max|min)@end)", r"_{\1\2}"),
    # \{2k\pi : k \in \mathbb{Z}\}
    (
        r"\\\{(?:\s*[a-z]\s*(?::|\||\\mid@end)\s*[a-z]\s*=)?(.*?)(?:,|:|\||\\mid@end)\s*[a-z]\s*\\in\s*\\mathbb\s*\{?\s*Z\s*\}?\s*\\\}",
        r"\1",
    ),
    # \text{cm^2} is \text{cm}^2
    (r"(\\text\{[^{}^]*)\^\s*\{?(-?\d)\}?\s*\}", r"\1}^\2"),
    # 6\pi \text{ (about 18.8)}
    (
        r"(?<=[\w})])\s*(?:,\s*)?\(?@text\(?(?:or |which is "
        r")?(?:about|approximately|roughly|\\approx)@end\s*\}?\s*([\d.,]*\d)\s*\}?\s*(?:@text\)\s*\}?|\}?)\s*\.?$",
        r" \\approx \1",
    ),
    # 2^5 \text{ (or 32)} and 2^5, which is 32
    (
        r"(?:(?<=\d)|(?<=\d[})]))\s*,?\s*(?:(?:\(@text|@text\()or|\(?@text[,(]?\s*(?:which is|that "
        r"is|i\.e\.|equivalently))@end,?\s*\}?\s*(?=.*\d)((?:[^{}()]|\{(?:[^{}]|\{[^{}]*\})*\})+?)\s*"
        r"(?:\\text\{\s*\)\s*\}|[)}]*)\s*\.?$",
        r" = \1",
    ),
    # Rules that begin with \s* take time with the cube of the number of spaces in a row.
    (r" {2,}", " "),
)

# What a command takes as its argument without braces: the 1 of \frac12
_ARGUMENT = rf"(?:[0-9a-zA-Z]|\\(?:pi(?![a-zA-Z])|{GREEK}))"
_ROOT = r"(?:√|\\?(?<![a-zA-Z])sqrt)\s*\(((?>[^()]|\((?>[^()]|\((?>[^()]|\([^()]*\))*\))*\))*)\)"

AFTER_WORDS = table(
    (r"\\[a-zA-Z]+\s*", lambda match: _COMMANDS.get(match[0].rstrip(), match[0])),
    # ^\circ and ^{\circ}
    (r"\^\s*(?:\{\s*\\circ\s*\}|\\circ@end|\\degree@end)|\\degree@end", r"\\degree "),
    (r"\\?%", r"\\percent "),
    # sqrt(x+1), √(1+√2), sqrt2 and √x
    (_ROOT, r"\\sqrt{\1}"),
    (_ROOT, r"\\sqrt{\1}"),
    (r"(?:√|@startsqrt)\s*(\d+|[a-zA-Z]@end)", r"\\sqrt{\1}"),
    (r"√", r"\\sqrt "),
    # 1.5e6 is 1.5 \cdot 10^{6}
    (r"(?<![a-zA-Z\d.\\_^{])(\d*\.?\d+)[eE]([+-]?\d{1,3})(?![\d.a-zA-Z])", r"\1\\cdot 10^{\2}"),
    # sin x, 7pi, max(1, 2), inf: commands without a backslash
    (rf"@start({PLAIN_COMMANDS}|(?:max|min)(?=\s*[({{\\]))@end", r"\\\1 "),
    (r"@start(?:infinity|infty|inf|oo)@end", r"\\infty "),
    # 2**3 is a power, 2*3 and 2 \times 3 are products
    (r"\*\*", "^"),
    (r"\*", r"\\cdot "),
    # C1 is C_1
    (r"(?<![\w\\{])(C(?=[1-9](?![\w.]))|[Cc](?=[1-9]\s*(?:\\|e)))", r"\1_"),
    # <=, >=, !=, \not= and \|
    (r"([<>])\s*=", lambda match: r"\le " if match[1] == "<" else r"\ge "),
    (r"\\not\s*=|(?<![\d)])!=", r"\\ne "),
    (r"\\\|", "|"),
    # <1, 2> is a vector
    (r"^<([^<>]*,[^<>]*)>$", r"\\langle \1\\rangle "),
    (r"\\(?:mathbb|mathds)\s*\{?\s*R\s*\}?", r"\\reals "),
    # \frac12, \frac{1}2, \sqrt3, \sqrt[3]5: braces around arguments
    (rf"\\(frac|binom)\s*({_ARGUMENT})", r"\\\1{\2}"),
    (r"\\(frac|binom)\s+\{", r"\\\1{"),
    (
        rf"(\\(?:frac|binom)\s*\{{(?:[^{{}}]|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*\}})*\}})\s*({_ARGUMENT})",
        r"\1{\2}",
    ),
    (rf"\\sqrt(\[[^\[\]]*\])?\s*({_ARGUMENT})", r"\\sqrt\1{\2}"),
    # {5 \choose 2}, \log_e x; 2^(n+1) is 2^{n+1}, while x^{2} is x^2
    (r"\{([^{}]*)\\choose@end([^{}]*)\}", r"\\binom{\1}{\2}"),
    (r"\\log\s*_e@end", r"\\ln "),
    (r"\^\s*\(([^()]*)\)", r"^{\1}"),
    (r"([_^])\s*\{\s*(\w)\s*\}(?!\s*\d)", r"\1\2"),
    # 0 (mod 128), 3 \pmod 7
    (r"\(\s*\\?b?mod\s*\{?(\w+)\}?\s*\)|\\pmod\s*\{?\s*(\w+)\s*\}?", r"\\pmod{\1\2}"),
    # 10 (mod 7) is 3 (mod 7)
    (
        r"(?<![\w\\.^])(-?\d+)\s*\\pmod\{0*([1-9]\d*)\}",
        lambda m: rf"{int(m[1]) % int(m[2])}\pmod{{{m[2]}}}",
    ),
    # f: x \mapsto 2x
    (
        r"@start(?:([a-zA-Z])\s*:\s*)?([a-z])\s*\\mapsto@end",
        lambda match: f"{match[1] or 'f'}({match[2]})=",
    ),
    # f(x) \equiv 1
    (r"(?<=[a-zA-Z)])\s*\\equiv@end", "="),
    # t(0,4], which should be t \in (0,4]
    (r"^[a-z]\s*(?=\([^()\[\]]*,[^()\[\]]*\]$|\[[^()\[\]]*,[^()\[\]]*\)$)", ""),
    # P_1(2, 3) is P_1=(2, 3), but R(\cos t, \sin t) is a product
    (
        r"^([MOPQSV](?:_\w)?)\s*(?=\((?:\\[a-z]+|[^()a-zA-Z])*,(?:\\[a-z]+|[^()a-zA-Z,])*\)$)",
        r"\1=",
    ),
    # \angle CBA is \angle ABC
    (
        r"\\angle ?\{? ?([A-Z]) ?([A-Z]) ?([A-Z])(?! ?\w) ?\}?",
        lambda m: rf"\angle {m[2].join(sorted(m[1] + m[3]))}",
    ),
    # C(n,k), {}_nC_k, C_n^k, y^{\prime\prime}, 1./3, \bar z and z^*
    (r"@startC\s*\(([^(),]*[a-zA-Z][^(),]*),([^(),]*)\)", r"\\binom{\1}{\2}"),
    (r"(?<![a-zA-Z}])(?:\{\})?_(\w|\d+|\{\w+\})\s*C\s*_(\w|\d+|\{\w+\})", r"\\binom{\1}{\2}"),
    (r"(?<![a-zA-Z])C_(?:\{(\w+)\}|(\w))\s*\^(?:\{(\w+)\}|(\w))", r"\\binom{\1\2}{\3\4}"),
    (r"\^\s*\{?\s*((?:\\prime\s*)+)\}?", lambda match: "'" * match[1].count("prime")),
    (r"(?<=\d)\.(?=\s*/)", ""),
    (
        r"\\(?:overline|bar)\s*(?:\{\s*(\w)\s*\}|(\w))|([a-zA-Z])\s*\^\s*\{?\s*\\cdot@end\s*\}?",
        r"\\bar{\1\2\3}",
    ),
    # ]0,1[ and [0,1[
    (r"(^|\\(?:cup|in)\s*)\](?=[^][(),;]+[,;][^][(),;]+[][])", r"\1("),
    (r"(?<=[([])([^][(),;]+[,;][^][(),;]+)\[(?=\s*(?:$|\\cup))", r"\1)"),
    # (2,3)(2,7) and 3{:}2
    (r"(?<![\w}])(\([^()]*,[^()]*\))\s*(?=\([^()]*,[^()]*\))", r"\1,"),
    (r"\{([,:])\}", r"\1"),
)

# 10 080, 10\,080, 10,\!080 and 10{,}080 are one number.
_SEPARATOR = r"(?:\{,\}|\s*,\s*\\!|\\!\s*,|\\[,;: ]|~|\s)\s*"
_DIGIT_GROUPS = re.compile(rf"(?<![\d.,\\^_])\d{{1,3}}(?:{_SEPARATOR}\d{{3}})+(?!\d)", re.ASCII)

_AND_OR = re.compile(r"\s*,?\s*(?<![a-zA-Z\\])(and|or)(?![a-zA-Z])\s*")
_TEXT = re.compile(r"\\text\{(\s*,)?([^{}]*?)(,\s*|(?<=\w)\s+and\s*)?\}")
# Words without \text: four letters in a row, which no formula has, and short units after a number
# ("5 cm").
_SHORT_UNITS = (
    r"km/h|m/s|sq|cu|in|ft|mi|cm|mm|km|kg|mph|min|sec|hr|hrs|day|way|per|yd|lb|lbs|oz|cents?"
    r"|a\.m|p\.m|am|pm|AM|PM|pct|ms|mg|mL|ml|nm|kJ|Hz|Pa"
)
_PLAIN_WORD = re.compile(
    r"(?<![a-zA-Z\\{])[a-zA-Z]{4,}(?:'s)?(?![a-zA-Z])"
    r"|(?<![a-zA-Z\\{])(?:one|two|six|ten)(?![a-zA-Z])"
    rf"|(?<=[\d)}}]|{PRIVATE})\s*(?<![a-zA-Z\\])(?:{_SHORT_UNITS})\.?(?![a-zA-Z(])"
)
# Two or three letters beside a word are one too: the "the" of "the mean".
_SHORT_WORD = re.compile(
    rf"(?<={PRIVATE})\s*[a-zA-Z]{{2,3}}(?![a-zA-Z])|(?<![a-zA-Z\\])[a-zA-Z]{{2,3}}\s+(?={WORD})"
)
# "right triangle", "a circle", but not "x and y" or "sin theta"
_ONLY_WORDS = re.compile(r"(?:[Aa]\s+)?[a-zA-Z][a-zA-Z'-]+(?:\s+[a-zA-Z'-]+)+|[Aa]\s+[a-zA-Z'-]+")
_NO_WORD = re.compile(rf"\b(?:and|or|{PLAIN_COMMANDS}|sqrt)\b")
# The full stop of "5.", but not the dots of "0.33..."
_ENDING = re.compile(r"(?:(?<!\.)\.|[\s;\\])+$")
# 0.1666... is 0.1\overline{6}
_REPEATED_DIGIT = re.compile(r"(\.\d*?)(\d)\2{2,}(?:\.{3}|\\[lc]?dots(?![a-zA-Z]))", re.ASCII)
# 0.1\overline{6}, .\bar3
_REPEATING_DECIMAL = re.compile(
    r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar|dot)\s*(?:\{(\d{1,20})\}|(\d))(?!\s*\d)", re.ASCII
)


def _word(phrase: str) -> str:
    """Return the stand-in for a word or phrase; of mere punctuation, its first comma or colon or
    a space.
    """
    plain = " ".join(phrase.replace("\\", " ").casefold().strip(' .,:"“”').split())
    if not plain:
        return "," if "," in phrase else ":" if ":" in phrase else " "
    return " " if re.search(WORD, phrase) else moved(plain)


def _text(match: re.Match) -> str:
    r"""Return the stand-in for a `\text{...}`; a comma at its beginning or end stays, since it
    may separate items.
    """
    before, words, behind = match.groups(default="")
    joint = AND if "and" in behind else behind.strip()  # 7\text{ goats and }4
    return {"and": AND, "or": OR}.get(words.strip()) or before.strip() + _word(words) + joint


@lru_cache(maxsize=4096)  # references and frequent answers come again and again
def spelled(text: str) -> str:
    r"""Return `text` in one spelling.

    >>> from mathequal.words import shown
    >>> shown(spelled(r"$\dfrac12\text{ cm}^2$.")), spelled("3pi/4"), spelled(r"10\,080")
    ('\\frac{1}{2} cm ^2', '3\\pi /4', '10080')
    """
    text = re.sub(PRIVATE, "", text).translate(CHARACTERS)
    text = _DIGIT_GROUPS.sub(lambda match: re.sub(_SEPARATOR, "", match[0]), text)
    text = rewrite(text, BEFORE_WORDS)
    text = _ENDING.sub("", text).strip()
    text = without_sentence(text)
    whole = re.fullmatch(r"\\text\{([^{}]*)\}(\^\{?\d\}?)?", text)
    # More than words: 24 cm, x = 5
    if whole and re.search(r"^\s*[-+]?[\d.]+(?:\s|$|[,/:])|[=<>^+\\]", whole[1]):
        text = whole[1].strip() + (whole[2] or "")
    only_words = (
        _ONLY_WORDS.fullmatch(text) and re.search("[a-zA-Z]{4}", text) and not _NO_WORD.search(text)
    )
    if only_words or (text.isascii() and number_in_words(text.casefold()) is not None):
        return _word(text)
    text = _TEXT.sub(_text, text)
    text = _AND_OR.sub(lambda match: AND if match[1] == "and" else OR, text)
    text = _REPEATED_DIGIT.sub(r"\1\\overline{\2}", text)
    text = _REPEATING_DECIMAL.sub(_repeating_fraction, text)
    text = rewrite(text, AFTER_WORDS)
    for pattern in (_PLAIN_WORD, _SHORT_WORD):
        text = pattern.sub(lambda match: _word(match[0]), text)
    return " ".join(_ENDING.sub("", text).split())


def _repeating_fraction(match: re.Match) -> str:
    r"""Return the fraction that a repeating decimal is: `0.1\overline{6}` is (16 - 1) / 90."""
    whole, digits, period_in_braces, period_digit = match.groups()
    period = period_in_braces or period_digit
    nines = 10 ** len(digits) * (10 ** len(period) - 1)
    top = int(whole + digits + period) - int(whole + digits or 0)
    return rf"\frac{{{top}}}{{{nines}}}"
