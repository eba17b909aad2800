"""The HTML page of runs and evaluations. Reads their files only."""
