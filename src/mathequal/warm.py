"""Imported by the process that workers are forked from: symbolic.py, and what it builds on first use.

The parser's tables and sympy's caches would cost each worker 0.2 s or more of its first verdict, within its time limit.
"""

from mathequal.symbolic import slow_verdict

for _pair in (
    ("x^2+1", "1+xx"),
    (r"\frac{3}{4}\sqrt{2}-2^{10}", r"\sin 30^\circ+\pi i"),
    ("x>2", r"(-\infty,2)\cup[3,5]"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\frac12\begin{pmatrix}2\\4\end{pmatrix}"),
    (r"\binom{5}{2}+5!", r"\log_2 8+|x-1|"),
    ("y=2x", "x+3y=4"),
):
    slow_verdict(*_pair)
