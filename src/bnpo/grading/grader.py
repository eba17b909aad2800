"""The grader: rewards of many answers, computed where they cannot hang or crash the training
process.
"""

import math
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache, partial
from types import MappingProxyType

import numpy as np

from bnpo.environment import ranks_here
from bnpo.files import InputError, read_text
from bnpo.grading.rewards import BUILT_IN, GRADERS, Form, form_of, inline_rewards
from mathequal import TIME_LIMIT, final_answer, instant_verdict
from mathequal.workers import Failure, Workers

MAX_WORKERS = 16
MOST = 0.5  # with more than this share of rewards outside their range, a run ends
# What a user's rewards are tried on, besides a right answer: an empty and a wrong one. No long one,
# whose length penalty may be one that no answer of the run gets.
TRIAL_TEXTS = ("", "I do not know.")


ANY_ANSWER = "correct the function: it must return a number for any answer, such as 0.0"


@dataclass(frozen=True)
class Grades:
    """The rewards of some answers."""

    rewards: np.ndarray  # [answers, K], a placeholder where the reward could not be computed
    failed: np.ndarray  # [answers], True where at least one reward could not be computed
    # Rewards of answers that could not be computed, by the kind of their Failure, or OutOfRange
    failures: Counter[str]
    # Values that lie outside the range of a reward, by reward: one for each such answer
    outside: dict[str, list[float]] = field(default_factory=dict)
    # Errors of rewards that could not be computed, by reward: one for each such answer
    faults: dict[str, list[str]] = field(default_factory=dict)


