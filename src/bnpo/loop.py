"""Algorithm 1 of the paper, and nothing else: what surrounds a step is in runs/."""

from bnpo.algorithm.advantages import compute_advantages
from bnpo.config import TrainConfig
from bnpo.policy.learner import Learner
from bnpo.policy.sampler import Sampler
from bnpo.policy.weight_sync import measure_sync, sync_weights
from bnpo.problems import questions_of_step
from bnpo.ranks import Ranks
from bnpo.rollouts import collect, make_experience
from bnpo.runs.metrics import Step
from bnpo.runs.prepare import prepare_run
from bnpo.runs.run import Run
from bnpo.speed import Stopwatch
from bnpo.task import Task


def train(config: TrainConfig) -> None:
    """Run Algorithm 1 on the ranks that the DeepSpeed launcher started. Raises InputError before a model is loaded;
    a rank that fails later takes the others with it."""
    prepared = prepare_run(config)
    with Ranks(str(config.folder.output_dir.absolute())) as ranks, Run(prepared, ranks) as run:
        learner, sampler = run.load()
        if run.is_new:
            run.watch(0)
            if run.evaluation_is_due(0):
                run.record_start(run.evaluate(0))
        while run.goes_on():  # steps are left, and nobody was signalled
            step = one_step(run.progress.step, prepared.task, learner, sampler, config)
            scores = run.evaluate(step.number) if run.evaluation_is_due(step.number) else {}
            run.record(step, scores)
            if run.save_is_due():
                run.save()


def one_step(number: int, task: Task, learner: Learner, sampler: Sampler, config: TrainConfig) -> Step:
    """Step `number` (from 0), the same on all ranks. Raises SamplingError, SyncError."""
    watch = Stopwatch()
    with watch("total"):
        # Sample m answers to each of n questions; answers are graded while others are still sampled.
        questions = questions_of_step(
            len(task.problems), config.batch.questions_per_step, number, config.sampling.seed
        )  # [n]
        rollouts = collect(task, questions, number, sampler, config, watch)  # answers [n][m], rewards [n, m, K]

        # Advantages from the statistics of the whole batch: in float64, equal on every rank.
        advantages, fits = compute_advantages(
            config.method.algo,
            rollouts.rewards,  # [n, m, K]
            decompose=config.method.decompose,
            ranges=task.grader.ranges,  # [K, 2]
            greedy_rewards=rollouts.greedy_rewards,  # [n, K], or None
            lengths=rollouts.lengths,  # [n, m]
            beta_parameters=config.method.beta_parameters,
            moments=config.method.beta_moments,
            max_concentration=config.method.max_concentration,
            rescale=config.method.rescale_advantages,
        )  # [n, m]

        # T passes of the clipped objective over the N = n m answers, under ZeRO-3.
        with watch("update"):
            experience = make_experience(task, rollouts, advantages)  # advantages [N]
            update = learner.update(experience, learning_rate(config, number))

        # The new weights into vLLM, and proof that they arrived.
        with watch("sync"):
            sync_weights(learner, sampler, number + 1)
            difference = measure_sync(learner, sampler, experience, number + 1)
    return Step(number + 1, rollouts, advantages, fits, update, difference, watch)


def learning_rate(config: TrainConfig, step: int) -> float:
    """Learning rate of `step` (from 0): a linear rise over the warm-up, then constant."""
    return config.update.lr * min(1.0, (step + 1) / max(1, config.update.warmup_steps))
