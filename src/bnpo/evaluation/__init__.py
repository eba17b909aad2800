"""pass@1 over several runs of every problem: suites, the protocol, scores; as a program and during training."""
