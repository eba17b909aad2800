"""Parse formulas in LaTeX with latex2sympy, the parser of math-verify.

Importing this module takes most of a second. Parsing can hang, run out of memory or raise.
"""

import re
from functools import lru_cache

import sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig, _Latex2Sympy
from sympy.core.function import AppliedUndef

from mathequal.names import FUNCTIONS, GREEK, TRIGONOMETRY
from mathequal.numeric import Undefined
from mathequal.rewrites import rewrite, table
from mathequal.values import Scalar, Value


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
    # 1\frac{1}{2} and 1 1/2
    (r"(?<![\d.^_])(\d+)\s*\\frac\{(\d+)\}\{(\d+)\}", _mixed_number),
    (r"(?<![\d.^_{/])(\d+)\s+(\d+)\s*/\s*(\d+)", _mixed_number),
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
    (rf"({_NAMED})\s*((?:\d+\s*)?(?![kmn]\s*\()(?:\\pi|{_VARIABLE}))(?=\s*(?:\\cdot|\())", r"\1(\2)"),
    (rf"({_NAMED}(?<=[\d}}]))\s*({_VARIABLE})(?=\s*/)", r"\1(\2)"),
    # \cos 4\sqrt{6} t
    (rf"({_NAMED})\s*(\d*\s*\\sqrt\{{\d+\}}\s*(?!e){_VARIABLE})(?=\s*(?:$|[-+)}}]))", r"\1(\2)"),
    (r"(\\(?:ln|log)(?:\s*_(?:\w|\{\w+\}))?)\s*(\d+)(?=\s*\\cdot)", r"\1(\2)"),
    # \ln|x|/2 is half of \ln|x|
    (r"\\(ln|log)\s*\|([^|]*)\|", r"\\\1(|\2|)"),
    (r"\\percent", r"\\cdot\\frac{1}{100}"),
    # a determinant
    (r"\|\s*\\begin\{(array\}\{[lcr]+\}|[a-z]matrix\})(.*?)\\end\{\w+\}\s*\|", r"\\begin{vmatrix}\2\\end{vmatrix}"),
    # [x+1] is (x+1), but the brackets of \sqrt[3]{x} stay
    (r"(?<!sqrt)\[", "("),
    (r"\](?!\{)", ")"),
)
# 5!!, 30' (minutes of arc), 12_3 and 3 4: latex2sympy would leave the mark or the space out
_UNREADABLE = re.compile(r"!!|[\d})]\s*'|(?<![\^\d])\d+\s*_|(?<![\d.^_])[\d.]*\d\s+\.?\d")
_OPERATIONS = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Limit, sympy.Derivative, sympy.MatrixExpr)


@lru_cache(maxsize=512)
def expression(latex: str) -> sympy.Basic:
    """Return the expression or matrix of sympy that a formula is. Raises Undefined if it is none."""
    if not TRIGONOMETRY.search(latex):
        latex = latex.replace(r"\degree", "")  # outside trigonometric functions a degree sign is a unit
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
    except Exception as error:  # of many kinds, where a text is no formula or, as a matrix (1 2)^2, has no value
        raise Undefined(latex) from error
    if isinstance(parsed, sympy.MatrixBase):
        meanings = {symbol: atoms.get(symbol.name, symbol) for symbol in parsed.free_symbols}
        return sympy.ImmutableMatrix(parsed.xreplace(meanings))
    if not isinstance(parsed, sympy.Expr) or parsed.has(sympy.zoo, sympy.nan):
        raise Undefined(latex)
    # x(2) is a product, x(0) is none
    while calls := [call for call in parsed.atoms(AppliedUndef) if 0 not in call.args]:
        products = {call: sympy.Symbol(call.func.__name__, real=True) * sympy.Mul(*call.args) for call in calls}
        parsed = parsed.xreplace(products)
    meanings = {symbol: atoms.get(symbol.name, symbol) for symbol in parsed.free_symbols}
    return parsed.xreplace(meanings)


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
    """Return a formula with names that latex2sympy cannot misread for variables and `f(...)`, and their meanings."""
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
            text = re.sub(r"[{}\s]", "", top or below_dots) + "'" * (2 if dots == "d" else int(order or 1))
        is_transpose = text == "T" and match.string[match.start() - 1] == "^"  # latex2sympy would transpose 2^T
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
        inner = {symbol: atoms[symbol.name] for symbol in argument.free_symbols if symbol.name in atoms}
        name = name_for(sympy.Function(call[1])(argument.xreplace(inner)))
        latex = latex[: call.start()] + name + latex[call.end() :]
    return _ATOM.sub(name_for_match, latex), atoms


def parse(value: Value) -> sympy.Expr:
    """Return the expression of a formula. Raises Undefined for any other value and for what cannot be parsed."""
    parsed = expression(value.latex) if isinstance(value, Scalar) else None
    if not isinstance(parsed, sympy.Expr):
        raise Undefined(value)
    return parsed
