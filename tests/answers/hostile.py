r"""Texts that a model could write and a grader must survive: huge numbers, deep nesting, megabytes,
code, odd signs, and signs repeated so that a regular expression with nested loops takes long.

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

REFERENCES = r"""5|-3|42|1,500|0.25|12\%|\$3.50|90^\circ|2 \text{ cm}|25_8|\frac{1}{2}|-\frac{3}{4}
2\sqrt{3}|\pi|3 + 4i|x+1|x^2 - 3x + 2|y = 2x + 1|(1,2)|(-3, 0, 5)|[0,\infty)
(-\infty, 2) \cup (2, \infty)|1, 2, 3|\{1, 2\}|\text{Evelyn}|\text{(B)}
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}|""".replace("\n", "|").split("|")


def hostile_answers(seed: int, count: int) -> Iterator[tuple[str, str]]:
    """`count` pairs (reference, text), the same for the same seed."""
    random = Random(seed)
    weights, families = zip(*_FAMILIES, strict=True)
    for family in random.choices(families, weights, k=count):
        # In a box mostly, else in the tags of the format reward, in a box that never ends, or bare
        wraps, shares = zip(*_WRAPS.items(), strict=True)
        wrap, reference = random.choices(wraps, shares)[0], random.choice(REFERENCES)
        yield reference, wrap.replace("%s", family(random))


_WRAPS = {r"\boxed{%s}": 8, r"So the answer is $\boxed{%s}$.": 2, r"\fbox {%s}}}": 1, "%s": 15}
_WRAPS |= {r"<think>\boxed{7}</think> <answer>\boxed{%s}</answer>": 1}
_WRAPS |= {"<think>hm</think><answer>%s</answer>": 1, r"\boxed{7} or \boxed{%s": 4}


def code_answers(seed: int, count: int) -> Iterator[str]:
    """Answers, without a box around them, that are Python or shell code; each contains MARKER."""
    random = Random(seed)
    for _ in range(count):
        yield random.choice((_python, _shell))(random)


def _tower(random: Random) -> str:
    base, height = random.randint(2, 99), random.randint(3, 9)
    if random.random() < 0.2:
        return "**".join([str(base)] * height)
    text = "9"
    for _ in range(height):
        text = f"{base}^{{{text}}}"
    return text + random.choice(("", "+1", "-x", r"\cdot 2", " - " + text))


def _factorials(random: Random) -> str:
    text = str(random.choice((random.randint(10**5, 10**9), random.randint(5, 20))))
    for _ in range(random.randint(2, 4)):
        text = f"({text}!)"
    return text + random.choice(("", "!!", "+1", r"\cdot \frac{1}{3}"))


def _sums(random: Random) -> str:
    ends = (f"10^{{{random.randint(6, 12)}}}", str(random.randint(10**5, 10**12)), "9^{9^9}")
    end, sign = random.choice(ends), random.choice((r"\sum", r"\prod"))
    body = random.choice(("k!", "k^k", r"\frac{1}{k^k}", r"\sin(k)^{k}", r"\binom{k}{7}"))
    integral = rf"\int_0^{{{end}}} \sin(x^x) e^{{-x^3}} \, dx"
    return random.choice((f"{sign}_{{k=1}}^{{{end}}} {body}", integral))


def _numbers(random: Random) -> str:
    """Large numbers in many forms."""
    digits = "".join(random.choices("0123456789", k=random.choice((20, 80, 450, 5000))))
    if random.random() < 0.7:
        text = r"%s|0.%s|1.%s|\frac{%s}{7}|-%s|%s_8|\sqrt{%s}"
        return random.choice(text.split("|")).replace("%s", digits)
    power, n = 10 ** random.randint(2, 5), random.randint(3, 99)
    text = r"3.5 \times 10^{P}|10^{-P}|1.5eP|2^{P} + 1|x^{P}|\binom{P}{7} \pmod{7}|x^{N}+x+1=0"
    text += r"|\sin(x^{N}) = x|x^x = N|x = y = z = N|f(x+N) = f(x)|=N=|\binom{P}{N}+1"
    return random.choice(text.split("|")).replace("P", str(power)).replace("N", str(n))


_REGIONS = r"\{ \} [ ] ( ) , 1 2 x : | \cup \cap \setminus \in \infty -\infty \emptyset \le \ge < >"
_REGIONS += r" \neq \mathbb{R} \frac{1}{2} \pm"
_SOUP = r"""\frac \sqrt \left( \right) \left\{ \right. { } { } ^ _ & \\ \begin{array} \end{matrix}
\text{ \boxed{ \over $ \sum \int \lim_{x\to0} \log \sin ! ' '' \pm \mp \cdot \times / = < > , ; : |
1 2 3 10 0.5 x y i e \pi \infty \theta \circ \% \$ # ~ \, \! \quad \mathrm{ \operatorname{
\overline{ \not \limits \binom \choose"""


def _regions(random: Random) -> str:
    if random.random() < 0.5:
        return " ".join(random.choices(_REGIONS.split(), k=random.randint(1, 60)))
    ends = [random.randint(-9, 9) for _ in range(2 * random.randint(1, 30))]
    return r" \cup ".join(f"({a}, {b}]" for a, b in zip(ends[::2], ends[1::2], strict=True))


def _soup(random: Random) -> str:
    return random.choice((" ", "")).join(random.choices(_SOUP.split(), k=random.randint(1, 80)))


def _unbalanced(random: Random) -> str:
    whole = r"\frac{1}{2}|\sqrt{x+1}|\left(1, 2\right)|\text{Evelyn}|\{1, \{2\}\}"
    text = random.choice(whole.split("|"))
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(text) + 1)
        added = random.choice((r"{", "}", "\\", r"\{", "$", ""))
        text = text[:at] + added + text[at + random.randint(0, 1) :]
    return text


_ODD = "５٥५𝟝⑤²½Ⅴ\0\x07\x1b\x7f\x85\u2028\u202e\u2066\u2069\u200b\ufeff\ud800\udfffe\u0301\u0336"
_ODD += "−–×·π∞°≤∪≠√∑∈∅ℝ\U0001f600\ufdfa\U000e00415, 12.3x{}\\"


def _characters(random: Random) -> str:
    if random.random() < 0.8:
        return "".join(random.choices(_ODD, k=random.randint(1, 40)))
    combining = random.choices("\u0301\u0336\u20dd\u0489\u200d\ufe0f", k=random.randint(1, 300))
    return random.choice("x5e") + "".join(combining)


_PYTHON = rf"""__import__('os').system('touch PATH')
open('PATH', 'w').write('x')
open(r'PATH','w')+5
eval(compile("open('PATH', 'w')", '', 'exec'))
exec("import pathlib; pathlib.Path('PATH').touch()")
(lambda: open('PATH', 'a'))()
[c for c in ().__class__.__base__.__subclasses__() if c.__name__ == '{MARKER}'][0]('PATH')
x.__class__.__mro__[-1].__subclasses__()[137]('touch PATH', shell=True)
x.__class__.__mro__[-1].__subclasses__()[400]('touch PATH', shell=True)
5 if __import__('subprocess').run(['touch', 'PATH']) else 0
Symbol('x').func(__builtins__.open('PATH','w'))
\text{{__import__('os').system('touch PATH')}}
x.subs({{x: print(open('PATH', 'w'))}})
{{{{config.__class__.__init__.__globals__['os'].popen('touch PATH')}}}}
'''N+open('PATH','w')+'''"""
_SHELL = r"""; touch PATH
$(touch PATH)
`touch PATH`
5 && touch PATH
5 | tee PATH > PATH
'; touch PATH; '
\$(touch PATH)N touch PATH
:(){ :|:& };: > PATH"""
_TEX = r"""\input{/etc/passwd}
\immediate\write18{touch PATH} 5
\def\x{\x\x}\x
\newwrite\f \openout\f=PATH \write\f{x}
\def\a{\b\b}\def\b{\a\a} \a
\loop\iftrue 1\repeat
\csname x\expandafter\endcsname
\directlua{os.execute('touch PATH')}
\includegraphics{/dev/zero}"""


def _one_of(templates: str) -> Callable[[Random], str]:
    lines = [line.replace("N", "\n") for line in templates.splitlines()]
    return lambda random: random.choice(lines).replace("PATH", random.choice(CANARIES))


_python, _shell, _tex = map(_one_of, (_PYTHON, _SHELL, _TEX))


def _formats(random: Random) -> str:
    parts = r"%s %n %1000000000d {0.__class__} {} {:>999999999} %(x)s ${HOME} \1 \g<0>"
    return "".join(random.choices(parts.split(), k=random.randint(1, 9)))


def _matrix(random: Random) -> str:
    rows, columns = random.choice(((2, 2), (5, 5), (2, 60), (40, 1)))
    kind = random.choice(("pmatrix", "bmatrix", "vmatrix", "array"))
    cell = random.choice(("1", "0", "x", r"\frac12"))
    body = r" \\ ".join(" & ".join([cell] * columns) for _ in range(rows))
    return rf"\begin{{{kind}}} {body} \end{{{kind}}}" + random.choice(("", "^{99}", "^{-1}", "^T"))


_BAIT = (
    r" |,|\text{|1,|1 1/|{ |\ |\frac|^{| and |or|a.m |1_{|\quad |$|.|\%|-|=|π|∞|x_|cm |\\boxed|0."
)


def _bait(random: Random) -> str:
    """What a careless regular expression takes quadratic or exponential time for; just short
    enough to be read.
    """
    unit = random.choice(_BAIT.split("|"))
    times = random.choice((30, 30, 100, 490)) // len(unit)
    return "5" + unit * times + random.choice(("", "5", "}", "x", "!"))


_NESTED = r"{ } ( ) \frac{1}{ } \sqrt{ } \left[ \right] x_{ } a_1^{x }"


def _nested(random: Random) -> str:
    pairs = _NESTED.split()
    at = 2 * random.randrange(len(pairs) // 2)
    depth = random.choice((20, 60, 480 // len(pairs[at] + pairs[at + 1])))
    return pairs[at] * depth + "5" + pairs[at + 1] * (depth - random.choice((0, 0, 1)))


def _empty(random: Random) -> str:
    parts = [*" \n\t\u3000\u00a0~$", "", "{}", "{ }", r"\,", r"\!", r"\quad ", "$$", r"\text{}"]
    return "".join(random.choices(parts, k=random.randint(0, 4)))


def _huge(random: Random) -> str:
    pairs = r"{ } \boxed{ } \frac{1}{ } ( ) \left( \right) <answer> </answer> <think> </think>"
    pairs += r" \boxed - } - \ - \text{ -"
    unit, end = random.choice([*zip(pairs.split()[::2], pairs.split()[1::2], strict=True)])
    if random.random() < 0.6:
        return unit * 100_000 + "5" + end * random.choice((100_000, 99_999, 0))
    return random.choice([*"10 ,x\ud800\0", "9^", "1 ", "\\,"]) * 1_000_000 + "5"


_PHRASES = r"""for all |when |if |x|n=1, |the number is |is |=|<|,|;|.|f(x)=|(|)|\forall |\in
\mathbb R |\mathbb{Z}|^+|_{>0}|\text{|\text{ for all }|and |or |floor(|\angle |ABC|a:|\pi k|\{|x|x=
\pm |\begin{cases}|&|\\\\|(all |or about |{|}""".replace("\n", "|").split("|")


def _phrases(random: Random) -> str:
    """What the patterns for words look for, over and over."""
    chosen = random.sample(_PHRASES, random.randint(1, 4))
    text = random.choice((r"f(x)=x \text{ for all }", "x=5", ""))
    while len(text) < 480:
        text += random.choice(chosen)
    return text[:480] + random.choice(("", "!"))


_FAMILIES: list[tuple[float, Callable[[Random], str]]] = [(1, _tower), (1, _factorials)]
_FAMILIES += [(0.25, _sums), (1, _huge), (11, _numbers), (2, _regions), (18, _soup), (10, _empty)]
_FAMILIES += [(8, _unbalanced), (18, _characters), (4, _python), (3, _shell), (7, _tex)]
_FAMILIES += [(7, _formats), (1, _matrix), (2.5, _bait), (0.5, _nested), (4, _phrases)]

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
