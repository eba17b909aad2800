"""Memory and hours of runs on GPUs that need not be there. No run imports this package."""

from bnpo.config import Positive, settings


@settings
class Planning:
    """GPUs to plan for."""

    gpu: str | None = None
    """GPU model, such as H100 or RTX-4090. An unknown name prints the list."""
    gpus: Positive[int | None] = None
    """Number of GPUs. The default is one."""
    answer_tokens: Positive[int] = 600
    """Mean tokens per answer that the estimated hours assume."""
