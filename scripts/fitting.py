"""Print which settings fit which GPUs, for four sizes of Qwen2.5: the table of docs/gpus.md.

    python scripts/fitting.py

The settings are those that `train.py --dry-run` proposes, which also prints the memory part by part. Like all numbers
for GPUs they are estimates.
"""

from bnpo.environment import setup_environment


def main() -> None:
    setup_environment()
    from paper.fitting import table

    print(*table(), sep="\n")


if __name__ == "__main__":
    main()
