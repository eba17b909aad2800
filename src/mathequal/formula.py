"""Parse formulas in LaTeX with latex2sympy, the parser of math-verify, and evaluate them to many
digits.

Two formulas with variables are equal if they agree wherever both are real (if either has `i`:
wherever both are defined), at points of either sign. So square roots and logarithms of variables
count where they are real, as in answers whose variables are positive, while |x| and x differ. Odd
roots of negative numbers are real.

Importing this module takes most of a second. Parsing can hang, run out of memory or raise.
"""

import re
import zlib
from collections.abc import Callable, Mapping
from functools import lru_cache
from random import Random

import mpmath
import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from mpmath import mp
from sympy.core.function import AppliedUndef

from mathequal.text import rewrite, table
from mathequal.values import TRIGONOMETRY, Scalar, Value
from mathequal.words import FUNCTIONS, GREEK, decimal_places, plain_number

# Digits of a value at a point; of a comparison that must be certain; and the most that a comparison
# may take
DIGITS, MORE_DIGITS, MOST_DIGITS = 60, 1000, 20_000
CLOSE = mpmath.mpf(10) ** -30
_RANGES = ((1.1, 3), (0.1, 0.9), (3, 7), (-3, -1.1), (-0.9, -0.1), (-4, 4), (-4, 4), (-4, 4))
_RANGES += ((0, 1), (1, 2), (2, 3), (0, 9), (9, 99), (-1, 1), (-9, 9), (-2, -1)) * 4
"""The range of every variable at each point. Between -4 and 4 variables have different signs."""
_NEEDED, _ENOUGH = 3, 8
"""Points at which two formulas must agree if they are real in few places, and at which more need
not be tried."""
_STEPS = (sympy.floor, sympy.ceiling, sympy.Mod)
_GAMMA = (sympy.factorial, sympy.binomial, sympy.gamma)
_WHOLE_NUMBERS = (*range(1, 13), 25, 60, 100, 128, 729, 2024)
# Letters for whole numbers where a formula has steps: floor of n/2
_WHOLE = re.compile(r"[i-nKMN](?![a-zA-Z])")


