"""What surrounds the steps of a run: loading the models, evaluations, records, checkpoints, and the run's end."""

import time
from contextlib import suppress
from dataclasses import replace
from itertools import chain

import torch.distributed as dist

from bnpo.evaluation.program import evaluate_live
from bnpo.files import RunError, write_json, writing
from bnpo.grading.rewards import reward_name
from bnpo.planning.memory import sampler_share
from bnpo.policy.learner import Learner
from bnpo.policy.lora import describe_adapter
from bnpo.policy.patches import gloo_with_one_thread
from bnpo.policy.sampler import Sampler
from bnpo.policy.start_check import prove_start
from bnpo.policy.weight_sync import refresh_sampler
from bnpo.ranks import Ranks, gather
from bnpo.report.summary import summary
from bnpo.rollouts import Rollouts
from bnpo.runs.checkpoint import checkpoint_folder, model_card, rewind, save_checkpoint
from bnpo.runs.findings import FIRST_STEPS, FirstAnswers, find
from bnpo.runs.folder import claim_folder, write_config
from bnpo.runs.metrics import Step, eval_metrics, rollout_rows, token_groups, token_rows
from bnpo.runs.prepare import PreparedRun
from bnpo.runs.tracking import Tracker


class BadStepsError(RunError):
    """Too many steps in a row had an update whose loss or gradient norm was not finite."""