class Grader:
    """Grades answers in a pool of worker processes that lives as long as the grader. Any thread may
    use it.

    `rewards` are K names as in --rewards; values of the user's own lie in `users_range`, which may
    be infinite. `grader` is the rule of `accuracy`: a name in GRADERS, or a user's function like a
    reward. Raises InputError if a user's function cannot be loaded or called, returns no number for
    a right answer to `example`, a reference, or gives a value outside its range in a trial.
    `fields` are the columns of the example's problem.
    """

    def __init__(
        self,
        rewards: Sequence[str] = ("accuracy",),
        *,
        grader: str = "default",
        users_range: tuple[float, float] = (0.0, 1.0),
        workers: int | None = None,
        time_limit: float = TIME_LIMIT,
        example: str = "1",
        fields: Mapping[str, object] = MappingProxyType({}),
    ):
        self.rewards = tuple(rewards)
        self.rule = grader  # of `accuracy`
        # [K], lowest, highest
        self.ranges = [(0.0, 1.0) if reward in BUILT_IN else users_range for reward in rewards]
        self._inline = inline_rewards(grader)
        self._reported: set[tuple[str, str]] = set()
        self._worked: set[str] = set()  # rewards that were computed for most answers of a batch
        if workers is None:
            workers = min(MAX_WORKERS, max(1, len(os.sched_getaffinity(0)) // ranks_here()))
        users_rewards = [
            name for name in (*self.rewards, self.rule) if name not in (*BUILT_IN, *GRADERS)
        ]
        # Files of different folders may import modules of one name, so each file has workers of
        # its own.
        self._files = {reward: reward.rpartition(":")[0] for reward in users_rewards}
        self._sources = {file: read_text(file) for file in self._files.values()}
        self._forms = {
            reward: form_of(reward, self._sources[file]) for reward, file in self._files.items()
        }
        rule_form = self._forms.get(self.rule)
        if rule_form and rule_form.is_batch:
            raise InputError(
                f"--grader: {self.rule} compares the answers to a question, and a rule judges each "
                "one alone; make it a function of text and reference, or one of the --rewards"
            )
        for reward, form in self._forms.items():
            if missing := [name for name in form.needed if name not in fields]:
                raise InputError(
                    f"{reward}: asks for the column '{missing[0]}', and only rewards of a training "
                    "run get columns of the data set; give the parameter a default"
                )
        self._workers = Workers(workers, time_limit)
        self._file_workers = {file: Workers(workers, time_limit) for file in self._sources}
        if os.environ.get("RANK", "0") == "0":  # all ranks would report the same
            self._try_users_rewards(time_limit, example, fields)

    def _try_users_rewards(
        self, time_limit: float, example: str, fields: Mapping[str, object]
    ) -> None:
        texts = [f"The answer is \\boxed{{{example}}}.", *TRIAL_TEXTS]
        for reward, form in self._forms.items():
            # A batch function is called with all texts first, because it may compare them. If that
            # fails, each text is tried alone
            results = self._try(reward, texts, example, fields) if form.is_batch else []
            if not results or all(isinstance(result, Failure) for result in results):
                results = [self._try(reward, [text], example, fields)[0] for text in texts]
            values, problem = [], ""  # each value with its text
            for text, result in zip(texts, results, strict=True):
                if not isinstance(result, Failure):
                    self._check_trial(reward, result, text)
                    values.append(f"{result:g} for '{text}'")
                    continue
                problem = (
                    f"{reward}: a trial call failed for '{text}': {result.kind}: {result.message}"
                )
                decisive = {"NotANumber"}
                if text == texts[0]:
                    decisive |= {"ImportError", "TypeError", "timeout", "death"}
                if result.kind in decisive:
                    self.close()
                    is_own = result.kind == "NotANumber" or "(line " in result.message
                    cure = ANY_ANSWER if is_own else _needed(form, time_limit)
                    raise InputError(f"{problem}; {cure}")
                # Perhaps for this text only
                print(f"grading: {problem}", file=sys.stderr, flush=True)
            if not values:
                self.close()
                raise InputError(f"{problem}; all trial calls failed; {ANY_ANSWER}")
            trial = _describe_trial(form, example, fields)
            print(f"{reward} called on trial with {trial}: {', '.join(values)}", flush=True)

    def _try(
        self, reward: str, texts: list[str], example: str, fields: Mapping[str, object]
    ) -> list[float | Failure]:
        """Return what one trial call gives for each text. A batch function fails for all."""
        references = [example] * len(texts)
        [outcomes] = self.submit(texts, references, functions=[reward], fields=fields)
        return [outcome.result() for outcome in outcomes]

    def _check_trial(self, reward: str, value: float, text: str) -> None:
        """Raise InputError if `value`, a user's reward for a trial text, is outside its range."""
        if reward not in self.rewards:  # a rule of `accuracy`
            return
        low, high = self.ranges[self.rewards.index(reward)]
        if not (low <= value <= high and math.isfinite(value)):
            self.close()
            shown = f"the text {text[:30]!r}" + (f" ({len(text)} characters)" if text else "")
            raise InputError(_out_of_range(f"{reward} gives {value:g} for {shown}", low, high))

    def check_grades(self, grades: Sequence[Grades]) -> None:
        """Raise InputError if a reward lies outside its range for most of the answers of `grades`,
        or could not be computed for most of them and of all before.

        A few such answers are left out and counted. If most are, the function or its range is
        wrong. A function that has worked may depend on something that fails for a while.
        """
        answers = sum(len(part.rewards) for part in grades)
        for reward, (low, high) in zip(self.rewards, self.ranges, strict=True):
            values = [value for part in grades for value in part.outside.get(reward, [])]
            if len(values) > MOST * answers:
                problem = f"{reward} gave {min(values):g} to {max(values):g} for {len(values)} of"
                raise InputError(_out_of_range(f"{problem} {answers} answers", low, high))
            faults = [fault for part in grades for fault in part.faults.get(reward, [])]
            if len(faults) <= MOST * answers:
                self._worked.add(reward)
            elif reward not in self._worked:
                raise InputError(
                    f"--rewards: {reward} could not be computed for {len(faults)} of {answers} "
                    f"answers ({faults[-1]}); correct the function. If its file changes, a run "
                    "continues with --resume --allow-changes reward_sha256"
                )

    def __call__(
        self,
        texts: Sequence[str],
        references: Sequence[str],
        tags: bool = False,
        fields: Mapping[str, object] = MappingProxyType({}),
    ) -> Grades:
        """Return the grades of `texts` against `references`, one each. `tags` and `fields` as in
        `submit`.
        """
        return self.collect(self.submit(texts, references, tags, fields=fields))

    def submit(
        self,
        texts: Sequence[str],
        references: Sequence[str],
        tags: bool = False,
        functions: Sequence[str] | None = None,
        fields: Mapping[str, object] = MappingProxyType({}),
    ) -> list[list[Future]]:
        """Return the futures of all rewards, [K][answers]. What takes long is computed in worker
        processes.

        With `tags` the final answer is the one inside the answer tags. `functions` are rewards or
        rules in GRADERS, whose verdict is 1 for right (default: the rewards of this grader).
        `fields` are columns of the one problem that all texts answer.
        """
        if functions is None:
            functions = [self.rule if reward == "accuracy" else reward for reward in self.rewards]
        futures = []
        for function in functions:
            judged = texts
            form = self._forms.get(function)
            columns = form.columns(fields) if form else {}
            if form and form.is_batch:
                futures.append(self._start_batch(function, texts, references, columns))
                continue
            if function == "default":  # equal final answers make equal calls
                judged = [final_answer(text, tags) or "" for text in texts]
            start_once = cache(partial(self._start_call, function, columns))
            futures.append(list(map(start_once, judged, references)))
        return futures

    def collect(self, outcomes: list[list[Future]]) -> Grades:
        """Wait for what `submit` has begun, [K][answers], and return the grades.

        In place of a reward that could not be computed stands its lowest value, or 0. It must not
        be used: `Grades.failed` says of which answers it is one.
        """
        failures: Counter[str] = Counter()
        outside: dict[str, list[float]] = {}
        faults: dict[str, list[str]] = {}
        rewards = np.empty((len(outcomes[0]), len(outcomes)))  # [answers, K]
        failed = np.zeros(len(outcomes[0]), dtype=bool)  # [answers]
        for k, (reward, (low, high)) in enumerate(zip(self.rewards, self.ranges, strict=True)):
            for i, outcome in enumerate(outcomes[k]):
                value = outcome.result()
                if not isinstance(value, Failure):
                    if low <= value <= high and math.isfinite(value):
                        rewards[i, k] = value
                        continue
                    outside.setdefault(reward, []).append(value)
                    text = f"it gave {value:g}, not in --reward-range {low:g} {high:g}"
                    value = Failure("OutOfRange", text)
                else:
                    faults.setdefault(reward, []).append(f"{value.kind}: {value.message}")
                rewards[i, k], failed[i] = (low if math.isfinite(low) else 0.0), True
                failures[value.kind] += 1
                if (reward, value.kind) not in self._reported:
                    self._reported.add((reward, value.kind))
                    line = f"grading: {reward}: {value.kind}: {value.message} (the answer is left"
                    print(f"{line} out, and counted)", file=sys.stderr, flush=True)
        return Grades(rewards, failed, failures, outside, faults)

    def _start_batch(
        self,
        function: str,
        texts: Sequence[str],
        references: Sequence[str],
        columns: Mapping[str, object],
    ) -> list[Future]:
        """Return the futures of the rewards of `texts` by a function that takes all at once."""
        file, form = self._files[function], self._forms[function]
        arguments = [list(texts), list(references)][: len(form.parameters)]
        lists = {name: [value] * len(texts) for name, value in columns.items()}
        call = "bnpo.grading.rewards:users_rewards", function, self._sources[file]
        whole = self._file_workers[file].submit(*call, arguments, lists)
        parts: list[Future] = [Future() for _ in texts]

        def pass_on(done: Future) -> None:
            values = done.result()
            for i, part in enumerate(parts):
                part.set_result(values if isinstance(values, Failure) else values[i])

        whole.add_done_callback(pass_on)
        return parts

    def _start_call(
        self, function: str, columns: Mapping[str, object], text: str, reference: str
    ) -> Future:
        if function in self._files:
            file = self._files[function]
            call = "bnpo.grading.rewards:users_reward", function, self._sources[file]
            return self._file_workers[file].submit(*call, text, reference, columns)
        if function == "paper":
            return self._workers.submit("mathequal.released:released_verdict", reference, text)
        if function == "default":
            # Only equal strings and plain numbers are decided here: a regular expression can hang
            # on a hostile answer.
            verdict = instant_verdict(reference, text)
            if verdict is None:
                return self._workers.submit("mathequal:equal", reference, text)
        else:
            verdict = self._inline[function](text, reference)
        done: Future = Future()
        done.set_result(verdict)
        return done

    def close(self) -> None:
        """End the worker processes."""
        for workers in (self._workers, *self._file_workers.values()):
            workers.close()


def _needed(form: Form, time_limit: float) -> str:
    """Return what a function of the user's must be."""
    function = "function(text: str, reference: str) -> float"
    if form.is_batch:
        function = "function(completions: list, references: list) -> list"
    return f"it must be {function}, in a file imported within {time_limit:g} s"


def _describe_trial(form: Form, example: str, fields: Mapping[str, object]) -> str:
    """Return what a trial call passes besides the texts."""
    passed = [f"the reference '{example}'"]
    if len(form.parameters) == 1:
        passed = ["no reference"]
    elif form.parameters and form.parameters[1] not in ("reference", "references"):
        passed[0] += f" as {form.parameters[1]}"
    for name in (*form.needed, *form.optional):
        known = f"{name} {fields[name]!r:.40}" if name in fields else f"the default of {name}"
        passed.append(known)
    return ", ".join(passed)


def _out_of_range(problem: str, low: float, high: float) -> str:
    """Return the message for a reward outside its range."""
    if math.isinf(low):
        return f"--rewards: {problem}; rewards must be finite numbers"
    return (
        f"--reward-range: {problem}, outside {low:g} to {high:g}. Set --reward-range LOWEST "
        "HIGHEST to the limits of your rewards, or correct the function. Without --reward-range, "
        "methods that need no range, such as grpo, take any value"
    )
