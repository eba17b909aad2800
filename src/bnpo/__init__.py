"""BNPO: Beta Normalization Policy Optimization, and the methods that its paper compares with."""
