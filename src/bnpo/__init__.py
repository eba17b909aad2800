"""BNPO: Beta Normalization Policy Optimization, and the methods its paper compares with."""
