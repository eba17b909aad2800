"""What surrounds the steps of a run: its start, its folder, checkpoints, metrics, and how it ends."""
