from bnpo.policy.engine_settings import MOST_SEQUENCES, PREFILL_TOKENS  # noqa: F401
from bnpo.policy.engine_settings import EngineSettings as SamplerSettings  # noqa: F401
