"""Pages, figures and tables of runs and evaluations. Reads their files only, so no other package imports it."""
