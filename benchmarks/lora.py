"""Compare the time of an update with LoRA and with full training.

    python benchmarks/lora.py [--model smollm2] [--rank 8] [--rounds 3]

Both train in turns, with a learning rate so small that they sample nearly the same answers. Rows:

- full_update_seconds, lora_update_seconds, lora_update_ratio: medians over all measured steps, and their ratio
"""

import argparse

from common import median, read_case, row, training_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each")
    case, arguments = read_case(parser)
    kinds = {"full": (), "lora": ("--lora-rank", str(arguments.rank))}
    steps: dict[str, list[dict]] = {kind: [] for kind in kinds}
    for _ in range(arguments.rounds):
        for kind, flags in kinds.items():
            steps[kind] += training_steps(case, "--lr", "1e-6", *flags)
    for kind in kinds:
        row(f"{kind}_update_seconds", median(steps[kind], "seconds/update"))
    row("lora_update_ratio", median(steps["lora"], "seconds/update") / median(steps["full"], "seconds/update"))


if __name__ == "__main__":
    main()
