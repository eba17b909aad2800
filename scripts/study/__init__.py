"""The miniature study: its runs as data, run side by side, and what they say. Stands on train.py's run folders."""
