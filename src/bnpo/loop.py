"""Algorithm 1 of the paper, and nothing else. What surrounds a step is in runs/.

There is no KL penalty and no reference model. Sampler and learner share the same GPUs and take
turns, so every answer comes from the policy as it is before the step's first update.
"""

import time

from bnpo.batch import Task, sample_batch
from bnpo.config import TrainConfig, naming_flags
from bnpo.policy.learner import Learner
from bnpo.policy.sampler import Sampler
from bnpo.policy.weight_sync import WeightSync
from bnpo.ranks import Ranks
from bnpo.runs.checkpoint import Progress
from bnpo.runs.metrics import Step
from bnpo.runs.prepare import prepare_run
from bnpo.runs.run import Run
from bnpo_estimators import compute_advantages


def train(config: TrainConfig) -> None:
    """Run Algorithm 1 on the ranks that the launcher started.

    Raises InputError, if it can before a model is loaded. A rank that fails later takes the other
    ranks with it.
    """
    prepared = prepare_run(config)
    # A user's own estimator may fail in any step: an InputError, too
    with Ranks() as ranks, Run(prepared, ranks) as run, naming_flags():
        learner, sampler, sync = run.start()
        while run.continues():  # steps are left, and nobody asked to stop
            run.record(one_step(run.progress, prepared.task, learner, sampler, sync, config))


def one_step(
    progress: Progress,
    task: Task,
    learner: Learner,
    sampler: Sampler,
    sync: WeightSync,
    config: TrainConfig,
) -> Step:
    """Make the step after `progress` and return what it did. All ranks return the same, except for
    the seconds and the log-probabilities of a rank's own answers. Raises RunError.
    """
    started = time.perf_counter()
    step = progress.step + 1
    # Sample m answers to each of n questions. Answers are graded while others are still sampled.
    # With --resample-rounds q >= n questions may be drawn, and the learner takes n of them.
    batch = sample_batch(task, progress.place, progress.step, sampler, config)

    # Advantages from the statistics of the whole batch: in float64, equal on every rank.
    advantages, fits = compute_advantages(
        config.method,
        batch.rewards,  # [q, m, K]
        ranges=task.grader.ranges,  # [K, 2]
        greedy_rewards=batch.greedy_rewards,  # [q, K], or None
        lengths=batch.lengths,  # [q, m]
        failed=batch.failed,  # [q, m]
    )  # [q, m]

    # The sampler gives its GPU memory to the learner and wakes with the new weights. Some of them
    # are compared bit by bit, and then both compute the log-probabilities of one answer, which
    # must agree up to rounding.
    with sync.sampler_asleep(step, batch):
        # T passes (--ppo-iterations) of the clipped objective over the N = n m answers, under
        # ZeRO-3, with a linear warm-up.
        lr = config.update.lr * min(1.0, step / max(1, config.update.warmup_steps))
        update = learner.update(batch, advantages, lr)
    seconds = batch.seconds | {
        "update": update.seconds,
        "sync": sync.seconds,
        "total": time.perf_counter() - started,
    }
    return Step(
        number=step,
        batch=batch,
        advantages=advantages,
        fits=fits,
        update=update,
        sync_difference=sync.difference,
        seconds=seconds,
    )
