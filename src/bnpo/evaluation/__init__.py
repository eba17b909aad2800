"""Evaluation: pass@1 over several repetitions of every problem, as a program (eval.py) and during training."""
