"""Evaluate a model: pass@1 over several repetitions of every problem, with error bars. Saves every sample.

python eval.py --ckpt runs/tiny-bnpo-seed0/last                        # a checkpoint of a training run
python eval.py --ckpt runs/x/best --base Qwen/Qwen2.5-Math-1.5B        # compare two models problem by problem
python eval.py --ckpt Qwen/Qwen2.5-Math-7B --runs MATH500=1            # the paper's number of repetitions
python eval.py --ckpt Qwen/Qwen2.5-Math-7B --dry-run --gpus 4 --gpu H20     # estimate hours and memory, start nothing
"""

import sys

from bnpo.environment import setup_environment


def main() -> None:
    setup_environment()
    import tyro

    from bnpo.evaluation.config import EvalConfig
    from bnpo.files import InputError

    config = tyro.cli(EvalConfig)
    try:
        if config.planning.dry_run:
            from bnpo.planning.dry_run import dry_run_evaluation

            return dry_run_evaluation(config)
        from bnpo.evaluation.printing import print_evaluation
        from bnpo.evaluation.program import run

        outcome = run(config)
        print_evaluation(outcome.results, outcome.comparison)
        print(f"results and samples: {outcome.folder}")
    except InputError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
