"""The miniature study of docs/study.md: the list of its runs, the program that runs them, statistics and report."""
