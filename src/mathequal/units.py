"""Which words are units of measurement, and which units are the same."""

import re

# Each unit by the name that it is compared by, and its other spellings
_SPELLINGS = {
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
_UNITS = {word: unit for unit, spellings in _SPELLINGS.items() for word in (unit, *spellings.split())}
_POWERS = {"square": "2", "sq": "2", "cubic": "3", "cu": "3"}


MULTIPLES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
"""Words after a number that multiply it by a power of ten, and the power."""

# Words after a number that are no unit: they change its value ("5 squared"), or say something else about it ("5 or
# more", "5 is wrong"). An unknown word that is not listed here is taken for a unit ("5 apples").
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
    """Return the unit that `phrase`, in small letters, names; "" for one that is not in the table; None for no unit.

    >>> unit("square inches"), unit("cm", "2"), unit("miles per hour"), unit("right triangles"), unit("or more")
    ('inch^2', 'cm^2', 'mile/hour', '', None)
    """
    if _NO_UNIT.search(phrase) or len(phrase.split()) > 5:
        return None
    amount, *divisor = re.split(r"\s*(?:/|\bper\b)\s*", phrase, maxsplit=1)
    if divisor:
        amount_unit, divisor_unit = unit(amount), unit(divisor[0], power)
        return f"{amount_unit}/{divisor_unit}" if amount_unit and divisor_unit else ""
    words = phrase.replace(".", "").split()
    if words and words[0] in _POWERS:
        power = _POWERS[words.pop(0)]
    if len(words) != 1 or words[0] not in _UNITS:
        return ""
    return _UNITS[words[0]] + (f"^{power}" if power else "")
