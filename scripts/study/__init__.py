"""The miniature studies of docs/study/: the list of their runs, the program that runs them, statistics and report."""
