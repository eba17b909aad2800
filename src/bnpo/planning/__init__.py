"""What a run needs before it starts: number of steps and answers, memory, disk space and hours.

fit.py decides whether a run fits its GPUs and is called at every start; the rest serves --dry-run."""
