"""Words: those that are numbers, units or functions, and sentences around an answer that do not
change it.
"""

import re
from fractions import Fraction

# The words "and" and "or" between formulas become these two commands of LaTeX.
AND, OR = r"\land ", r"\lor "

# Any other word is moved, letter by letter, into a private plane of Unicode, where no rule for
# formulas reads it as a product of letters. The first character of the plane begins every word.
_PLANE = 0xF0000
PRIVATE = "[\U000f0000-\U000fffff]"
# The part of a regular expression that matches a moved word or phrase
WORD = "(?:\U000f0000[\U000f0001-\U000fffff]*)"


def moved(phrase: str) -> str:
    """Return a word or phrase in private letters."""
    return chr(_PLANE) + "".join(chr(_PLANE + ord(letter) % 0x10000) for letter in phrase)


def shown(formula: str) -> str:
    """Return a formula, or a part of one, with its words in place."""

    def phrase(word: re.Match) -> str:
        return f" {''.join(chr(ord(letter) - _PLANE) for letter in word[0][1:])} "

    return " ".join(re.sub(WORD, phrase, formula).split())


TRIGONOMETRIC = (
    "arcsin|arccos|arctan|arccot|cis|sinh|cosh|tanh|sech|csch|coth|sin|cos|tan|cot|sec|csc"
)
FUNCTIONS = rf"{TRIGONOMETRIC}|ln|log|exp|gcd|lcm"
GREEK = (
    "(?:alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau|upsilon|phi|chi|psi"
    "|omega|var(?:epsilon|theta|rho|sigma|phi)|Gamma|Delta|Theta|Lambda|Xi|Sigma|Phi|Psi|Omega|ell|hbar)(?![a-zA-Z])"
)
PLAIN_COMMANDS = rf"{FUNCTIONS}|pi|theta|alpha|beta|phi|lambda|omega"
"""Commands that are also read without a backslash: `2pi` is `2\\pi`."""

# -5, 1.25, .5, 1,500, and 3.1 \cdot 10^{-7} or 2 \cdot 10^5
_NUMBER = re.compile(
    r"[+]?(-?(?:\d{1,500}|\d{1,3}(?:,\d{3}){1,9})?(?:\.(\d{1,500}))?)(?:\s*\\cdot\s*10\^\{?(-?\d|(?<=\{)-?\d\d)\}?)?",
    re.ASCII,
)
# \frac{3}{4}, 3/4, and with a whole number in front 1\frac{1}{2} and 1 1/2
_FRACTION = re.compile(
    r"([+-]?)\s*(?:(\d{1,30})(?=[\s\\])\s*)?(?:\\frac\{)?(-?\d{1,30})(?:\}\{|\s*/\s*)(-?\d{1,30})\}?",
    re.ASCII,
)


def plain_number(latex: str) -> Fraction | None:
    r"""Return the value of a plain integer, decimal, fraction, mixed number or power of ten; else
    None.

    >>> texts = (r"-\frac{5}{4}", "-1.25", "1 1/2", r"1\frac{1}{2}", "1,500", "x", "1/0")
    >>> [str(plain_number(text)) for text in texts]
    ['-5/4', '-5/4', '3/2', '3/2', '1500', 'None', 'None']
    """
    decimal = _NUMBER.fullmatch(latex)
    if decimal and re.search(r"\d", decimal[1]):
        return Fraction(decimal[1].replace(",", "")) * Fraction(10) ** int(decimal[3] or 0)
    fraction = _FRACTION.fullmatch(latex)
    if not fraction:
        return None
    whole, top, bottom = (int(digits or 0) for digits in fraction.groups()[1:])
    # 1 -1/2 is a difference, 2\frac{7}{3} a product
    if bottom == 0 or (fraction[2] and not 0 < top < bottom):
        return None
    size = whole + Fraction(top, bottom)
    return -size if fraction[1] == "-" else size


def decimal_places(latex: str) -> int:
    """Return how many decimals a plain decimal has, 0 for anything else."""
    match = _NUMBER.fullmatch(latex)
    return max(len(match[2]) - int(match[3] or 0), 0) if match and match[2] else 0


_DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
_TEENS = (
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_TWENTY_TO_99 = [f"{ten} {digit}".removesuffix(" zero") for ten in _TENS for digit in _DIGITS]

NUMBER_WORDS = (*_DIGITS, *_TEENS, *_TWENTY_TO_99)
"""The numbers from 0 to 99 in words, so that the index of a word is its value: `twenty four` is
at 24."""

_PARTS = ("half", "third", "quarter", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")


def number_in_words(phrase: str) -> int | Fraction | None:
    """Return the number that `twenty-four`, `minus two`, `three hundred and five` or `two
    thirds` is.
    """
    words = " ".join(phrase.replace("-", " ").split())
    for sign in ("minus ", "negative "):
        if words.startswith(sign):
            size = number_in_words(words.removeprefix(sign))
            return None if size is None else -size
    count, _, part = words.removesuffix("s").replace("fourth", "quarter").rpartition(" ")
    if part in _PARTS and count in NUMBER_WORDS[1:20]:
        return Fraction(NUMBER_WORDS.index(count), 2 + _PARTS.index(part))
    for multiple in reversed(MULTIPLES):
        before, found, after = words.partition(multiple)
        if found:
            size = number_in_words(before) if before.strip() not in ("", "a") else 1
            rest = number_in_words(after.strip().removeprefix("and ")) if after else 0
            value = MULTIPLES[multiple]
            return None if size is None or rest is None or rest >= value else size * value + rest
    return NUMBER_WORDS.index(words) if words in NUMBER_WORDS else None


# Units by their names in pint, each with its other spellings in small letters. A plural with -s
# needs no entry.
_TABLE = """
degree deg, radian rad, arcsecond, percent pct percentage,
dollar usd, cent, euro eur, rupee rs inr, yuan rmb cny, yen jpy, won krw, ruble rouble, kopek,
franc chf, krona krone kronor kroner, sek, nok, dkk, zloty pln, koruna czk, forint huf, reais brl,
aud, cad, hkd, twd, nzd, sgd, mxn, zar, lira, dong vnd, baht thb, shekel ils, hryvnia uah, peso,
naira, ringgit, rupiah, aed, sar, egp, pkr, ron,
inch in inches, foot ft feet, yard yd, mile mi, acre, hectare ha,
knot, mile/hour mph, kilometer/hour kph kmh kmph,
second sec s, minute min, hour hr h, day, week, month mo, year yr, decade, century centuries,
pound lb gbp, ounce oz, ton, tonne, gallon gal, quart qt, pint, cup, tablespoon, teaspoon,
angstrom å, erg, atmosphere atm, bar, calorie cal, joule j, watt w, volt v, newton n, hertz hz,
pascal pa, kelvin, celsius degc, fahrenheit degf, mole mol, ampere amp, coulomb, ohm, tesla,
electron_volt ev,
liter litre l, meter metre m, gram gm g, byte, bit
"""
_SPELLINGS = {words.split()[0]: words.split() for words in _TABLE.split(",")}
_PREFIXES = {
    "milli": "m",
    "centi": "c",
    "kilo": "k",
    "micro": "μ",
    "nano": "n",
    "deci": "d",
    "pico": "p",
}
_WITH_PREFIX = (
    "meter",
    "gram",
    "liter",
    "second",
    "joule",
    "watt",
    "volt",
    "newton",
    "pascal",
    "hertz",
    "calorie",
)
_UNITS = {word: unit for unit, words in _SPELLINGS.items() for word in words}
for _prefix, _sign in _PREFIXES.items():
    for _unit in _WITH_PREFIX:
        for _word in _SPELLINGS[_unit]:
            _UNITS.setdefault((_prefix if len(_word) > 3 else _sign) + _word, _prefix + _unit)
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}

# A unit of money, and what stands for it in front of a number or behind it. Dollars of several
# countries are different currencies
_SIGNS = """
dollar USD US$ U.S.$, aud AUD AU$ A$, cad CAD CA$ C$, hkd HKD HK$, twd TWD NTD NT$, nzd NZD NZ$,
sgd SGD S$, mxn MXN MX$, reais BRL R$, euro EUR, pound GBP, rupee INR Rs. Rs, yuan CNY RMB, yen JPY,
won KRW, ruble RUB, franc CHF SFr. Fr., krona kr. kr, sek SEK, nok NOK, dkk DKK, koruna CZK Kč,
zloty PLN złotych złote złoty zł, forint HUF, zar ZAR, lira TRY TL, dong VND, baht THB, shekel ILS,
hryvnia UAH, peso PHP, naira NGN, ringgit MYR RM, rupiah IDR Rp. Rp, aed AED, sar SAR, egp EGP,
pkr PKR, ron RON
"""
CURRENCIES = {sign: unit for unit, *signs in map(str.split, _SIGNS.split(",")) for sign in signs}
# Signs such as € are read as these words
_WORDS = "euro pound rupee yuan yen won ruble dong baht lira shekel hryvnia peso naira"
CURRENCIES |= {word: word for word in _WORDS.split()}

# Units in Russian, after the English word for each
_RUSSIAN_TABLE = """
ruble рубль рубля рублей руб р, kopek копейка копейки копеек коп, euro евро,
dollar доллар доллара долларов долл, percent процент процента процентов,
degree градус градуса градусов, mm мм миллиметр миллиметра миллиметров,
cm см сантиметр сантиметра сантиметров, dm дм дециметр дециметра дециметров,
m м метр метра метров, km км километр километра километров, km/h км/ч, m/s м/с,
mg мг миллиграмм миллиграмма миллиграммов, g г гр грамм грамма граммов,
kg кг килограмм килограмма килограммов, tonne т тонна тонны тонн,
ml мл миллилитр миллилитра миллилитров, liter л литр литра литров, ha га гектар гектара гектаров,
second с сек секунда секунды секунд, minute мин минута минуты минут, hour ч час часа часов,
day день дня дней сутки суток, week неделя недели недель, month мес месяц месяца месяцев,
year год года лет, people чел человек человека, items шт штука штуки штук, times раз раза,
ways способ способа способов, points точка точки точек, parts часть части частей
"""
RUSSIAN = {
    word: unit for unit, *words in map(str.split, _RUSSIAN_TABLE.split(",")) for word in words
}

MULTIPLES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "lakh": 10**5,
    "million": 10**6,
    "crore": 10**7,
}
MULTIPLES |= {"billion": 10**9, "trillion": 10**12}
"""Words after a number that multiply it."""

