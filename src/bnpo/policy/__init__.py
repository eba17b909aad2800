"""The policy twice, as learner under ZeRO-3 and as sampler in vLLM, and the way of the weights between them."""
