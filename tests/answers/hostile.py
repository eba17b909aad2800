r"""Texts that a model could write and a grader must survive: huge numbers, deep nesting, megabytes,
code, odd signs.

Shares are chosen for a test that takes a minute: about 1 % of the texts can keep a worker busy for
as long as it may run, and about 1 % have hundreds of thousands of characters.
"""

from collections.abc import Callable, Iterator
from random import Random

MARKER = "hostilecanary"
"""Part of every text that is code: names the file it would make, and what to look for where code
is compiled."""
CANARIES = (MARKER, f"../{MARKER}", f"/tmp/{MARKER}")
"""Files, from the working directory, that exist only after such a text was run."""

REFERENCES = (
    *("5", "-3", "42", "1,500", "0.25", "12\\%", "\\$3.50", "90^\\circ", "2 \\text{ cm}", "25_8"),
    *(
        r"\frac{1}{2}",
        r"-\frac{3}{4}",
        r"2\sqrt{3}",
        r"\pi",
        r"3 + 4i",
        "x+1",
        "x^2 - 3x + 2",
        "y = 2x + 1",
    ),
    *(
        "(1,2)",
        "(-3, 0, 5)",
        r"[0,\infty)",
        r"(-\infty, 2) \cup (2, \infty)",
        "1, 2, 3",
        r"\{1, 2\}",
    ),
    *(r"\text{Evelyn}", r"\text{(B)}", r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", ""),
)


def hostile_answers(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """`count` pairs (reference, text), the same for the same seed."""
    random = Random(seed)
    weights, families = zip(*_FAMILIES, strict=True)
    for family in random.choices(families, weights, k=count):
        yield random.choice(REFERENCES), _wrapped(random, family(random))


def code_answers(seed: int, count: int) -> Iterator[str]:
    """Answers, without a box around them, that are Python or shell code; each contains MARKER."""
    random = Random(seed)
    for _ in range(count):
        yield random.choice((_python, _shell))(random)


def _wrapped(random: Random, answer: str) -> str:
    """`answer` in a box mostly, else in the tags of the format reward, in a box that never ends,
    or as it is.
    """
    wraps = (
        (8, "\\boxed{%s}"),
        (2, "So the answer is $\\boxed{%s}$."),
        (1, "<think>\\boxed{7}</think> <answer>\\boxed{%s}</answer>"),
        (1, "<think>hm</think><answer>%s</answer>"),
        (4, "\\boxed{7} or \\boxed{%s"),
        (1, "\\fbox {%s}}}"),
        (15, "%s"),
    )
    weights, forms = zip(*wraps, strict=True)
    return random.choices(forms, weights)[0].replace("%s", answer)


def _tower(random: Random) -> str:
    base, height = random.randint(2, 99), random.randint(3, 9)
    if random.random() < 0.2:
        return "**".join([str(base)] * height)
    text = "9"
    for _ in range(height):
        text = f"{base}^{{{text}}}"
    return text + random.choice(("", "+1", "-x", r"\cdot 2", " - " + text))


def _factorials(random: Random) -> str:
    if random.random() < 0.3:
        return f"{random.randint(10**5, 10**9)}!"
    text = str(random.randint(5, 20))
    for _ in range(random.randint(2, 4)):
        text = f"({text}!)"
    return text + random.choice(("", "!!", "+1", r"\cdot \frac{1}{3}"))


def _sums(random: Random) -> str:
    end = random.choice(
        (f"10^{{{random.randint(6, 12)}}}", str(random.randint(10**5, 10**12)), "9^{9^9}")
    )
    body = random.choice(("k!", "k^k", r"\frac{1}{k^k}", r"\sin(k)^{k}", r"\binom{k}{7}"))
    sign = random.choice((r"\sum", r"\prod"))
    return random.choice(
        (f"{sign}_{{k=1}}^{{{end}}} {body}", rf"\int_0^{{{end}}} \sin(x^x) e^{{-x^3}} \, dx")
    )


def _binomials(random: Random) -> str:
    top = 10 ** random.randint(3, 5)
    return rf"\binom{{{top}}}{{{top // random.randint(2, 9)}}}" + random.choice(
        ("", "+1", r" \pmod{7}")
    )


def _exponents(random: Random) -> str:
    exponent = 10 ** random.randint(2, 5)
    return (
        random.choice((r"3.5 \times 10^{%d}", r"10^{-%d}", r"1.5e%d", r"2^{%d} + 1", r"x^{%d}"))
        % exponent
    )


def _digits(random: Random) -> str:
    digits = "".join(random.choices("0123456789", k=random.choice((20, 80, 450, 5000))))
    return (
        random.choice(("%s", "0.%s", "1.%s", r"\frac{%s}{7}", "-%s", "%s_8", r"\sqrt{%s}")) % digits
    )


def _equations(random: Random) -> str:
    n = random.randint(3, 99)
    form = random.choice(
        (
            "x^{%d}+x+1=0",
            r"\sin(x^{%d}) = x",
            r"x^x = %d",
            "x = y = z = %d",
            "f(x+%d) = f(x)",
            "=%d=",
        )
    )
    return form % n


def _regions(random: Random) -> str:
    parts = [
        r"\{",
        r"\}",
        *"[](),12x:|",
        r"\cup",
        r"\cap",
        r"\setminus",
        r"\infty",
        r"-\infty",
        r"\emptyset",
    ]
    parts += [r"\le", r"\ge", "<", ">", r"\neq", r"\in", r"\mathbb{R}", r"\frac{1}{2}", r"\pm"]
    if random.random() < 0.5:
        return " ".join(random.choices(parts, k=random.randint(1, 60)))
    ends = [random.randint(-9, 9) for _ in range(2 * random.randint(1, 30))]
    return r" \cup ".join(f"({a}, {b}]" for a, b in zip(ends[::2], ends[1::2], strict=True))


def _soup(random: Random) -> str:
    parts = (
        r"\frac \sqrt \left( \right) \left\{ \right. { } { } ^ _ & \\ \begin{array} \end{matrix} "
        r"\text{ \boxed{ \over $"
    )
    parts += (
        r" \sum \int \lim_{x\to0} \log \sin ! ' '' \pm \mp \cdot \times / = < > , ; : | 1 2 3 10 "
        r"0.5 x y i e \pi"
    )
    parts += (
        r" \infty \theta \circ \% \$ # ~ \, \! \quad \mathrm{ \operatorname{ \overline{ \not "
        r"\limits \binom \choose"
    )
    return random.choice((" ", "")).join(random.choices(parts.split(), k=random.randint(1, 80)))


def _unbalanced(random: Random) -> str:
    text = random.choice(
        (r"\frac{1}{2}", r"\sqrt{x+1}", r"\left(1, 2\right)", r"\text{Evelyn}", r"\{1, \{2\}\}")
    )
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(text) + 1)
        text = (
            text[:at]
            + random.choice((r"{", "}", "\\", r"\{", "$", ""))
            + text[at + random.randint(0, 1) :]
        )
    return text


def _characters(random: Random) -> str:
    odd = (
        "５٥५𝟝⑤²½Ⅴ"
        + "\0\x07\x1b\x7f\x85\u2028"
        + "\u202e\u2066\u2069\u200b\ufeff"
        + "\ud800\udfff"
        + "e\u0301\u0336"
    )
    odd += "−–×·π∞°≤∪≠√∑∈∅ℝ\U0001f600\ufdfa\U000e0041"
    return "".join(random.choices(odd + "5, 12.3x{}\\", k=random.randint(1, 40)))


def _combining(random: Random) -> str:
    return random.choice("x5e") + "".join(
        random.choices("\u0301\u0336\u20dd\u0489\u200d\ufe0f", k=random.randint(1, 300))
    )


_PYTHON = (
    "__import__('os').system('touch PATH')",
    "open('PATH', 'w').write('x')",
    "open(r'PATH','w')+5",
    "eval(compile(\"open('PATH', 'w')\", '', 'exec'))",
    "exec(\"import pathlib; pathlib.Path('PATH').touch()\")",
    "(lambda: open('PATH', 'a'))()",
    f"[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '{MARKER}'][0]('PATH')",
    *(
        f"x.__class__.__mro__[-1].__subclasses__()[{i}]('touch PATH', shell=True)"
        for i in (1, 137, 400)
    ),
    "5 if __import__('subprocess').run(['touch', 'PATH']) else 0",
    "Symbol('x').func(__builtins__.open('PATH','w'))",
    "\\text{__import__('os').system('touch PATH')}",
    "x.subs({x: print(open('PATH', 'w'))})",
    "{{config.__class__.__init__.__globals__['os'].popen('touch PATH')}}",
    "'''\n+open('PATH','w')+'''",
)
_SHELL = (
    "; touch PATH",
    "$(touch PATH)",
    "`touch PATH`",
    "5 && touch PATH",
    "5 | tee PATH > PATH",
    "'; touch PATH; '",
)
_SHELL += ("\\$(touch PATH)\n touch PATH", ":(){ :|:& };: > PATH")
_TEX = (
    *(
        r"\input{/etc/passwd}",
        r"\write18{touch PATH}",
        r"\immediate\write18{touch PATH} 5",
        r"\def\x{\x\x}\x",
    ),
    *(
        r"\newwrite\f \openout\f=PATH \write\f{x}",
        r"\def\a{\b\b}\def\b{\a\a} \a",
        r"\newcommand{\x}{\x \x} \x",
    ),
    *(
        r"\loop\iftrue 1\repeat",
        r"\csname x\expandafter\endcsname",
        r"\directlua{os.execute('touch PATH')}",
    ),
    r"\includegraphics{/dev/zero}",
)


def _one_of(templates: tuple[str, ...]) -> Callable[[Random], str]:
    return lambda random: random.choice(templates).replace("PATH", random.choice(CANARIES))


_python, _shell, _tex = map(_one_of, (_PYTHON, _SHELL, _TEX))


def _formats(random: Random) -> str:
    parts = (
        "%s",
        "%n",
        "%1000000000d",
        "{0.__class__}",
        "{}",
        "{:>999999999}",
        "%(x)s",
        "${HOME}",
        r"\1",
        r"\g<0>",
    )
    return "".join(random.choices(parts, k=random.randint(1, 9)))


def _matrix(random: Random) -> str:
    rows, columns = random.choice(((2, 2), (5, 5), (2, 60), (40, 1)))
    kind, cell = (
        random.choice(("pmatrix", "bmatrix", "vmatrix", "array")),
        random.choice(("1", "0", "x", r"\frac12")),
    )
    body = r" \\ ".join(" & ".join([cell] * columns) for _ in range(rows))
    return rf"\begin{{{kind}}} {body} \end{{{kind}}}" + random.choice(("", "^{99}", "^{-1}", "^T"))


def _bait(random: Random) -> str:
    """What a careless regular expression takes quadratic or exponential time for; just short
    enough to be read.
    """
    unit = random.choice(
        (
            " ",
            ",",
            r"\text{",
            "1,",
            "1 1/",
            "{ ",
            r"\ ",
            r"\frac",
            "^{",
            " and ",
            "or",
            "a.m ",
            "1_{",
        )
    )
    unit = random.choice(
        (unit, r"\quad ", "$", ".", r"\%", "-", "=", "π", "∞", "x_", "cm ", r"\\boxed", "0.")
    )
    return (
        "5"
        + unit * (random.choice((30, 30, 100, 490)) // len(unit))
        + random.choice(("", "5", "}", "x", "!"))
    )


def _subscripts(random: Random) -> str:
    mark, depth = random.choice("_^"), random.choice((2, 10, 60, 120))
    return random.choice(("x", "5", "a_1")) + f"{mark}{{x" * depth + "}" * depth


def _nested(random: Random) -> str:
    opening, closing = random.choice(
        (("{", "}"), ("(", ")"), (r"\frac{1}{", "}"), (r"\sqrt{", "}"), (r"\left[", r"\right]"))
    )
    depth = random.choice((20, 60, 480 // len(opening + closing)))
    return opening * depth + "5" + closing * (depth - random.choice((0, 0, 1)))


def _empty(random: Random) -> str:
    parts = (
        "",
        " ",
        "\n",
        "\t",
        "\u3000",
        "\u00a0",
        "{}",
        "{ }",
        r"\,",
        r"\!",
        r"\quad ",
        "~",
        "$",
        "$$",
        r"\text{}",
    )
    return "".join(random.choices(parts, k=random.randint(0, 4)))


def _huge(random: Random) -> str:
    units = (
        ("{", "}"),
        (r"\boxed{", "}"),
        (r"\frac{1}{", "}"),
        ("(", ")"),
        (r"\left(", r"\right)"),
        (r"\boxed ", ""),
    )
    units += (
        ("}", ""),
        ("<answer>", "</answer>"),
        ("<think>", "</think>"),
        ("\\", ""),
        (r"\text{", ""),
    )
    unit, end = random.choice(units)
    if random.random() < 0.6:
        return unit * 100_000 + "5" + end * random.choice((100_000, 99_999, 0))
    return (
        random.choice(("1", "0", " ", ",", "x", "9^", "1 ", "\\,", "\ud800", "\0")) * 1_000_000
        + "5"
    )


_PHRASES = (
    *(
        "for all ",
        "when ",
        "if ",
        "x",
        "n=1, ",
        "the number is ",
        "is ",
        "=",
        "<",
        ",",
        ";",
        ".",
        "f(x)=",
        "(",
        ")",
    ),
    *(
        r"\forall ",
        r"\in ",
        r"\mathbb R ",
        r"\mathbb{Z}",
        "^+",
        "_{>0}",
        r"\text{",
        r"\text{ for all }",
        "and ",
        "or ",
    ),
    *(
        "floor(",
        r"\angle ",
        "ABC",
        "a:",
        r"\pi k",
        r"\{",
        "x|x=",
        r"\pm ",
        r"\begin{cases}",
        "&",
        r"\\\\",
        "(all ",
    ),
    *("or about ", "{", "}"),
)


def _phrases(random: Random) -> str:
    """What the patterns for words look for, over and over: a pattern with nested loops takes
    seconds on it.
    """
    chosen = random.sample(_PHRASES, random.randint(1, 4))
    text = random.choice((r"f(x)=x \text{ for all }", "x=5", ""))
    while len(text) < 480:
        text += random.choice(chosen)
    return text[:480] + random.choice(("", "!"))


_FAMILIES: list[tuple[float, Callable[[Random], str]]] = [
    *(
        (1, _tower),
        (1, _factorials),
        (0.25, _sums),
        (1, _huge),
        (0.5, _binomials),
        (2, _exponents),
        (8, _digits),
    ),
    *(
        (1, _equations),
        (2, _regions),
        (18, _soup),
        (8, _unbalanced),
        (15, _characters),
        (3, _combining),
        (4, _python),
    ),
    *(
        (3, _shell),
        (7, _tex),
        (7, _formats),
        (1, _matrix),
        (2.5, _bait),
        (0.25, _subscripts),
        (0.25, _nested),
    ),
    *((10, _empty), (4, _phrases)),
]