# Words after a number that change its value ("5 squared"), or say something else about it ("5 or
# more", "5 is wrong")
_NO_UNIT = re.compile(
    r"\b(?:or|and|nor|not|no|more|less|fewer|greater|than|over|under|above|below|least|most|only|both|between|to|from"
    r"|plus|minus|times? \w+|divided|remainders?|r|half|halves|thirds?|quarters?|fourths?|fifths?"
    r"|sixths?|(?:seven|eigh|nin|ten|twentie|hundred|thousand)ths?|tens|th|ths|powers?"
    r"|square ?roots?|roots?|score|scores|gross"
    r"|squared|cubed|factorials?|dozens?|infinity|choose|bases?|mod|modulus|sqrt|hundreds?|thousands?|\w*illions?"
    r"|lakhs?|crores?|myriads?|googols?|reciprocals?|wrong|incorrect|impossible|invalid|twice|thrice|doubled|tripled|halved"
    r"|inverses?|negatives?|true|false|undefined|zeros?|ones?|twos?|threes?|fours?|fives?|six|sixes|sevens?|eights?"
    r"|nines?|if|when|where|for|as|with|is|was|has|does|equals|exceeds|unless|perhaps|sometimes|otherwise|versus|vs"
    r"|this|thus|are|even|odd|[iexyz]|a\.?m|p\.?m|noon|midnight|north|south|east|west|theta|alpha|beta|gamma|pi)\b"
    r"|[\d=<>+^\\!()]"
)
# Other words count things if one of them is a plural: "5 apples", "5 cups of tea"
_PLURAL = re.compile(
    r"\b(?:[a-z'-]{2,}[^\Ws]s|people|persons?|men|women|child|children|adult|bacteria|sheep|units?)\b"
)


def unit(phrase: str) -> str | None:
    """Return the unit that `phrase`, in small letters, names; "" if it counts other things; None
    for no unit.

    >>> unit("square inches"), unit("cm^2"), unit("miles per hour")
    ('inch^2', 'centimeter^2', 'mile/hour')
    >>> unit("right triangles"), unit("or more")
    ('', None)
    """
    parts: list[str] = []
    joint, power = "*", ""
    for token in re.findall(r"/|\^-?\d|[^\s/^]+", phrase.replace("^ ", "^")):
        word = token.strip(".")
        name = _UNITS.get(word) or _UNITS.get(word.removesuffix("s"))
        if token in ("/", "per"):
            joint = "/"
        elif word in _POWERS:
            power = _POWERS[word]
        elif token[0] == "^" and parts:
            parts[-1] += token
        elif name:
            parts.append(joint + name + power)
            joint, power = "*", ""
        elif joint == "/" and parts and word.isalpha() and not _NO_UNIT.search(phrase):  # ml/dose
            return ""
        else:
            return _of_things(phrase)
    return (
        "".join(parts).removeprefix("*")
        if parts and parts[0][0] == "*" and not power
        else _of_things(phrase)
    )


