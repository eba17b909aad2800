"""The miniature studies of studies/2026-11: statistics and reports. Their rows and plans are in
evals/results/study/.
"""
