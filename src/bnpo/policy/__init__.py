"""The policy twice: the learner under ZeRO-3 and the sampler in vLLM, and the weight sync between them."""
