"""What surrounds the steps of a run: loading the models, evaluations, records, checkpoints, and
the run's end.
"""

import time
from collections import ChainMap
from contextlib import suppress
from dataclasses import replace
from itertools import chain

import torch.distributed as dist

from bnpo.batch import WATCHED, Batch, sample_groups, sampling_seeds, watched_questions
from bnpo.evaluation.program import evaluate_live
from bnpo.evaluation.scores import describe_scores
from bnpo.files import RunError, step_name, write_json, write_json_lines, writing
from bnpo.policy.learner import Learner
from bnpo.policy.memory import sampler_settings
from bnpo.policy.patches import gloo_with_one_thread
from bnpo.policy.sampler import Sampler
from bnpo.policy.start_check import check_start
from bnpo.policy.weight_sync import WeightSync
from bnpo.prompts import vocabulary_size
from bnpo.ranks import Ranks, gather
from bnpo.runs.checkpoint import model_card, rewind, save_checkpoint, write_progress
from bnpo.runs.findings import FIRST_STEPS, find
from bnpo.runs.folder import checkpoint_folder, claim_folder
from bnpo.runs.metrics import Step, eval_metrics, rollout_rows, token_rows
from bnpo.runs.prepare import PreparedRun
from bnpo.runs.tracking import Tracker


