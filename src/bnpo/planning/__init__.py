"""Memory (checked at every start), disk space and hours of a run (for --dry-run)."""
