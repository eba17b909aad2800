"""BNPO. Importing it sets what torch, DeepSpeed and vLLM read when they are imported."""

from bnpo.environment import set_defaults

set_defaults()