class Run:
    """Context manager around the steps of a run. All ranks must call its public methods at the same
    points.

    `progress` says how far the run is. At the end <run>/end.json gets the last step and the reason.
    """

    def __init__(self, prepared: PreparedRun, ranks: Ranks):
        self._prepared, self._config, self._ranks = prepared, prepared.config, ranks
        self._folder = prepared.config.folder.output_dir
        self._tracker: Tracker | None = None  # only rank 0 has one
        # Those of the first steps, until `_look_at_first_answers` has used them
        self._first_batches: list[Batch] = []
        self.progress = prepared.progress

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if error is not None:  # self._ranks reports it, and the launcher ends the other ranks
            return
        if self._tracker:
            done = self.progress.step >= self._prepared.steps
            self._tracker.close()
            self._end_folder("done" if done else "signalled")
            where = ""
            if self.progress.step:
                where = f"; the model is in {self._folder / 'last'}"
            end = "stopped (--resume continues)" if self.progress.step else "stopped"
            print(f"{'done' if done else end}: {self.progress.step} steps{where}", flush=True)
        self._prepared.task.grader.close()
        self._sampler.close()

    def _end_folder(self, why: str) -> None:
        """Write end.json. Rank 0 only."""
        with suppress(OSError):  # such as a full disk, for which the run may end
            end = {"step": self.progress.step, "why": why.splitlines()[0]}
            write_json(self._folder / "end.json", end)

    def start(self) -> tuple[Learner, Sampler, WeightSync]:
        """Load the models, open the metrics, and return learner, sampler and their sync.

        Without a checkpoint the model is evaluated and answers the watched questions, as step 0.
        Raises InputError if a rank has read other data or another checkpoint than rank 0, or as
        `check_start` does.
        """
        prepared, config, checkpoint = self._prepared, self._config, self._prepared.checkpoint
        prepared.check_agreement()
        rank_0, tokenizer = dist.get_rank() == 0, prepared.task.tokenizer
        if rank_0:
            prepared.describe()
        # If the number of ranks has changed, this checkpoint is a converted one: `find_checkpoint`
        # refuses others.
        converted = checkpoint is not None and self.progress.ranks != dist.get_world_size()
        # The learner first: the sampler gets the GPU memory that the learner leaves free.
        with gloo_with_one_thread():
            self._learner = Learner(
                str(prepared.model), vocabulary_size(tokenizer), config, universal=converted
            )
        engine = sampler_settings(prepared.shape, config, prepared.longest_with_evaluations)
        self._sampler = Sampler(str(prepared.model), tokenizer, engine)
        if checkpoint:
            # `check_start` then gives the sampler the loaded weights
            self._learner.load(checkpoint / "trainer")
        text = list(chain.from_iterable(prepared.task.prompts[:16]))
        self._sync = WeightSync(self._learner, self._sampler, config.sampling.longest)
        check_start(self._learner, self._sampler, self._sync, text, config)
        if rank_0:  # only now: a start that fails earlier leaves the folder as it was
            self._open_folder(engine.gpu_memory)
        self._stopping = self._ranks.asked_to_stop()
        if not checkpoint and self.continues():
            self._watch(0)
            scores = self._evaluate(0)
            if self._tracker and scores:
                self._tracker.write(0, scores)
            self._stopping = self._ranks.asked_to_stop()
        return self._learner, self._sampler, self._sync

    def _open_folder(self, share: float | None) -> None:
        """Claim the run's folder and open the metrics. Rank 0 only. Raises InputError."""
        prepared, config, facts = self._prepared, self._config, self._prepared.data_facts
        if share is not None:  # on GPUs
            facts = facts | {"sampler_share": share}
        if not prepared.resumed:
            claim_folder(config, facts)
        self._ranks.on_failure = self._end_folder
        self._tracker = Tracker(config, prepared.steps, self.progress.step)
        if prepared.resumed:  # last: nothing is deleted for a start that cannot open W&B
            rewind(self._folder, self.progress)
            if prepared.checkpoint:
                # Before config.json names another evaluation, for which `best` begins anew
                write_progress(prepared.checkpoint, self.progress)
            claim_folder(config, facts)
            print(f"continuing after step {self.progress.step}", flush=True)

    def continues(self) -> bool:
        """Return whether steps are left and nobody has asked to stop."""
        return self.progress.step < self._prepared.steps and not self._stopping

    def _is_due(self, step: int, every: int) -> bool:
        """Return whether something that is done every `every` steps (0: never), and after the last
        one, is due after `step`. Step 0 is before the first step.
        """
        return every > 0 and (step % every == 0 or step == self._prepared.steps)

    def _evaluate(self, step: int) -> dict[str, float]:
        """Return the scores of the model after `step` (0: before the first), if they are due. A
        collective.
        """
        prepared, config = self._prepared, self._config
        if not self._is_due(step, config.logging.eval_every):
            return {}
        started = time.perf_counter()
        checkpoint = checkpoint_folder(self._folder, step)  # where the model will be if it is saved
        results = evaluate_live(
            prepared.evaluation, self._sampler, prepared.task.grader, config, checkpoint
        )
        if self._tracker:
            suite = config.logging.eval_suite
            print(f"step {step}: evaluation {suite}: {describe_scores(results)}", flush=True)
        return eval_metrics(results) | {"seconds/evaluate": time.perf_counter() - started}

    def _watch(self, step: int) -> dict[str, float]:
        """If it is due, let the model after `step` answer the watched questions, and return the
        seconds. A collective.
        """
        task, logging = self._prepared.task, self._config.logging
        if not logging.watch_questions or not self._is_due(step, logging.rollouts_every):
            return {}
        questions = watched_questions(len(task.problems), logging.watch_questions)
        # With seeds of their own: the rest of the run is the same without these questions
        seeds = sampling_seeds(self._config.sampling.seed, WATCHED, questions)
        started = time.perf_counter()
        groups, _ = sample_groups(task, questions, seeds, self._sampler, self._config)
        if self._tracker:
            write_json_lines(
                self._folder / "watch" / f"{step_name(step)}.jsonl", rollout_rows(task, groups)
            )
        return {"seconds/watch": time.perf_counter() - started}

    def record(self, step: Step) -> None:
        """Evaluate and count the step, write its metrics, and its answers and a checkpoint if they
        are due.

        Raises RunError for too many bad steps in a row, and InputError for a full disk.
        """
        config, number = self._config, step.number
        scores = self._evaluate(number)
        watched = self._watch(number)
        is_bad = step.update.metrics["updates/skipped"] > 0
        bad_steps = self.progress.bad_steps + 1 if is_bad else 0
        self.progress = replace(
            self.progress, step=number, place=step.batch.place, bad_steps=bad_steps
        )
        is_best = scores.get("eval/average", -1.0) > self.progress.best
        if is_best:
            self.progress = replace(self.progress, best=scores["eval/average"], best_step=number)
        if self._tracker:
            metrics = step.metrics(config, self._prepared.task.grader.ranges, self._learner.model)
            self._tracker.log(number, metrics | scores | watched | {"bad_steps": bad_steps})
            self._look_at_first_answers(step)
        # Starting with step 1, whose answers show the untrained model
        if is_bad or self._is_due(number - 1, config.logging.rollouts_every):
            self._write_answers(step)
        if bad_steps >= config.update.max_bad_steps:
            problem = (
                f"the loss or the gradient norm was not finite in {bad_steps} steps in a row, up "
                "to step"
            )
            kept = f"their answers are in {self._folder / 'rollouts'}"
            raise RunError(f"{problem} {number}. Each had an update that was skipped; {kept}")
        self._stopping = self._ranks.asked_to_stop()
        if is_best or self._is_due(number, config.folder.save_every) or not self.continues():
            self._save()

    def _write_answers(self, step: Step) -> None:
        """Write the step's answers and their tokens. A collective."""
        # Each rank has the log-probabilities of the answers that it trained on
        logprobs_by_rank = gather(step.update.old_logprobs)
        if not self._tracker:
            return
        task = self._prepared.task
        name = f"{step_name(step.number)}.jsonl"
        rollouts = rollout_rows(task, step.batch.groups, step.advantages)
        write_json_lines(self._folder / "rollouts" / name, rollouts)
        tokens = token_rows(task, step, ChainMap(*logprobs_by_rank))
        write_json_lines(self._folder / "tokens" / name, tokens)

    def _look_at_first_answers(self, step: Step) -> None:
        """After the first steps, print and write what their answers say about the run's success.
        Rank 0 only.
        """
        last = min(FIRST_STEPS, self._prepared.steps)
        if step.number > last:
            return
        self._first_batches.append(step.batch)
        if len(self._first_batches) < last:  # also if the run was resumed within these steps
            return
        findings = find(self._first_batches, self._prepared.task, self._config)
        self._first_batches = []
        for finding in findings:
            print(f"first {last} steps: {finding['text']}", flush=True)
        if findings:
            with writing(self._folder):
                write_json(self._folder / "findings.json", findings)

    def _save(self) -> None:
        """Write a checkpoint. A collective. Raises InputError for a full disk."""
        step = self.progress.step
        started = time.perf_counter()
        card = model_card(self._config, self._prepared.data_facts["data_sources"], step)
        tokenizer = self._prepared.task.tokenizer
        keep = self._config.folder.keep
        with self._sync.sampler_asleep(step):  # saving needs GPU memory
            save_checkpoint(self._learner, tokenizer, self._folder, self.progress, card, keep)
        if self._tracker:
            print(
                f"step {step}: checkpoint saved in {time.perf_counter() - started:.2f} s",
                flush=True,
            )
