"""Compute a few verdicts at import, so that processes forked afterwards have the parser and its tables ready.

A fork server preloads this module. Otherwise the first verdict of every process would take 0.2 s or more of its limit.
"""

from mathequal.symbolic import slow_verdict

# Each formula needs another part of the parser, which builds tables on first use.
for _formula in (r"\frac{3}{4}\sqrt{2}-2^{10}", r"\sin 30^\circ+\pi i", r"\binom{5}{2}+5!", r"\log_2 8+|x-1|"):
    slow_verdict("x^2+1", _formula)
slow_verdict("x>2", r"(-\infty,2)\cup[3,5]")
slow_verdict(r"\begin{pmatrix}1\\2\end{pmatrix}", r"\frac12\begin{pmatrix}2\\4\end{pmatrix}")
slow_verdict("y=2x", "x+3y=4")
