"""What surrounds the steps of a run: models and where it goes on, evaluations, records, checkpoints, and its end."""

import time
from contextlib import suppress
from dataclasses import replace

import torch.distributed as dist

from bnpo.config import json_settings
from bnpo.evaluation.live import evaluate_live
from bnpo.files import write_json, writing
from bnpo.grading.rewards import reward_name
from bnpo.policy.learner import Learner
from bnpo.policy.sampler import Sampler
from bnpo.policy.weight_sync import sync_weights
from bnpo.problems import WATCHED, watched_questions
from bnpo.ranks import Ranks, gather
from bnpo.rollouts import collect
from bnpo.runs.checkpoint import checkpoint_folder, save_checkpoint
from bnpo.runs.console import copy_console
from bnpo.runs.metrics import Step, eval_metrics, rollout_rows, token_groups, token_rows
from bnpo.runs.prepare import PreparedRun
from bnpo.runs.resume import rewind, verify_checkpoint
from bnpo.runs.tracking import Tracker
from bnpo.speed import Stopwatch
from bnpo.summary import summary


class BadStepsError(RuntimeError):
    """The loss or the gradient norm was not finite in too many steps in a row."""


class Run:
    """The context of a run's steps; all ranks call every method alike.

    It ends in <run>/end.json: the last step, and why. `progress` says how far it is.
    """

    def __init__(self, prepared: PreparedRun, ranks: Ranks):
        self._prepared, self._config, self._ranks = prepared, prepared.config, ranks
        self._rewards = [reward_name(reward) for reward in self._config.data.rewards]
        self._tracker: Tracker | None = None  # rank 0 has one
        self._stopping = False
        self.progress = prepared.resume_point.progress

    def __enter__(self) -> "Run":
        copy_console(self._config.folder.output_dir)
        self._ranks.on_failure = self._end
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is not None:  # self._ranks tells it
            return
        if self._tracker:
            done = self.progress.step >= self._prepared.steps
            self._end("done" if done else "signalled")
            self._tracker.close()
            if (self._config.folder.output_dir / "metrics.jsonl").stat().st_size:
                print(f"\n{summary(self._config.folder.output_dir)}\n")
            end = "done" if done else "stopped (--resume goes on)"
            where = f"; the model is in {self._config.folder.output_dir / 'last'}" if self.progress.step else ""
            print(f"{end}: {self.progress.step} steps{where}", flush=True)
        self._prepared.task.grader.close()
        self._sampler.close()

    def _end(self, why: str) -> None:
        with suppress(OSError):  # a full disk is the reason more often than not
            end = {"step": self.progress.step, "why": why.splitlines()[0]}
            write_json(self._config.folder.output_dir / "end.json", end)

    def load(self) -> tuple[Learner, Sampler]:
        """The models as they are where the run goes on. Raises InputError for ranks that disagree, a damaged
        checkpoint, a disk that cannot be written."""
        prepared, config = self._prepared, self._config
        checkpoint = prepared.resume_point.checkpoint
        prepared.check_agreement()
        if checkpoint:
            verify_checkpoint(checkpoint)
        if dist.get_rank() == 0:
            prepared.describe()
            if config.folder.resume:
                rewind(config.folder.output_dir, self.progress)
                with writing(config.folder.output_dir):
                    write_json(config.folder.output_dir / "config.json", json_settings(config, **prepared.data_facts))
        converted = checkpoint is not None and self.progress.ranks != dist.get_world_size()
        self._learner = Learner(str(prepared.model), len(prepared.task.tokenizer), config, universal=converted)
        self._sampler = Sampler(str(prepared.model), prepared.task.tokenizer, prepared.engine)
        if checkpoint:
            self._learner.load(checkpoint / "trainer")
        if dist.get_rank() == 0:
            self._tracker = Tracker(config, prepared.steps, self.progress.step)
            if config.folder.resume:
                self._tracker.say(f"going on after step {self.progress.step}")
        self._stopping = self._ranks.asked_to_stop()
        return self._learner, self._sampler

    @property
    def is_new(self) -> bool:
        """Whether no step was done before, by an earlier start of the run either."""
        return self._prepared.resume_point.checkpoint is None

    def goes_on(self) -> bool:
        """Whether steps are left, and nobody has asked to stop."""
        return self.progress.step < self._prepared.steps and not self._stopping

    def evaluation_is_due(self, step: int) -> bool:
        """Whether the model is to be evaluated after `step` (0: before the first)."""
        if self._prepared.evaluation is None or self._stopping:
            return False
        return step % self._config.logging.eval_every == 0 or step == self._prepared.steps

    def evaluate(self, step: int) -> dict[str, float]:
        """The scores of the model after `step`; the best since the start is noted, and will be saved."""
        started, grader = time.perf_counter(), self._prepared.task.grader
        checkpoint = checkpoint_folder(self._config.folder.output_dir, step)  # if it is saved
        results = evaluate_live(self._prepared.evaluation, self._sampler, grader, self._config, checkpoint)
        score = results["average"]["pass1"]
        if step and score > self.progress.best:
            self.progress = replace(self.progress, best=score, best_step=step)
        self._stopping = self._ranks.asked_to_stop()
        return eval_metrics(results) | {"seconds/evaluate": time.perf_counter() - started}

    def record_start(self, scores: dict[str, float]) -> None:
        """Write the scores of the model that the run starts from, as step 0."""
        if self._tracker:
            self._tracker.write(0, scores)

    def record(self, step: Step, scores: dict[str, float]) -> None:
        """Count the step and write its metrics and answers, with the `scores` of an evaluation if there was one.

        Raises BadStepsError after too many updates in a row that were left out, InputError for a full disk.
        """
        config, number = self._config, step.number
        bad_steps = self.progress.bad_steps + 1 if step.update["updates/skipped"] else 0
        self.progress = replace(self.progress, step=number, bad_steps=bad_steps)
        watching = self.watch(number)
        if self._tracker:
            metrics = step.metrics(self._rewards) | scores | watching | {"bad_steps": bad_steps}
            self._tracker.log(number, metrics, step.rollouts.rewards.mean(axis=(1, 2)))
            if bad_steps:
                rows = rollout_rows(self._prepared.task, step.rollouts, self._rewards, step.advantages, tokens=True)
                self._tracker.save_bad_batch(number, rows)
        if config.logging.rollouts_every and (number - 1) % config.logging.rollouts_every == 0:
            self._keep_answers(step)
        if bad_steps >= config.update.max_bad_steps:
            raise BadStepsError(
                f"the loss or the gradient norm was not finite in step {number}, the last of {bad_steps} in a row "
                f"(--max-bad-steps); the updates were left out, the batches are in {config.folder.output_dir / 'bad'}"
            )
        self._stopping = self._ranks.asked_to_stop()

    def watch(self, step: int) -> dict[str, float]:
        """Answer the watched questions after `step` (0: before the first) if it is time; the seconds that it took.

        They have seeds of their own and stay out of the batch: the run computes what it would without them.
        """
        config, task = self._config, self._prepared.task
        number, every = config.logging.watch_questions, config.logging.rollouts_every
        stopping = self._stopping and not step  # a step that was done is recorded whole
        if not (number and every) or stopping or (step % every and step != self._prepared.steps):
            return {}
        started, questions = time.perf_counter(), watched_questions(len(task.problems), number)
        rollouts = collect(task, questions, WATCHED, self._sampler, config, Stopwatch(), then_sleep=False)
        if self._tracker:
            self._tracker.save_rows("watch", step, rollout_rows(task, rollouts, self._rewards))
        return {"seconds/watch": time.perf_counter() - started}

    def _keep_answers(self, step: Step) -> None:
        """Write the answers of a step, a few groups of them token by token."""
        task, m = self._prepared.task, self._config.batch.samples_per_question
        wanted = {i * m + j for i in token_groups(step.advantages) for j in range(m)}
        old = self._learner.old_logprobs
        learner_logprobs = {place: old[place] for place in wanted & old.keys()}
        for others in gather(learner_logprobs):
            learner_logprobs |= others
        if self._tracker:
            rows = rollout_rows(task, step.rollouts, self._rewards, step.advantages)
            self._tracker.save_rows("rollouts", step.number, rows)
            self._tracker.save_rows("tokens", step.number, token_rows(task, step, learner_logprobs))

    def save_is_due(self) -> bool:
        """Whether the step just recorded gets a checkpoint."""
        step, last = self.progress.step, not self.goes_on()
        return last or step % self._config.folder.save_every == 0 or self.progress.best_step == step

    def save(self) -> None:
        """Write a checkpoint while the sampler sleeps, and wake it with the weights that it had. Raises InputError for
        a full disk."""
        config, step = self._config, self.progress.step
        started = time.perf_counter()
        asleep = self._sampler.sleep()
        save_checkpoint(
            self._learner, self._prepared.task.tokenizer, config.folder.output_dir, self.progress, config.folder.keep
        )
        if asleep:
            sync_weights(self._learner, self._sampler, step)
        if self._tracker:
            self._tracker.say(f"step {step}: checkpoint saved in {time.perf_counter() - started:.2f} s")
