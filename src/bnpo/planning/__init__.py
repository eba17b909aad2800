"""Plans of runs: the memory of a rank, and what a dry run prints."""
