"""The settings of the policy-gradient estimator, as one object."""

from dataclasses import dataclass
from math import isfinite
from typing import Annotated

from bnpo.algorithm.beta import MAX_CONCENTRATION
from bnpo.algorithm.estimators import ALGORITHMS
from bnpo.flags import NotCompared, Positive, one_of

MAX_BETA_PARAMETER = 100.0
"""Largest alpha and beta that a user may set. Up to here 1/f is finite at every accuracy of up to 1,000 answers."""


@dataclass(frozen=True)
class Method:
    """The estimator of the policy gradient."""

    algo: NotCompared[Annotated[str, *one_of(ALGORITHMS)]] = "bnpo"
    """Estimator that turns rewards into advantages. docs/estimators.md has the formulas."""
    decompose: NotCompared[bool] = False
    """Compute the advantages of each reward separately, then average them over the rewards (Eq. 17 of the paper).
    Otherwise the rewards of an answer are summed first, or averaged for bnpo, beta, curverl and eb."""
    rescale_advantages: bool = False
    """Divide the advantages by their root mean square, so that they have the same scale with every method."""
    beta_parameters: tuple[float, float] | None = None
    """Alpha and beta of the fixed density of --algo beta: 1 1 is REINFORCE, 1.5 1.5 is GRPO up to a factor."""
    beta_moments: Annotated[str, *one_of(("sample", "corrected"))] = "sample"
    """How BNPO estimates the variance of the accuracies. `sample`: the sample variance, as in the paper. `corrected`
    subtracts the part that comes from having only m answers per question."""
    max_concentration: Positive[float] = MAX_CONCENTRATION
    """BNPO fits Beta(a, b) to the accuracies. This is the upper limit of a + b, reached only if all questions are about
    equally hard. The density that divides advantages is Beta(1 + a/3, 1 + b/3)."""

    def problem(self) -> str | None:
        """Return what is wrong with these settings, in one line, or None.

        >>> Method("beta", beta_parameters=(0, 1)).problem()
        '--beta-parameters: are 0 1, must be above 0 and at most 100'
        """
        if (self.algo == "beta") != (self.beta_parameters is not None):
            example = "--algo beta --beta-parameters 1.5 1.5"
            return f"--algo beta and --beta-parameters ALPHA BETA go together, as in {example}"
        # Not `value <= 0`: nan must be refused too.
        if self.beta_parameters and not all(0 < value <= MAX_BETA_PARAMETER for value in self.beta_parameters):
            values = " ".join(f"{value:g}" for value in self.beta_parameters)
            return f"--beta-parameters: are {values}, must be above 0 and at most {MAX_BETA_PARAMETER:g}"
        if not isfinite(self.max_concentration):
            return f"--max-concentration: is {self.max_concentration}, must be finite"
        if self.algo == "gdpo" and self.decompose:
            return "--decompose: gdpo takes the rewards apart itself; use --no-decompose"
        return None
