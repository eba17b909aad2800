"""The paper's tables and figures: rows to train and evaluate, results, and drawing. No program
is in here.
"""
