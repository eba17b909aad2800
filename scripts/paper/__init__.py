"""Rows of the paper's tables for scripts/reproduce.py: their flags, and what they would take."""
