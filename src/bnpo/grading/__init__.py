"""Rewards of answers, and the worker processes that compute them."""