class Run:
    """Context manager around the steps of a run. All ranks must call its public methods at the same points.

    `progress` says how far the run is. At the end <run>/end.json gets the last step and the reason.
    """

    def __init__(self, prepared: PreparedRun, ranks: Ranks):
        self._prepared, self._config, self._ranks = prepared, prepared.config, ranks
        self._folder = prepared.config.folder.output_dir
        self._reward_names = [reward_name(reward) for reward in prepared.config.data.rewards]
        self._tracker: Tracker | None = None  # only rank 0 has one
        self._stopping = False
        self._first_rollouts: list[Rollouts] = []  # of the first steps, until `_look_at_first_answers` has used them
        self.progress = prepared.resume_point.progress

    def __enter__(self) -> "Run":
        self._prepared.check_agreement()
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is not None:  # self._ranks reports it, and the launcher ends the other ranks
            return
        if self._tracker:
            done = self.progress.step >= self._prepared.steps
            self._tracker.close()
            self._write_end("done" if done else "signalled")
            if self.progress.step:
                print(f"\n{summary(self._folder)}\n")
            end = "done" if done else "stopped (--resume continues)"
            where = f"; the model is in {self._folder / 'last'}" if self.progress.step else ""
            print(f"{end}: {self.progress.step} steps{where}", flush=True)
        self._prepared.task.grader.close()
        self._sampler.close()

    def _write_end(self, why: str) -> None:
        """Write end.json. Rank 0 only."""
        with suppress(OSError):  # if the run ends because the disk is full, this write fails, too
            write_json(self._folder / "end.json", {"step": self.progress.step, "why": why.splitlines()[0]})

    def load(self) -> tuple[Learner, Sampler, float]:
        """Load the models, open the metrics, and return learner, sampler and the bound of `measure_sync`.

        Raises InputError if learner or sampler do not pass the check at the start (`prove_start`).
        """
        prepared = self._prepared
        if dist.get_rank() == 0:
            prepared.describe()
        share = self._load_models()
        text = list(chain.from_iterable(prepared.task.prompts[:16]))
        start_check = prove_start(self._learner, self._sampler, text)
        if dist.get_rank() == 0:
            self._open_records(share)
        self._stopping = self._ranks.asked_to_stop()
        return self._learner, self._sampler, start_check.sync_bound

    def _load_models(self) -> float | None:
        """Load learner and sampler, and return the sampler's share of the GPU's memory. None on CPUs."""
        prepared, config = self._prepared, self._config
        checkpoint, tokenizer = prepared.resume_point.checkpoint, prepared.task.tokenizer
        # If the number of ranks has changed, this checkpoint is a converted one: `find_checkpoint` refuses others.
        converted = checkpoint is not None and self.progress.ranks != dist.get_world_size()
        # The learner first: the sampler gets the GPU memory that the learner leaves free.
        with gloo_with_one_thread():
            self._learner = Learner(str(prepared.model), len(tokenizer), config, universal=converted)
        share = sampler_share(prepared.memory_plan, config)
        self._sampler = Sampler(str(prepared.model), tokenizer, replace(prepared.engine, gpu_memory=share))
        if checkpoint:
            self._learner.load(checkpoint / "trainer")
        if config.update.lora_rank:
            if checkpoint:
                # The sampler has loaded the model without the adapter.
                self._sampler.sleep()
                refresh_sampler(self._learner, self._sampler, self.progress.step)
            if dist.get_rank() == 0:
                print(describe_adapter(self._learner.model), flush=True)
        return share

    def _open_records(self, share: float | None) -> None:
        """Delete an earlier run or, on --resume, what was written after the checkpoint. Then open the metrics.

        This happens only now: a start that fails earlier leaves the folder as it was.
        """
        prepared, config = self._prepared, self._config
        facts = prepared.data_facts
        if share is not None:  # on GPUs
            facts = facts | {"sampler_share": {"planned": prepared.memory_plan.gpu_memory, "actual": share}}
        if prepared.resumed:
            rewind(self._folder, self.progress)
            write_config(config, facts)
        else:
            claim_folder(config, facts)
        self._ranks.on_failure = self._write_end
        self._tracker = Tracker(config, prepared.steps, self.progress.step)
        if prepared.resumed:
            print(f"continuing after step {self.progress.step}", flush=True)

    @property
    def is_new(self) -> bool:
        """Whether the run begins at step 0, not from a checkpoint."""
        return self._prepared.resume_point.checkpoint is None

    def continues(self) -> bool:
        """Return whether steps are left and nobody has asked to stop."""
        return self.progress.step < self._prepared.steps and not self._stopping

    def evaluation_is_due(self, step: int) -> bool:
        """Return whether the model is evaluated after `step` (0: before the first)."""
        if self._prepared.evaluation is None or self._stopping:
            return False
        return step % self._config.logging.eval_every == 0 or step == self._prepared.steps

    def evaluate(self, step: int) -> dict[str, float]:
        """Return the scores of the model after `step`. A new best one is noted, and then saved by `save`."""
        started, prepared = time.perf_counter(), self._prepared
        checkpoint = checkpoint_folder(self._folder, step)  # where the model will be if it is saved
        results = evaluate_live(prepared.evaluation, self._sampler, prepared.task.grader, self._config, checkpoint)
        score = results["average"]["pass1"]
        if step and score > self.progress.best:  # the starting model (step 0) needs no checkpoint
            self.progress = replace(self.progress, best=score, best_step=step)
        self._stopping = self._ranks.asked_to_stop()
        return eval_metrics(results) | {"seconds/evaluate": time.perf_counter() - started}

    def watch_is_due(self, step: int) -> bool:
        """Return whether the watched questions are answered after `step` (0: before the first)."""
        logging = self._config.logging
        if not (logging.watch_questions and logging.rollouts_every):
            return False
        if self._stopping and step == 0:
            return False  # the run was stopped before its first step
        return step % logging.rollouts_every == 0 or step == self._prepared.steps

    def record_start(self, scores: dict[str, float], watched: Rollouts | None) -> None:
        """Write scores and watched answers of the model that the run starts from, as step 0."""
        if self._tracker and watched:
            self._tracker.save_rows("watch", 0, rollout_rows(self._prepared.task, watched, self._reward_names))
        if self._tracker and scores:
            self._tracker.write(0, scores)

    def record(self, step: Step, scores: dict[str, float], watched: Rollouts | None) -> None:
        """Count the step, and write its metrics, scores and answers. Raises BadStepsError, InputError."""
        task, config, names = self._prepared.task, self._config, self._reward_names
        bad_steps = self.progress.bad_steps + 1 if step.update_metrics["updates/skipped"] else 0
        self.progress = replace(self.progress, step=step.number, place=step.place, bad_steps=bad_steps)
        if self._tracker:
            metrics = step.metrics(names, config.method.reward_weights) | scores
            if config.batch.resample_rounds:
                metrics["groups/drawn"] = float(len(step.rollouts.rewards))
            if watched:
                self._tracker.save_rows("watch", step.number, rollout_rows(task, watched, names))
                metrics["seconds/watch"] = float(watched.sampling_seconds.max())  # of the slowest rank
            metrics["bad_steps"] = bad_steps
            self._tracker.log(step.number, metrics)
            self._look_at_first_answers(step)
            if bad_steps:
                rows = rollout_rows(task, step.rollouts, names, step.advantages, tokens=True)
                self._tracker.save_bad_batch(step.number, rows)
        every = config.logging.rollouts_every  # starting with step 1, whose answers show the untrained model
        if every and (step.number - 1) % every == 0:
            self._save_answers(step)
        if bad_steps >= config.update.max_bad_steps:
            raise BadStepsError(
                f"the loss or the gradient norm was not finite in {bad_steps} steps in a row, up to step {step.number} "
                f"(--max-bad-steps). Their updates were skipped, and their batches are in {self._folder / 'bad'}"
            )
        self._stopping = self._ranks.asked_to_stop()

    def _look_at_first_answers(self, step: Step) -> None:
        """After the first steps, print and write what their answers say about the run's success. Rank 0 only."""
        last = min(FIRST_STEPS, self._prepared.steps)
        if step.number > last:
            return
        self._first_rollouts.append(step.rollouts)
        if len(self._first_rollouts) == last:  # False if the run was resumed within these steps
            answers = FirstAnswers.of(self._first_rollouts, self._prepared.task, self._config)
            self._first_rollouts = []
            findings = find(answers)
            for finding in findings:
                print(f"first {last} steps: {finding.text}", flush=True)
            if findings:
                with writing(self._folder):
                    write_json(self._folder / "findings.json", [finding._asdict() for finding in findings])

    def _save_answers(self, step: Step) -> None:
        """Write all answers of a step as text, and for two questions also token by token. A collective."""
        task, m = self._prepared.task, self._config.batch.samples_per_question
        trained = step.rollouts.trained
        groups = token_groups(step.advantages, trained)
        # Each rank knows the learner's log-probabilities of the answers that it trained on, by index in the experience.
        own_logprobs, learner_logprobs = {}, {}
        for i, logprobs in step.old_logprobs.items():
            question, sample = divmod(i, m)
            if trained[question] in groups:
                own_logprobs[int(trained[question]) * m + sample] = logprobs
        for rank_logprobs in gather(own_logprobs):
            learner_logprobs |= rank_logprobs
        if self._tracker:
            rows = rollout_rows(task, step.rollouts, self._reward_names, step.advantages)
            self._tracker.save_rows("rollouts", step.number, rows)
            self._tracker.save_rows("tokens", step.number, token_rows(task, step, groups, learner_logprobs))

    def save_is_due(self) -> bool:
        """Return whether the step that was just recorded gets a checkpoint."""
        step, is_last = self.progress.step, not self.continues()
        return is_last or step % self._config.folder.save_every == 0 or self.progress.best_step == step

    def save(self) -> None:
        """Write a checkpoint. Raises InputError for a full disk."""
        step, keep = self.progress.step, self._config.folder.keep
        started = time.perf_counter()
        # Saving needs GPU memory, so the sampler sleeps meanwhile. That drops its weights, so they are copied again.
        slept = self._sampler.sleep()  # False on CPUs
        card = model_card(self._folder, step) if self._tracker else ""  # rank 0 writes it
        save_checkpoint(self._learner, self._prepared.task.tokenizer, self._folder, self.progress, card, keep)
        if slept:
            refresh_sampler(self._learner, self._sampler, self.progress.step)
        if self._tracker:
            print(f"step {step}: checkpoint saved in {time.perf_counter() - started:.2f} s", flush=True)
