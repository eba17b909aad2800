r"""Texts that a model could write and a grader must survive: huge numbers, deep nesting, megabytes,
code, odd signs, and signs repeated so that a regular expression with nested loops takes long.
"""

import json
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

MARKER = "hostilecanary"
"""Part of every text that is code: names the file it would make, and what to look for where code
is compiled."""
_LINES = Path(__file__).with_name("hostile.jsonl").read_text(encoding="utf-8").splitlines()
PAIRS: list[tuple[str, str]] = [tuple(json.loads(line).values()) for line in _LINES]
"""References and texts: about 1 % can keep a worker busy for as long as it may run."""
CODE = sorted({text for _, text in PAIRS if MARKER in text})

_UNITS = r"{ } \boxed{ } \frac{1}{ } ( ) \left( \right) <answer> </answer> \boxed - \ - \text{ -"


def huge_pairs() -> Iterator[tuple[str, str]]:
    """Pairs with texts of up to millions of characters."""
    units = _UNITS.split()
    for at, ends in product(range(0, len(units), 2), (100_000, 99_999, 0)):
        yield "5", units[at] * 100_000 + "5" + units[at + 1] * ends
    for sign in [*"10 ,x\ud800\0", "9^", "1 ", "\\,"]:
        yield "5", r"\boxed{" + sign * 1_000_000 + "5}"


_SIGNS = r"""
\ { } ( ) [ ] \{ \} $ \$ ^ _ & , ; : . ' " + - * / = < > | ! ? % ~ ` ° ² √ π ½ € — \\ \, \; \!
\quad ^\circ \frac \frac12 \dfrac{1}{2} \sqrt \sqrt{2} \text{ \text{cm} \mathrm{m} \mathbf{
\mathbb{R} \mathbb{Z} \boxed{ \boxed \fbox{ \left( \right) \left. \begin{cases} \end{cases}
\begin{pmatrix} \end{pmatrix} \pi \infty \cup \cap \setminus \in \le \ge \ne \lt \approx \pm \mp
\cdot \times \div \angle \triangle \overline{ \bar \dot \vec \sin \cos \ln \log \log_2 \max \min
\lfloor \rfloor \langle \rangle \forall \equiv \pmod \binom \choose \degree \prime \mid \to
\Rightarrow \circ \reals <answer> </answer> <think> </think> x y n m a b c k t e i f(x) f(x)= x=
y= A B AB ABC C_1 x_1 a_{n+1} (x,y) x^2 dx d 0 1 2 3 12 1,000 0.5 .5 1. 1e5 1/2 1_2 2^{3} -1 (1,2)
{,} 1:2 12:30 and or the is are for all where when if answer about only cm m km kg hours per
square feet dollars million two twenty half first th st and, or, (all real integer integers
positive no solution such that yes no option permutations of base mod floor( sqrt( ext{ rac{
degrees percent p.m. so thus hence we have point
"""
_TOKENS = [*_SIGNS.split(), " ", "  ", "\n", "\t"]


def repeated_tokens(seed: int, count: int, longest: int = 480) -> Iterator[str]:
    """Yield `count` texts, the same for the same seed: one to four of the grader's own signs 5 to
    60 times, mostly between others.
    """
    random = Random(seed)
    for _ in range(count):
        tokens = random.choices(_TOKENS, k=random.choice((1, 1, 2, 2, 3, 4)))
        unit = random.choice(("", "", " ")).join(tokens) + random.choice(("", " "))
        two = " ".join(random.choices(_TOKENS, k=2))
        before = random.choice(("", "", "", random.choice(_TOKENS), two))
        end = "".join(random.choices(_TOKENS, k=2))
        behind = random.choice(("", "", end[:1], "!", "=5", "x=5", "x", end, "}"))
        yield (before + unit * random.randint(5, 60))[:longest] + behind
