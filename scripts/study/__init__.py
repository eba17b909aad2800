"""The miniature studies of docs/study/: statistics and reports. Their rows and plans are in
evals/results/study/.
"""
