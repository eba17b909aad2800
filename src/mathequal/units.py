"""Units of measurement: which words are one, and which of them are the same."""

import re

_SAME = {
    "degree": "degrees deg",
    "radian": "radians rad",
    "percent": "",
    "inch": "inches in",
    "foot": "feet ft",
    "yard": "yards yd",
    "mile": "miles mi",
    "mm": "millimeter millimeters millimetre millimetres",
    "cm": "centimeter centimeters centimetre centimetres",
    "m": "meter meters metre metres",
    "km": "kilometer kilometers kilometre kilometres",
    "second": "seconds sec secs s",
    "minute": "minutes min mins",
    "hour": "hours hr hrs h",
    "day": "days",
    "week": "weeks",
    "month": "months",
    "year": "years",
    "dollar": "dollars usd",
    "cent": "cents",
    "euro": "euros",
    "pound": "pounds lb lbs",
    "ounce": "ounces oz",
    "gram": "grams g",
    "kg": "kilogram kilograms",
    "liter": "liters litre litres l",
    "ml": "milliliter milliliters",
    "gallon": "gallons",
    "mile/hour": "mph",
    "km/hour": "kph kmh",
}
_KNOWN = {word: unit for unit, words in _SAME.items() for word in (unit, *words.split())}
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}

MULTIPLES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Powers of ten."""

# What follows a number as a part of its value, or says something else about it.
_NO_UNIT = re.compile(
    r"\b(?:or|and|nor|not|no|more|less|fewer|greater|than|over|under|above|below|least|most|only|both|between|to|from"
    r"|plus|minus|times? \w+|divided|remainder|r|half|halves|thirds?|quarters?|fourths?|fifths?|sixths?"
    r"|(?:seven|eigh|nin|ten|hundred|thousand)ths?|tens"
    r"|squared|cubed|factorial|dozens?|infinity|choose|base|mod|sqrt|root|hundreds?|thousands?|\w*illions?"
    r"|wrong|incorrect|impossible|invalid|twice|thrice|doubled|tripled|halved|inverse"
    r"|true|false|undefined|zero|one|two|three|four|five|six|seven|eight|nine|ten|if|when|where|for|as|with|is|are"
    r"|even|odd|negative|positive|[iexyz]|a\.?m|p\.?m|noon|midnight|north|south|east|west|theta|alpha|beta|gamma|pi)\b"
    r"|[\d=<>+^\\!()]"
)


def unit(phrase: str, power: str = "") -> str | None:
    """The unit that `phrase`, in small letters, names; "" if it is one that is not in the table; None if it is none.

    >>> unit("square inches"), unit("cm", "2"), unit("miles per hour"), unit("right triangles"), unit("or more")
    ('inch^2', 'cm^2', 'mile/hour', '', None)
    """
    if _NO_UNIT.search(phrase) or len(phrase.split()) > 5:
        return None
    amount, *per = re.split(r"\s*(?:/|\bper\b)\s*", phrase, maxsplit=1)
    if per:
        known = [name for name in (unit(amount), unit(per[0], power)) if name]
        return "/".join(known) if len(known) == 2 else ""
    words = phrase.replace(".", "").split()
    if words and words[0] in _POWERS:
        power = _POWERS[words.pop(0)]
    if len(words) != 1 or words[0] not in _KNOWN:
        return ""
    return _KNOWN[words[0]] + (f"^{power}" if power else "")
