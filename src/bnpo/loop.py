"""Algorithm 1 of the paper, and nothing else. What surrounds a step is in runs/."""

from bnpo.algorithm.advantages import compute_advantages
from bnpo.config import TrainConfig
from bnpo.policy.learner import Learner
from bnpo.policy.sampler import Sampler
from bnpo.policy.speed import Stopwatch
from bnpo.policy.weight_sync import measure_sync, refresh_sampler
from bnpo.ranks import Ranks
from bnpo.rollouts import Task, collect_batch, make_experience
from bnpo.runs.checkpoint import Progress
from bnpo.runs.metrics import Step
from bnpo.runs.prepare import prepare_run
from bnpo.runs.run import Run


def train(config: TrainConfig) -> None:
    """Run Algorithm 1 on the ranks that the DeepSpeed launcher started.

    Raises InputError, if it can before a model is loaded. A rank that fails later takes the other
    ranks with it.
    """
    prepared = prepare_run(config)
    with Ranks() as ranks, Run(prepared, ranks) as run:
        learner, sampler, sync_bound = run.start()
        while run.continues():  # steps are left, and nobody asked to stop
            run.record(one_step(run.progress, prepared.task, learner, sampler, sync_bound, config))


def one_step(
    progress: Progress,
    task: Task,
    learner: Learner,
    sampler: Sampler,
    sync_bound: float,
    config: TrainConfig,
) -> Step:
    """Make the step after `progress` and return what it did, the same on all ranks. Raises
    RunError.
    """
    stopwatch, number = Stopwatch(), progress.step  # from 0
    with stopwatch("total"):
        # Sample m answers to each of n questions. Answers are graded while others are still
        # sampled. With --resample-rounds more than n questions may be drawn, and the learner takes
        # n of them. Rewards [q, m, K]
        rollouts, place = collect_batch(task, progress.place, number, sampler, config, stopwatch)
        with stopwatch("generate"):
            sampler.sleep()  # its GPU memory goes to the learner

        # Advantages from the statistics of the whole batch: in float64, equal on every rank.
        advantages, fits = compute_advantages(
            config.method,
            rollouts.rewards,  # [q, m, K]
            ranges=task.grader.ranges,  # [K, 2]
            greedy_rewards=rollouts.greedy_rewards,  # [q, K], or None
            lengths=rollouts.lengths,  # [q, m]
            failed=rollouts.failed,  # [q, m]
        )  # [q, m]

        # T passes of the clipped objective over the N = n m answers, under ZeRO-3.
        with stopwatch("update"):
            experience = make_experience(task, rollouts, advantages)  # [N]
            # A linear warm-up
            lr = config.update.lr * min(1.0, (number + 1) / max(1, config.update.warmup_steps))
            metrics, old_logprobs = learner.update(experience, lr)

        # The new weights into vLLM, and a check that they arrived.
        with stopwatch("sync"):
            refresh_sampler(learner, sampler, number + 1)
            sync_difference = measure_sync(learner, sampler, experience, number + 1, sync_bound)
    return Step(
        number + 1,
        place,
        rollouts,
        advantages,
        fits,
        metrics,
        old_logprobs,
        sync_difference,
        stopwatch,
    )
