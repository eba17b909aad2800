"""Compute a few verdicts at import, so that processes forked afterwards have the parser and its tables ready.

A fork server preloads this module. Otherwise the first verdict of every process would take 0.2 s or more of its time
limit for tables of the parser and caches of sympy.
"""

from mathequal.symbolic import slow_verdict

# One pair for each part of the parser that builds tables on first use
for _pair in (
    ("x^2+1", "1+xx"),
    (r"\frac{3}{4}\sqrt{2}-2^{10}", r"\sin 30^\circ+\pi i"),
    ("x>2", r"(-\infty,2)\cup[3,5]"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\frac12\begin{pmatrix}2\\4\end{pmatrix}"),
    (r"\binom{5}{2}+5!", r"\log_2 8+|x-1|"),
    ("y=2x", "x+3y=4"),
):
    slow_verdict(*_pair)