def _of_things(phrase: str) -> str | None:
    phrase = re.sub(r"\^-?[23]$", "", phrase.replace("^ ", "^")).strip()  # units^2
    counts = _PLURAL.search(phrase) and not _NO_UNIT.search(phrase) and len(phrase.split()) <= 5
    return "" if counts else None


# "the interval", before a formula; "So the answer is", "The smallest such k is", "Answer:"
_THING = (
    r"the (?:constant |only "
    r")?(?:point|pair|triple|interval|function|value|number|set|line|plane|circle|curve|matrix|vector|polynomial)s?(?=\s*\})"
)
_ANNOUNCEMENT = (
    r"(?:(?:(?:so|thus|hence|therefore),?\s)?"
    r"(?:(?:the|there|it|this|we)\s[a-z' "
    r"]*?(?:\}\s*[a-z]\s*\\text\s*\{\s*)?(?:is|are|equals|have|get|obtain)"
    rf"(?: (?:located |attained )?at(?: the point)?| {_THING})?(?:\s*:|(?![a-z]))|{_THING}"
    r"|solutions?\s(?:is|are):?|[a-z' ]*[a-z]{4}:)|(?:so|thus|hence|therefore)\b,?)"
)
_PREFACE = re.compile(
    rf"\s*(?:\\text\{{\s*{_ANNOUNCEMENT}\s*(?:\}}|(?P<opened>\s))|{_ANNOUNCEMENT}(?=\s))",
    re.IGNORECASE,
)
# "The answer is not" announces something else.
_DENIAL = re.compile(
    r"\b(?:not|no|never|nor|neither|none|if|unless|wrong|incorrect|half|twice|depends|perhaps|except|or)\b|n't",
    re.IGNORECASE,
)

_TEXT = r"(?:\\text\s*\{\s*)?"
_DOMAIN = (
    r"(?:real|positive|non-?negative|natural|rational|complex|integers?|numbers?|reals|values?|of)"
)
# \mathbb{R}^+, \mathbb{N}^*, \mathbb{Z}_{\ge 0}
_SET = (
    # Atomic: what follows it in _FOR_ALL can match the same signs
    r"(?>\\mathbb\s*\{?\s*[A-Z]\s*\}?"
    r"(?:\s*[_^]\s*(?:[+*0]|\{\s*(?:[+*0]|\\ast|>\s*0|\\geq?(?:slant)?\s*[01])\s*\}))*)"
)
# "for all real x", "for every x \in \mathbb{R}^+"; with any other word, or a condition, it counts
_FOR_ALL = re.compile(
    rf"\s*[,;(]?\s*{_TEXT},?\s*(?:\\forall|(?:for|where)\s+(?:all|any|every|each))(?![a-zA-Z])"
    rf"(?:\b{_DOMAIN}\b|{_SET}|\\(?:in|text|R|reals)(?![a-zA-Z])|(?<![a-zA-Z])[a-zA-Z](?![a-zA-Z])|[\s{{}}+*^)]"
    r"|,(?!.*=))*?(?=$|[,;](?=.*=)|(?:\\text\s*\{\s*,?\s*)?(?:and|or)\b)"
    rf"|\s*(?:,|[,;]?\s*\()\s*[a-z]\s*\\in\s*{_SET}\s*\)?$"
)
# n^2 for all integers n, and 1+5k, k \in \mathbb{Z}
_WITHOUT_BOUNDS = re.compile(
    r"(?!.*(?:[<>]|\\[gln]eq?(?:slant)?(?![a-z])))"
    r".*(?:\bfor (?:all|every)\b|\\in\s*\\mathbb\s*\{?\s*Z\s*\}?[\s)]*$)",
    re.DOTALL,
)
# f(x)=1/x "for all x > 0", where the problem has said so
_DOMAIN_OF_FUNCTION = re.compile(
    rf"(\s*[a-zA-Z]\s*\(([a-z])\)\s*=[^=<>]*?)\s*[,;]?\s*"
    rf"(?:{_TEXT},?\s*(?:\\forall|for (?:all|every|any|each)|for(?=\s*\}}?\s*t\b))\s*\}}?|[,;]|\()"
    r"\s*\2\s*(?:>\s*0|(?<=[kmn])\s*\\geq?(?:slant)?\s*[01]|(?<=t)\s*\\geq?(?:slant)?\s*0|\\neq?\s*0|\\in\s*\(0,\s*\+?\\infty\s*\))\s*\)?"
)
# "where c is any constant", "where \lfloor x \rfloor denotes the greatest integer"
_EXPLANATION = re.compile(
    rf"\s*[,;(]?\s*{_TEXT},?\s*(?:where|for some)\s(?:(?![=<>]|\\[gl]e)[^.;])*"
    r"\b(?:denotes?|constants?|arbitrary)\b[^=<>]*$"
    rf"|\s*{_TEXT}\(\s*note\b.*\)\s*\}}?$"
    # "(all sign combinations)", but not "(mod p)" or "(if p is odd)"
    r"|\s*\\text\s*\{\s*\((?![^)]*\b(?:mod|modulo|base|if|not|or|order|than|except|when|where|only|million|thousand)\b)"
    r"[a-z']+(?:[\s,]+[a-z']+)+\)\s*\}$",
    re.IGNORECASE | re.DOTALL,
)
# "All integers n with n > 4", before a condition
_ALL_WITH = re.compile(
    rf"\s*{_TEXT}(?:all|any|every)\s(?:{_DOMAIN}\s|\\text\s*\{{|\}}|\s)*"
    r"(?:[a-zA-Z]\s*,?\s*(?:\\text\s*\{\s*)?(?:with|such that|satisfying|where|for "
    r"which)(?:\s*\}|\s))?\s*(?=(?:\d+\s*(?:<|\\le))?\s*[a-zA-Z]\s*(?:[<>]|\\[gl]e|\\in|\\ne)(?!\s*[a-zA-Z]{3}))",
    re.IGNORECASE,
)


