"""Rewards of answers, and the worker processes that compute what may hang or crash."""
