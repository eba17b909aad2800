"""The rule of the authors' released code, to compare with the paper: math-verify with their
settings.

math-verify's own time limits are off, since they need signals in the main thread, and elsewhere
score 0 without a word.
"""

import logging
from functools import lru_cache

from latex2sympy2_extended import NormalizationConfig
from math_verify import LatexExtractionConfig, parser, verify
from math_verify import parse as math_verify_parse

# It warns on every call that its own time limits are off, which is the intention.
logging.getLogger("math_verify").setLevel(logging.ERROR)

# Repeated answers to a problem are often the same formula. math-verify itself remembers only 20.
parser.parse_latex_cached = lru_cache(4096)(parser.parse_latex_cached.__wrapped__)


def released_verdict(reference: str, text: str) -> bool:
    """Return the verdict of the authors' released code: math-verify on the last 500 characters
    of the whole text.
    """
    gold = _released_parse(f"\\boxed{{{reference}}}", is_reference=True)
    prediction = _released_parse(text[-500:], is_reference=False)
    return bool(gold and prediction) and verify(gold, prediction, timeout_seconds=None)


def _released_parse(text: str, is_reference: bool) -> list:
    syntax = {
        "basic_latex": True,
        "units": True,
        "malformed_operators": is_reference,
        "nits": is_reference,
    }
    config = LatexExtractionConfig(
        normalization_config=NormalizationConfig(**syntax, boxed="all"),
        boxed_match_priority=0,
        try_extract_without_anchor=is_reference,
    )
    fallback = "no_fallback" if is_reference else "first_match"
    return math_verify_parse(
        text, [config], fallback_mode=fallback, extraction_mode="first_match", parsing_timeout=None
    )
