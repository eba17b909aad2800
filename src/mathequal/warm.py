"""Compute a few verdicts at import, so that processes forked afterwards have the parser and its
tables ready.

A fork server preloads this module. Otherwise the first verdict of every process would take 0.2 s or
more of its limit.
"""

from mathequal import equal
from mathequal.released import released_verdict

# Each formula needs another part of the parser, which builds tables on first use.
for _formula in (
    r"\frac{3}{4}\sqrt{2}-2^{10}",
    r"\sin 30^\circ+\pi i",
    r"\binom{5}{2}+5!",
    r"\log_2 8+|x-1|",
):
    equal("x^2+1", _formula)
equal("x>2", r"(-\infty,2)\cup[3,5]")
equal(r"\begin{pmatrix}1\\2\end{pmatrix}", r"\frac12\begin{pmatrix}2\\4\end{pmatrix}")
equal("y=2x", "x+3y=4")
released_verdict("1", r"\boxed{1}")