def _rounded_down(x: mpmath.mpf) -> mpmath.mpf:
    """Return the floor of `x`; of a whole number that is off by an error of rounding, that
    number.
    """
    nearest = mpmath.nint(x)
    return nearest if abs(x - nearest) < mpmath.mpf(10) ** (-mp.dps // 2) else mpmath.floor(x)


# What computes the types of sympy that mpmath has no function of the same name for. The factor 1
# rounds a constant to the digits of the context.
_FUNCTIONS: dict[str, Callable] = {
    "Pi": lambda: mp.pi * 1,
    "Exp1": lambda: mp.e * 1,
    "ImaginaryUnit": lambda: mp.j * 1,
    "Add": lambda *terms: mpmath.fsum(terms),
    "Mul": lambda *factors: mpmath.fprod(factors),
    "Pow": lambda base, exponent: _power(base, exponent),
    "UnevaluatedExpr": lambda x: x,
    "Abs": abs,
    "Max": max,
    "Min": min,
    "Mod": lambda dividend, divisor: dividend - divisor * _rounded_down(dividend / divisor),
    "floor": _rounded_down,
    "ceiling": lambda x: -_rounded_down(-x),
    "conjugate": mpmath.conj,
}
_FUNCTIONS_OF_MPMATH = re.compile(
    "a?(?:sin|cos|tan|cot)h?|sec|csc|sech|csch|exp|log|factorial|binomial|gamma|sign|re|im"
)


class Undefined(Exception):
    """There is no finite value, or the formula cannot be read."""


Point = Mapping[str, mpmath.mpf]
"""The value of each variable, and under "" the number of the point."""


def value(
    expression: sympy.Expr, point: Point, steps: list[mpmath.mpc] | None = None
) -> mpmath.mpc:
    """Return the value at `point`, to the digits of mpmath's context. Raises Undefined.

    `steps` gets every number on the way.
    """
    try:
        number = mpmath.mpc(_value(expression, point, [] if steps is None else steps))
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise Undefined from error
    if not mpmath.isfinite(number):
        raise Undefined
    return number


def _value(expression: sympy.Expr, point: Point, steps: list[mpmath.mpc]) -> mpmath.mpc:
    arguments = [_value(argument, point, steps) for argument in expression.args]
    name = type(expression).__name__
    if isinstance(expression, sympy.Symbol):
        number = point[expression.name]
    elif isinstance(expression, sympy.Float):
        number = mpmath.mpf(str(expression))  # as it was written
    elif isinstance(expression, sympy.Rational):
        steps += [mpmath.mpf(int(expression.p)), mpmath.mpf(int(expression.q))]
        number = steps[-2] / steps[-1]
    # A number that depends on the name, the arguments and the point
    elif isinstance(expression, AppliedUndef):
        weighted_sum = sum(place * argument for place, argument in enumerate(arguments, start=1))
        number = mpmath.sin(weighted_sum + zlib.crc32(f"{name}{int(point.get('', 0))}".encode()))
    elif _FUNCTIONS_OF_MPMATH.fullmatch(name):
        number = getattr(mpmath, name)(*arguments)
    else:
        number = _FUNCTIONS[name](*arguments)  # any other function is a LookupError
    steps.append(number)
    return number


def _power(base: mpmath.mpc, exponent: mpmath.mpc) -> mpmath.mpc:
    """Return a power; of a negative number the real root, if there is one."""
    if base == 0:
        return mpmath.mpf(exponent == 0) if mpmath.re(exponent) >= 0 else 1 / base
    if mpmath.im(base) == 0 and mpmath.re(base) < 0 and mpmath.im(exponent) == 0:
        # Is the exponent a fraction with a small odd denominator?
        for denominator in (1, 3, 5, 7, 9, 11):
            numerator = mpmath.re(exponent) * denominator
            if abs(numerator - mpmath.nint(numerator)) < CLOSE:
                size = mpmath.power(-mpmath.re(base), mpmath.re(exponent))
                return -size if int(mpmath.nint(numerator)) % 2 else size
    return mpmath.power(base, exponent)


def points(variables: set[str]) -> list[Point]:
    """Return the points at which formulas are compared: the same for the same variables."""
    return [
        {name: mpmath.mpf(str(Random(f"{name}{number}").uniform(*limits))) for name in variables}
        | {"": mpmath.mpf(number)}
        for number, limits in enumerate(_RANGES)
    ]


def is_real(number: mpmath.mpc) -> bool:
    return abs(mpmath.im(number)) <= CLOSE * abs(number)


def real_value(expression: sympy.Expr, point: Point) -> mpmath.mpf:
    """Return the value at `point`. Raises Undefined if it is not real."""
    number = value(expression, point)
    if not is_real(number):
        raise Undefined("no real number")
    return mpmath.re(number)


def names(*expressions: sympy.Basic) -> set[str]:
    """Return the names of the variables."""
    return {symbol.name for expression in expressions for symbol in expression.free_symbols}


def same_values(first: sympy.Expr, second: sympy.Expr) -> bool:
    """Whether two formulas have the same values. Raises Undefined if they are numbers, and one
    has no value.
    """
    variables = names(first, second)
    if not variables:
        return _same_at(first, second, {}, MORE_DIGITS)[0]
    usual = points(variables)
    whole = [{name: mpmath.mpf(number) for name in variables} for number in _WHOLE_NUMBERS]
    whole += [
        {name: mpmath.mpf(Random(f"{name}{i}").randint(1, 12)) for name in variables}
        for i in range(9)
    ]
    if first.has(*_STEPS) or second.has(*_STEPS):
        halves = [{name: number / 2 for name, number in point.items()} for point in whole]
        between = [] if all(map(_WHOLE.match, variables)) else [halves, usual]
        return all(_agree(first, second, tried, len(tried)) for tried in (whole, *between))
    return _agree(first, second, [*usual, *whole], _ENOUGH)  # (-1)^n is real at whole numbers


def _agree(first: sympy.Expr, second: sympy.Expr, tried: list[Point], enough: int) -> bool:
    """Whether two formulas agree at the first points, up to `enough`, at which both are real."""
    agreeing_points = 0
    has_i = first.has(sympy.I) or second.has(sympy.I)
    is_slow = first.has(*_GAMMA) or second.has(*_GAMMA)  # takes seconds to many digits
    for point in tried:
        try:
            certainty = 0 if agreeing_points or is_slow else MORE_DIGITS
            same, is_real_point = _same_at(first, second, point, certainty)
        except Undefined:
            continue
        agreeing_points += same
        if agreeing_points == enough or (not same and (has_i or is_real_point)):
            return same
    return agreeing_points >= _NEEDED


def _same_at(
    first: sympy.Expr, second: sympy.Expr, point: Point, certainty: int
) -> tuple[bool, bool]:
    """Return whether two values agree, and whether both are real, as is every number on the way.

    Numbers on the way may be of very different sizes, as in 1 + 10^{-1000}. The digits reach from
    the largest to 30 digits below the smallest, and `certainty` digits further.
    """
    steps: list[mpmath.mpc] = []
    with mp.workdps(DIGITS):
        one, other = value(first, point, steps), value(second, point, steps)
        # Binary exponents
        sizes = [mpmath.mag(number) for number in steps if number and mpmath.isfinite(number)]
        smallest, largest = min(sizes, default=0), max(sizes, default=0)
        both_real = all(map(is_real, steps))
        is_close = abs(one - other) <= CLOSE * max(abs(one), abs(other))
        if not is_close and largest - smallest < DIGITS:  # 60 bits of the 60 digits
            return False, both_real
    digits = DIGITS + certainty + (largest - smallest) * 3 // 10
    if digits > MOST_DIGITS:
        raise Undefined("numbers of very different sizes")
    with mp.workdps(digits):
        difference = abs(value(first, point) - value(second, point))
        return bool(
            difference <= mpmath.ldexp(mpmath.mpf(10) ** (-30 - certainty), smallest)
        ), both_real


def same_zeros(first: sympy.Expr, second: sympy.Expr, positive: bool = False) -> bool:
    """Whether one formula is the other times a constant, which must be above zero if `positive`."""
    # That is so if first(x) * second(y) = first(y) * second(x) for all x and y.
    elsewhere: dict[sympy.Expr, sympy.Expr] = {}
    for symbol in first.free_symbols | second.free_symbols:
        elsewhere[symbol] = sympy.Symbol(f"{symbol.name} elsewhere", real=True)
    for call in first.atoms(AppliedUndef) | second.atoms(AppliedUndef):
        elsewhere[call] = sympy.Function(f"{call.func.__name__} elsewhere")(*call.args)
    both = first * second
    if same_values(both, sympy.Integer(0)):
        return False
    crossed = first * second.xreplace(elsewhere), second * first.xreplace(elsewhere)
    return same_values(*crossed) and (not positive or same_values(both, sympy.Abs(both)))


class _Parser(_Latex2Sympy):
    """Reads a formula with numbers side by side as a product, not as a sum."""

    def convert_postfix_list(self, arr: list, i: int = 0) -> sympy.Expr:
        factors = [self.convert_postfix(part) for part in arr[i:]]
        if not all(isinstance(factor, sympy.Expr) and not factor.is_Matrix for factor in factors):
            return super().convert_postfix_list(arr, i)
        return sympy.Mul(*factors, evaluate=False) if len(factors) > 1 else factors[0]


def _mixed_number(match: re.Match) -> str:
    r"""Return 1+\frac12 for 1\frac12 and 1 1/2, but a product for 2\frac31. 2 3/1 is neither."""
    is_proper = 0 < int(match[2]) < int(match[3])
    if not is_proper and "frac" not in match[0]:
        raise Undefined(match[0])
    joint = "+" if is_proper else r"\cdot "
    return rf"({match[1]}{joint}\frac{{{match[2]}}}{{{match[3]}}})"


_OPERAND = r"(?:\d+(?:\.\d+)?|\.\d+|\\frac\{[^{}]*\}\{[^{}]*\}|\\?[a-zA-Z]+|\([^()]*\)|\{[^{}]*\})"
_POWER = r"(?:\^(?:\d|\{\d+\}))?"
_NAMED = rf"\\(?:{FUNCTIONS})(?![a-zA-Z])(?:\s*_(?:\w|\{{\w+\}}))?\s*{_POWER}"
_VARIABLE = r"[a-zA-Z](?:_\{9\d\d\})?(?![a-zA-Z_])"
# What latex2sympy would misread, and what it is given instead. The order matters.
_REWRITES = table(
    # 1,000
    (r"(?<=\d),(?=\d{3})", ""),
    # 1 1/2 and 1\frac{1}{2}
    (r"(?<![\d.^_{/])(\d+)\s+(\d+)\s*/\s*(\d+)", _mixed_number),
    (r"(?<![\d.^_])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", _mixed_number),
    # 5/6\pi is \frac{5}{6}\pi
    (r"(?<![\d.^_/])(\d+)\s*/\s*(\d+)(?!\s*[\d.!^])", r"\\frac{\1}{\2}"),
    # 30\degree is a number of radians
    (rf"({_OPERAND})\s*\\degree", r"(\1\\cdot\\frac{\\pi}{180})"),
    # hyperbolic functions that latex2sympy does not know
    (rf"\\sech\s*({_POWER})\s*({_OPERAND})", r"(1/\\cosh\1(\2))"),
    (rf"\\csch\s*({_POWER})\s*({_OPERAND})", r"(1/\\sinh\1(\2))"),
    (rf"\\coth\s*({_POWER})\s*({_OPERAND})", r"(1/\\tanh\1(\2))"),
    (rf"\\cis\s*({_OPERAND})", r"(\\cos(\1)+i\\sin(\1))"),
    # \sin x\cdot y, \sin x(1+y), \sin^3 x/3 and \ln 2\cdot 3: the argument is x, or 2
    (
        rf"({_NAMED})\s*((?:\d+\s*)?(?![kmn]\s*\()(?:\\pi|{_VARIABLE}))(?=\s*(?:\\cdot|\())",
        r"\1(\2)",
    ),
    (rf"({_NAMED}(?<=[\d}}]))\s*({_VARIABLE})(?=\s*/)", r"\1(\2)"),
    # \cos 4\sqrt{6} t
    (rf"({_NAMED})\s*(\d*\s*\\sqrt\{{\d+\}}\s*(?!e){_VARIABLE})(?=\s*(?:$|[-+)}}]))", r"\1(\2)"),
    (r"(\\(?:ln|log)(?:\s*_(?:\w|\{\w+\}))?)\s*(\d+)(?=\s*\\cdot)", r"\1(\2)"),
    # \ln|x|/2 is half of \ln|x|
    (r"\\(ln|log)\s*\|([^|]*)\|", r"\\\1(|\2|)"),
    (r"\\percent", r"\\cdot\\frac{1}{100}"),
    # a determinant
    (
        r"\|\s*\\begin\{(array\}\{[lcr]+\}|[a-z]matrix\})(.*?)\\end\{\w+\}\s*\|",
        r"\\begin{vmatrix}\2\\end{vmatrix}",
    ),
    # [x+1] is (x+1), but the brackets of \sqrt[3]{x} stay
    (r"(?<!sqrt)\[", "("),
    (r"\](?!\{)", ")"),
)
# 5!!, 30' (minutes of arc), 12_3 and 3 4: latex2sympy would leave the mark or the space out
_UNREADABLE = re.compile(r"!!|[\d})]\s*'|(?<![\^\d])\d+\s*_|(?<![\d.^_])[\d.]*\d\s+\.?\d")
_OPERATIONS = (
    sympy.Sum,
    sympy.Product,
    sympy.Integral,
    sympy.Limit,
    sympy.Derivative,
    sympy.MatrixExpr,
)


@lru_cache(maxsize=512)
def expression(latex: str) -> sympy.Basic:
    """Return the expression or matrix of sympy that a formula is. Raises Undefined if it is
    none.
    """
    exact = plain_number(latex)
    if exact is not None:
        return sympy.Rational(exact.numerator, exact.denominator)
    if not TRIGONOMETRY.search(latex):
        # Outside trigonometric functions a degree sign is a unit
        latex = latex.replace(r"\degree", "")
    latex, atoms = _without_atoms(latex)
    latex = rewrite(latex, _REWRITES)
    if _UNREADABLE.search(latex):
        raise Undefined(latex)
    try:
        config = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
        parsed = _Parser(is_real=True, convert_degrees=False, config=config).parse(latex)
        if isinstance(parsed, sympy.Expr | sympy.MatrixExpr) and parsed.has(*_OPERATIONS):
            parsed = parsed.doit()
        if isinstance(parsed, sympy.MatrixExpr):  # a matrix with a factor
            parsed = parsed.as_explicit()
    except MemoryError:
        raise
    # Of many kinds, where a text is no formula or, as a matrix (1 2)^2, has no value
    except Exception as error:
        raise Undefined(latex) from error
    if not isinstance(parsed, sympy.Expr | sympy.MatrixBase) or parsed.has(sympy.zoo, sympy.nan):
        raise Undefined(latex)
    # x(2) is a product, x(0) is none
    while calls := [call for call in parsed.atoms(AppliedUndef) if 0 not in call.args]:
        products = {
            call: sympy.Symbol(call.func.__name__, real=True) * sympy.Mul(*call.args)
            for call in calls
        }
        parsed = parsed.xreplace(products)
    parsed = parsed.xreplace(
        {symbol: atoms.get(symbol.name, symbol) for symbol in parsed.free_symbols}
    )
    return sympy.ImmutableMatrix(parsed) if isinstance(parsed, sympy.MatrixBase) else parsed


# f(2), g'(x), h(f(1)) from the inside: what these three letters are applied to
_CALL = re.compile(r"(?<![a-zA-Z\\])(?<!_\{)([fgh]'*)\s*\(([^()]+)\)")
_SCRIPTS = r"(?:'|\s*_\s*(?:\w|\\[a-zA-Z]+|\{(?:[^{}]|\{[^{}]*\})*\}))*"
_ONE_LETTER = r"\s*(?:\\[a-zA-Z]+|[a-zA-Z])\s*"
# What is one variable: \frac{dy}{dx}, \dot{x}, \angle ABC, \alpha, x_{max}, y'
_ATOM = re.compile(
    rf"\\frac\{{\s*(?:d|\\partial)(?:\^\{{?\d\}}?)?{_ONE_LETTER}{_SCRIPTS}\}}"
    rf"\{{\s*(?:d|\\partial){_ONE_LETTER}(?:\^\{{?\d\}}?)?\}}"
    rf"|\\(?:bar|d?dot|hat|tilde|overline)\s*(?:\{{{_ONE_LETTER}{_SCRIPTS}\}}|{_ONE_LETTER}){_SCRIPTS}"
    rf"|\\angle\s*[A-Z]{{3}}(?![a-zA-Z_])|\\[a-zA-Z]+{_SCRIPTS}|[a-zA-Z]{_SCRIPTS}"
)
_DERIVATIVE = re.compile(r"\\frac\{\s*d(?:\^\{?(\d)\}?)?(.+?)\}\{\s*d|\\(d?)dot(.*)", re.DOTALL)


def _without_atoms(latex: str) -> tuple[str, dict[str, sympy.Expr]]:
    """Return a formula with names that latex2sympy cannot misread for variables and `f(...)`,
    and their meanings.
    """
    atoms: dict[str, sympy.Expr] = {"i": sympy.I}

    def name_for(meaning: sympy.Expr) -> str:
        name = f"q_{{{len(atoms) + 900}}}"
        atoms[name] = meaning
        return f" {name}"

    def name_for_match(match: re.Match) -> str:
        text = re.sub(r"[{}\s]", "", match[0])
        derivative = _DERIVATIVE.match(match[0])
        if derivative:  # dx/dt, \dot x and x' are one variable
            order, top, dots, below_dots = derivative.groups()
            text = re.sub(r"[{}\s]", "", top or below_dots) + "'" * (
                2 if dots == "d" else int(order or 1)
            )
        # Latex2sympy would transpose 2^T
        is_transpose = text == "T" and match.string[match.start() - 1] == "^"
        is_plain = (
            re.fullmatch(r"[a-zA-Z]", text)
            and not is_transpose
            and (text != "d" or re.search(r"\\int|\\frac\{d\}\{d", latex))
        )
        is_command = re.match(rf"\\(?!{GREEK}|bar|d?dot|hat|tilde|overline|angle|frac[d\\])", text)
        if is_plain or is_command or text.startswith("q_9"):
            return match[0]
        name = name_for(sympy.Symbol(text.removeprefix("\\"), real=True))
        return f"{{{name}}}" if match.string[match.start() - 1] in "^_" else name

    while call := _CALL.search(latex):
        argument = expression(call[2])
        inner = {
            symbol: atoms[symbol.name] for symbol in argument.free_symbols if symbol.name in atoms
        }
        name = name_for(sympy.Function(call[1])(argument.xreplace(inner)))
        latex = latex[: call.start()] + name + latex[call.end() :]
    return _ATOM.sub(name_for_match, latex), atoms


def parse(value: Value) -> sympy.Expr:
    """Return the expression of a formula. Raises Undefined for any other value and for what
    cannot be parsed.
    """
    parsed = expression(value.latex) if isinstance(value, Scalar) else None
    if not isinstance(parsed, sympy.Expr):
        raise Undefined(value)
    return parsed


# White space, but not between digits: 1 1/2 is not 11/2.
_NEEDLESS_SPACE = re.compile(r"(?<!\d)\s+|\s+(?![\d.])")


def same_value(first: Scalar, second: Scalar) -> bool:
    """Whether two formulas have one value, whatever their units."""
    texts = [_NEEDLESS_SPACE.sub("", scalar.latex) for scalar in (first, second)]
    is_one_choice = len(texts[0]) == 1 and texts[0].casefold() == texts[1].casefold()
    if texts[0] == texts[1] or is_one_choice or "" in texts:
        return "" not in texts
    one, other = expression(first.latex), expression(second.latex)
    if isinstance(one, sympy.MatrixBase) or isinstance(other, sympy.MatrixBase):
        return getattr(one, "shape", ()) == getattr(other, "shape", ()) and all(
            map(same_values, one, other)
        )
    places = decimal_places(first.latex), decimal_places(second.latex)
    decimals = min(places) if all(places) else max(places)
    return one == other or _is_rounded(one, other, decimals) or same_values(one, other)


def _is_rounded(first: sympy.Expr, second: sympy.Expr, decimals: int) -> bool:
    """Whether one number may be the other rounded to `decimals` places.

    That takes at least six places, and the same five leading digits: `0.333333` is a third, `0.333`
    is not.
    """
    if decimals < 6 or first.free_symbols or second.free_symbols:
        return False
    # Few digits tell most numbers apart, and many can take seconds.
    for digits in (DIGITS, MORE_DIGITS):
        with mp.workdps(digits):
            one, other = value(first, {}), value(second, {})
            difference = abs(one - other)
            is_near = difference * 2 * 10**decimals <= 1 and difference * 10**5 <= max(
                abs(one), abs(other)
            )
            if one.imag or other.imag or not is_near:
                return False
    return True


_DECIMAL = re.compile(r"[-+]?[\d,]*\.?\d+")


def rounded(first: Scalar, second: Scalar) -> bool:
    r"""Whether a number, written `\pi \approx 3.14` or the other way round, is the decimal to its
    last digit.

    The two must also be within 1 % of each other.
    """
    exact, decimal = (first, second) if _DECIMAL.fullmatch(second.latex) else (second, first)
    if not _DECIMAL.fullmatch(decimal.latex):
        return same_value(exact, decimal)
    with mp.workdps(DIGITS):
        exact_value, decimal_value = value(parse(exact), {}), value(parse(decimal), {})
        difference = abs(exact_value - decimal_value)
        half_last_place = mpmath.mpf(10) ** -decimal_places(decimal.latex) / 2
        return bool(difference <= min(half_last_place * (1 + CLOSE), abs(exact_value) / 100))
