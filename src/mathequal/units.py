"""Which words are units of measurement. Their sizes come from the library pint, in symbolic.py."""

import re

# Units by their names in pint, each with its other spellings in small letters. A plural with -s needs no entry.
_TABLE = """
degree deg, radian rad, arcsecond, percent pct percentage, dollar usd, cent, euro eur, rupee rs inr, yuan rmb cny,
inch in inches, foot ft feet, yard yd, mile mi, acre, hectare ha, knot, mile/hour mph, kilometer/hour kph kmh kmph,
second sec s, minute min, hour hr h,
day, week, month mo, year yr, decade, century centuries, pound lb gbp, ounce oz, ton, tonne, gallon gal, quart qt, pint,
cup, tablespoon, teaspoon, angstrom å, erg, atmosphere atm, bar, calorie cal, joule j, watt w, volt v, newton n,
hertz hz, pascal pa, kelvin, celsius, fahrenheit, mole mol, ampere amp, coulomb, ohm, tesla, electron_volt ev,
liter litre l, meter metre m, gram gm g, byte, bit
"""
_SPELLINGS = {words.split()[0]: words.split() for words in _TABLE.split(",")}
_PREFIXES = {"milli": "m", "centi": "c", "kilo": "k", "micro": "μ", "nano": "n", "deci": "d", "pico": "p"}
_WITH_PREFIX = ("meter", "gram", "liter", "second", "joule", "watt", "volt", "newton", "pascal", "hertz", "calorie")
_UNITS = {word: unit for unit, words in _SPELLINGS.items() for word in words}
for _prefix, _sign in _PREFIXES.items():
    for _unit in _WITH_PREFIX:
        for _word in _SPELLINGS[_unit]:
            _UNITS.setdefault((_prefix if len(_word) > 3 else _sign) + _word, _prefix + _unit)
_POWERS = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}

MULTIPLES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7}
MULTIPLES |= {"billion": 10**9, "trillion": 10**12}
"""Words after a number that multiply it."""

# Words after a number that change its value ("5 squared"), or say something else about it ("5 or more", "5 is wrong")
_NO_UNIT = re.compile(
    r"\b(?:or|and|nor|not|no|more|less|fewer|greater|than|over|under|above|below|least|most|only|both|between|to|from"
    r"|plus|minus|times? \w+|divided|remainders?|r|half|halves|thirds?|quarters?|fourths?|fifths?|sixths?"
    r"|(?:seven|eigh|nin|ten|twentie|hundred|thousand)ths?|tens|th|ths|powers?|square ?roots?|roots?|score|scores|gross"
    r"|squared|cubed|factorials?|dozens?|infinity|choose|bases?|mod|modulus|sqrt|hundreds?|thousands?|\w*illions?"
    r"|lakhs?|crores?|myriads?|googols?|reciprocals?|wrong|incorrect|impossible|invalid|twice|thrice|doubled|tripled|halved"
    r"|inverses?|negatives?"
    r"|true|false|undefined|zeros?|ones?|twos?|threes?|fours?|fives?|six|sixes|sevens?|eights?|nines?|if|when|where|for"
    r"|as|with|is|was|has|does|equals|exceeds|unless|perhaps|sometimes|otherwise|plus|versus|vs|this|thus|are|even|odd"
    r"|[iexyz]|a\.?m|p\.?m|noon|midnight|north|south|east|west|theta|alpha|beta|gamma|pi)\b"
    r"|[\d=<>+^\\!()]"
)
# Other words count things if one of them is a plural: "5 apples", "5 cups of tea"
_PLURAL = re.compile(r"\b(?:[a-z'-]{2,}[^\Ws]s|people|persons?|men|women|child|children|adult|bacteria|sheep|units?)\b")


def unit(phrase: str) -> str | None:
    """Return the unit that `phrase`, in small letters, names; "" if it counts other things; None for no unit.

    >>> unit("square inches"), unit("cm^2"), unit("miles per hour"), unit("right triangles"), unit("or more")
    ('inch^2', 'centimeter^2', 'mile/hour', '', None)
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
    return "".join(parts).removeprefix("*") if parts and parts[0][0] == "*" and not power else _of_things(phrase)


def _of_things(phrase: str) -> str | None:
    phrase = re.sub(r"\^-?[23]$", "", phrase.replace("^ ", "^")).strip()  # units^2
    counts = _PLURAL.search(phrase) and not _NO_UNIT.search(phrase) and len(phrase.split()) <= 5
    return "" if counts else None