def without_sentence(text: str) -> str:
    r"""Return `7` for `\text{The answer is }7` and `f(x)=2x` for `f(x)=2x \text{ for all } x`."""
    preface = _PREFACE.match(text)
    if preface and not _DENIAL.search(preface[0]):
        rest = text[preface.end() :].strip()
        text = rf"\text{{{rest}" if preface["opened"] else rest
    text = _EXPLANATION.sub("", text)
    function = _DOMAIN_OF_FUNCTION.fullmatch(text)
    text = function[1] if function else text
    if "=" in text or r"\pi" in text or _WITHOUT_BOUNDS.match(text):
        text = _FOR_ALL.sub("", text)
    return _ALL_WITH.sub("", text, count=1) or text


_CONDITION = re.compile(
    r"\b(?:if|unless|only|except|but|or|nor|when|whenever|provided|depend\w*|maybe|perhaps|yes|true|false"
    r"|for(?! (?:all|any|every|each)))\b"
)


def verdict_of(sentence: str) -> str | None:
    """Return yes, no, true or false for the word alone, or with a reason and no condition behind
    it; else None.

    >>> verdict_of("yes, because 2 is even"), verdict_of("yes, if 2 is even"), verdict_of("yes, 2")
    ('yes', None, None)
    """
    match = re.fullmatch(r"(yes|no|true|false)(?:\s*([,.;:(-])\s*(.*))?", sentence, re.DOTALL)
    verdict, sign, reason = match.groups(default="") if match else ("", "", "")
    # "yes, no" is no reason, "no, there is no such number" is one
    contradicts = verdict != "no" and re.search(r"\bnot?\b", reason)
    # "yes, 2" says more than yes, "yes. the sum is 2" and "no, it is odd, since 2 is prime" give
    # reasons
    claim = re.split(r"\b(?:because|since) ", reason)[0]
    more = re.search(r"\d", claim) and not (sign == "." and len(re.findall("[a-z]{2}", reason)) > 2)
    if (contradicts or more) and not reason.startswith(("because ", "since ", "as ")):
        return None
    return verdict if verdict and not _CONDITION.search(reason) else None


NO_SOLUTIONS = re.compile(
    r"(?:(?:(?:there (?:is|are|exists?)|(?:the )?(?:equation|system|problem) has) )?no "
    r"(?:(?:such|real|integer|positive|natural|possible|other|valid) )*"
    r"(?:solutions?|roots?|values?|numbers?|integers?|pairs?|triples?|functions?|polynomials?|[a-z])"
    r"(?: exists?| (?:is|are) possible)?|there (?:does|do) not exist (?:any )?such [a-z]+|none(?: "
    r"exists?)?|(?:the )?empty set|(?:it )?does not exist|dne|(?:the system is "
    r")?inconsistent)(?:,? (?:because|since|as)\b.*)?"
)
INFINITELY_MANY = re.compile(
    r"(?:there are )?(?:infinitely many|infinite(?:ly)?|an infinite number)"
    r"(?: (?!but|not|except|if|or\b)[a-z]+){0,5}"
)
