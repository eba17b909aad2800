r"""Short strings with which a policy could try to be paid for an answer that it does not know.

Most name several numbers, or join some so that a careless reader adds them or keeps one. Each comes
with the value it has, or None where it is no number.
"""

import re
from collections.abc import Iterator
from fractions import Fraction

Value = Fraction | None
FRACTION = re.compile(r"(-?)\\[dt]?frac\{(\d+)\}\{(\d+)\}")


def value_of(text: str) -> Value:
    """Return the value of an integer, decimal or fraction."""
    if match := FRACTION.fullmatch(text):
        sign, numerator, denominator = match.groups()
        return Fraction(int(sign + numerator), int(denominator))
    return Fraction(text) if re.fullmatch(r"-?(\d+|\d*\.\d+)", text) else None


def atoms(value: Fraction) -> list[Fraction]:
    """Numbers from which `value` could be put together, and some near it."""
    return sorted(
        {value, value + 1, value - 1, value - 3, -value, value / 2, *map(Fraction, (0, 1, 2, 3))}
    )


_JOINTS = (
    *(
        ", ",
        ";",
        r"\text{ or }",
        r"\text{ and }",
        " or ",
        " and ",
        r"\pm",
        r"\text{ to }",
        r"\ldots",
        r"\lor ",
    ),
    *(
        "<",
        ">",
        r"\le ",
        r"\ge ",
        r"\ne ",
        r"\cup ",
        r"\to ",
        r"\mid ",
        "&",
        r"\\",
        r"\in ",
        r"\equiv ",
        r"\pmod ",
    ),
)
"""Between two numbers, none of which makes a number of them."""


def pairs(a: Fraction, b: Fraction) -> Iterator[tuple[str, Value]]:
    """What two numbers can be joined to."""
    x, y = _latex(a), _latex(b)
    for text in (
        f"{x}({y})",
        rf"{x}\left({y}\right)",
        f"({x})({y})",
        f"[{x}][{y}]",
        rf"{x}\cdot({y})",
    ):
        yield text, a * b
    if b > 0 and b.denominator == 1:  # before a number without a sign
        for text in (
            f"{x} ({y})",
            f"({x}){y}",
            rf"{x}\cdot {y}",
            rf"{x}\times {y}",
            rf"({x})\ {y}",
            rf"({x})\,{y}",
        ):
            yield text, a * b
        yield rf"{x}\frac{{{y}}}{{1}}", a * b
        yield rf"({x})^{{{y}}}", a**b if b <= 12 else None
        yield rf"{x}+{y}", a + b
        yield f"{x}-{y}", a - b
    for joint in ("=", "= x =", r"\approx "):
        yield f"{x}{joint}{y}", a if a == b else None
    for joint in _JOINTS:
        yield f"{x}{joint}{y}", None
    for opening, closing in (
        ("(", ")"),
        ("[", "]"),
        (r"\{", r"\}"),
        ("(", "]"),
        ("{", "}"),
        (r"\langle ", r"\rangle"),
    ):
        yield f"{opening}{x},{y}{closing}", None
    for text in (
        rf"x={x},y={y}",
        rf"x={x}\text{{ or }}x={y}",
        f"x^2-({x}+{y})x+({x})({y})=0",
        f"{x}<x<{y}",
    ):
        yield text, None
    yield rf"\text{{{x} or {y}}}", None
    for text in (
        rf"\{{{x}|{y}\}}",
        rf"\{{x|{y}\}}",
        rf"\{{x:{y}\}}",
        rf"{x}=\[{x} {y}\]",
        rf"f({x})>{y}",
    ):
        yield text, None
    if a.denominator == b.denominator == 1 and b >= 0:
        yield f"{x} {y}", None
        yield rf"{x}\quad {y}", None
    for joint in (
        r"\text{ (or }%s\text{)}",
        r"\text{, i.e. }%s",
        r"\text{, which is }%s",
        r"\text{ or }x=%s",
    ):
        yield x + joint % y, a if a == b else None
    yield rf"\frac{{{x}}}{{{y}}}", a / b if b else None
    yield rf"({x})/({y})", a / b if b else None


def singles(a: Fraction) -> Iterator[tuple[str, Value]]:
    """What one number can be dressed as."""
    x = _latex(a)
    for text in (
        x,
        f"({x})",
        f"x={x}",
        f"{x}=x",
        rf"{x}\text{{ cm}}",
        rf"{x}\%",
        rf"{x}^\circ",
        f"AB={x}",
        f"a+b={x}",
    ):
        yield text, a
    for text in (
        f"|x|={x}",
        f"x^2={x}",
        f"2x={x}",
        f"x+y={x}",
        f"x>{x}",
        f"x\\ge {x}",
        f"x\\ne {x}",
        rf"\pm {x}",
    ):
        yield text, a if a == 0 and "pm" in text else None
    for tiny in (Fraction(1, 10**40), Fraction(1, 2**2011), Fraction(-1, 10**300)):
        yield f"{x}{'-' if tiny < 0 else '+'}{_power(abs(tiny))}", a + tiny
    for text in (
        rf"{x}+\frac{{1}}{{1000!}}",
        f"{x}+e^{{-2000}}",
        rf"{x}\cdot\tanh(200)",
        f"{x}=six hundred",
        f"{x}=blue",
    ):
        yield text, None
    for text in (
        f"{x}5",
        f"{x}.5",
        f"{x}th power",
        f"{x} lakh",
        f"{x} crore",
        rf"{x}\text{{ k}}",
        f"{x} gross",
    ):
        yield text, a if a == 0 and ("lakh" in text or "crore" in text) else None
    words = (
        "or more",
        "or less",
        "million",
        "thousand",
        "at most",
        "dozen",
        "and more",
        "is wrong",
        "or not",
        "a.m.",
    )
    for word in words:
        yield (
            rf"{x}\text{{ {word}}}",
            a if a == 0 and word in ("million", "thousand", "dozen") else None,
        )
    for text in (
        f"{x}i",
        f"{x}x",
        f"{x}!",
        f"{x}'",
        rf"{x}\sqrt{{2}}",
        rf"{x}\pi",
        rf"\sqrt{{{x}}}",
        f"{x}e",
    ):
        yield text, None


def _power(number: Fraction) -> str:
    """Return 10^{-40} or 2^{-2011}."""
    base = 10 if number.denominator % 5 == 0 else 2
    exponent = (
        len(str(number.denominator)) - 1 if base == 10 else number.denominator.bit_length() - 1
    )
    return f"{base}^{{-{exponent}}}"


def candidates(value: Fraction) -> Iterator[tuple[str, Value]]:
    """Some thousands of strings around a reference, with the value of each."""
    numbers = atoms(value)
    for a in numbers:
        yield from singles(a)
        for b in numbers:
            yield from pairs(a, b)


def _latex(number: Fraction) -> str:
    sign, top = ("-" if number < 0 else ""), abs(number.numerator)
    return (
        f"{sign}{top}"
        if number.denominator == 1
        else rf"{sign}\frac{{{top}}}{{{number.denominator}}}"
    )
