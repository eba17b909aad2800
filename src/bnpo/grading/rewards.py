"""Rewards: the built-in ones, and those of a user's file.

Each is `function(text: str, reference: str) -> float`. `text` is the decoded answer, `reference`
the problem's `answer` field. A user's function may ask for more, see `Form`.
"""

import ast
import os
import re
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache, partial
from types import ModuleType

from bnpo.environment import secure_output
from bnpo.files import InputError, line_of, read_text
from mathequal import final_answer
from mathequal.workers import Failure

Reward = Callable[[str, str], float]

# This project's rule and the paper's released code: a suite with `both_rules` applies both
BOTH_RULES = ("default", "paper")
GRADERS = (*BOTH_RULES, "last_number")

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
FORMAT = re.compile(r"\s*<think>.*</think>\s*<answer>.*</answer>\s*", re.DOTALL)
RELEASED_FORMAT = re.compile(r"<think>.*</think><answer>.*</answer>", re.DOTALL)


def format_reward(text: str, reference: str, pattern: re.Pattern[str] = FORMAT) -> float:
    """Return 1 if `text` is `<think>...</think><answer>...</answer>`, each tag once, else 0."""
    return float(all(text.count(tag) == 1 for tag in TAGS) and pattern.fullmatch(text) is not None)


# No part can match in two ways, so the time is linear in the length of the text.
NUMBER = re.compile(r"((?<![0-9])[-−])?\\?\$?([0-9]+(?:,[0-9]{3}(?![0-9]))*(?:\.[0-9]+)?|\.[0-9]+)")


def last_number(text: str) -> Decimal | None:
    """Return the last number in `text`, or None, as evaluators of GSM8K do.

    >>> [str(last_number(text)) for text in ("so $1,234.50.", "5 - 8 = -3", "10-3", "40%", "none")]
    ['1234.50', '-3', '3', '40', 'None']
    """
    # Only the end of a long text, because this runs in the training process
    matches = deque(NUMBER.finditer(text[-12_000:]), maxlen=1)
    if not matches:
        return None
    sign, digits = matches[0].groups()
    return Decimal(("-" if sign else "") + digits.replace(",", ""))


def reference_number(reference: str) -> Decimal | None:
    r"""Return the number that `reference` is, or None if it is more than a number.

    >>> [str(reference_number(text)) for text in ("-1,234.5", "$7$", "#### 7", "25/6", "(1,2)")]
    ['-1234.5', '7', '7', 'None', 'None']
    """
    number = reference.strip().removeprefix("####").strip(" $")
    return last_number(number) if NUMBER.fullmatch(number) else None


def last_number_reward(text: str, reference: str) -> float:
    """Return 1 if the last number of `text` equals `reference`, else 0. 3.50 equals 3.5."""
    number = last_number(text)
    return float(number is not None and number == reference_number(reference))


def stated_answer(text: str, rule: str, tags: bool) -> str | None:
    """Return the answer that the grader `rule` finds in `text`. `tags` as in `final_answer`."""
    if rule == "last_number":
        number = last_number(text)
        return None if number is None else str(number)
    # The released code does not know the tags, and finds an answer without a box only in LaTeX
    if rule == "paper" and tags and not re.search(r"[\\$]", text[-500:]):
        return None
    return final_answer(text, tags)


REWARDS: dict[str, Reward] = {"format": format_reward, "last_number": last_number_reward}
"""Rewards that are fast and safe enough for the training process. Values lie in [0, 1]."""
RELEASED_REWARDS: dict[str, Reward] = {"format": partial(format_reward, pattern=RELEASED_FORMAT)}
"""Those of `--grader paper`, whose code allows no white space around or between the tags."""
OF_TRL = ("prompts", "completion_ids", "trainer_state", "log_extra", "log_metric")
"""What TRL passes to a reward function, and a run does not. In the place of the second parameter,
they would get the references."""
BUILT_IN = ("accuracy", *REWARDS)  # accuracy may take long, so worker processes compute it


def inline_rewards(rule: str) -> dict[str, Reward]:
    """Return the REWARDS by the grader `rule`."""
    return REWARDS | RELEASED_REWARDS if rule == "paper" else REWARDS


def reward_name(reward: str) -> str:
    """Return `accuracy`, `format`, or the function's name in `path/to/file.py:function`."""
    return reward.rpartition(":")[2]


def check_function(flag: str, name: str, built_in: Sequence[str]) -> None:
    """Raise InputError for a `name` neither in `built_in` nor a function of a file that exists."""
    file, _, function = name.rpartition(":")
    if name not in built_in and not (
        file.endswith(".py") and os.path.isfile(file) and function.isidentifier()
    ):
        known = f"known: {', '.join(built_in)}, or path/to/file.py:function of a file that exists"
        raise InputError(f"--{flag}: unknown {flag.removesuffix('s')} '{name}'; {known}")


@dataclass(frozen=True)
class Form:
    """What a user's reward function asks for, by its parameters.

    A function whose first parameter is `completions` takes all answers to a question at once, as in
    TRL: lists of texts, of references and of each column. It returns a list of rewards.
    """

    parameters: tuple[str, ...] = ()  # the first two, which are passed by position
    needed: tuple[str, ...] = ()  # columns of the data set
    optional: tuple[str, ...] = ()  # columns that the function has defaults for
    takes_all: bool = False  # it has `**fields`

    @property
    def is_batch(self) -> bool:
        return self.parameters[:1] == ("completions",)

    def columns(self, row: Mapping[str, object]) -> dict[str, object]:
        """Return the columns of `row` that the function gets."""
        names = row if self.takes_all else (*self.needed, *self.optional)
        return {name: row[name] for name in names if name in row and name not in self.parameters}


def forms_of(rewards: Sequence[str]) -> dict[str, Form]:
    """Return the form of each reward that is a user's own. Raises InputError for a file that cannot
    be read.
    """
    files = {reward: reward.rpartition(":")[0] for reward in rewards if reward not in BUILT_IN}
    return {reward: form_of(reward, read_text(file)) for reward, file in files.items()}


def form_of(reward: str, source: str) -> Form:
    """Return the form of a function of a file with this `source`, which is parsed, not run. A
    function that the file does not define with `def` itself gets a text and a reference. Raises
    InputError for parameters that only TRL passes.

    >>> form_of("my.py:f", "def f(text, reference, level, *, unit=''): ...").needed
    ('level',)
    """
    try:
        statements = ast.parse(source).body
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # its import says so
        return Form()
    name, form = reward.rpartition(":")[2], Form()
    for function in _functions(statements):
        if function.name != name:
            continue
        of_function = function.args
        named = [parameter.arg for parameter in of_function.posonlyargs + of_function.args]
        required = len(named) - len(of_function.defaults)
        needed, optional = named[2:required], named[max(2, required) :]
        keywords = zip(of_function.kwonlyargs, of_function.kw_defaults, strict=True)
        for parameter, default in keywords:
            (needed if default is None else optional).append(parameter.arg)
        takes_all = of_function.kwarg is not None
        form = Form(tuple(named[:2]), tuple(needed), tuple(optional), takes_all)
    if foreign := [name for name in form.parameters if name in OF_TRL]:
        raise InputError(
            f"{reward}: its parameter '{foreign[0]}' is one that only TRL passes; here the first "
            "two are `completions` and `references`, and further ones are columns of the data"
        )
    return form


def _functions(statements: Sequence[ast.stmt]) -> Iterator[ast.FunctionDef]:
    """Yield the functions that a file defines when it is imported, also under `if` or `try`."""
    for statement in statements:
        if isinstance(statement, ast.FunctionDef):
            yield statement
        elif isinstance(statement, ast.If) and "__main__" not in ast.unparse(statement.test):
            yield from _functions([*statement.body, *statement.orelse])
        elif isinstance(statement, ast.Try):
            handlers = [line for handler in statement.handlers for line in handler.body]
            yield from _functions([*statement.body, *handlers, *statement.orelse])


def users_reward(
    reward: str, source: str, text: str, reference: str, columns: Mapping[str, object]
) -> float:
    """Return a user's reward. Raises ImportError for its file, and NotANumber."""
    return _number(_call(reward, source, (text, reference), columns))


def users_rewards(
    reward: str, source: str, arguments: Sequence[list], columns: Mapping[str, list]
) -> list[float | Failure]:
    """Return a user's rewards for all answers to a question, with a Failure for each that is no
    number. Raises ImportError for the file, and TypeError if they are not as many as the answers.
    """
    values, count = _call(reward, source, arguments, columns), len(arguments[0])
    try:
        values = list(values)
    except TypeError as error:
        found = f"it returned {type(values).__name__}, not a list of {count} numbers"
        raise TypeError(found) from error
    if len(values) != count:
        raise TypeError(f"it returned {len(values)} rewards for {count} completions")
    rewards: list[float | Failure] = []
    for value in values:
        try:
            rewards.append(_number(value))
        except NotANumber as error:
            rewards.append(Failure(NotANumber.__name__, str(error)))
    return rewards


def _call(
    reward: str, source: str, arguments: Sequence[object], columns: Mapping[str, object]
) -> object:
    """Return what a user's function returns. An error gets the line of its file as a note."""
    function = _function(reward, source)
    try:
        return function(*arguments, **columns)
    except Exception as error:
        file = os.path.abspath(reward.rpartition(":")[0])
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        if lines:
            error.add_note(f"(line {lines[-1]})")
        raise


def _function(reward: str, source: str) -> Callable:
    file, _, name = reward.rpartition(":")
    try:
        module = _load(file, source)
        if not hasattr(module, name):
            raise AttributeError(f"the file defines no {name}")
        return getattr(module, name)
    except (Exception, SystemExit) as error:
        raise ImportError(line_of(error)) from error


class NotANumber(TypeError):
    """A user's function gave something else as a reward."""


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise NotANumber(f"it returned {type(value).__name__}, not a number") from error


@lru_cache
def _load(file: str, source: str) -> ModuleType:
    """Return the module of a reward file in a worker process, which loads no other such file.
    `source` is the text when the run began: a later worker must compute the same rewards.
    """
    secure_output()  # a print to a full disk or a closed terminal must not make the reward fail
    folder = os.path.dirname(os.path.realpath(file))
    if sys.path[0] != folder:  # imports find the files beside it first, as they do in a script
        sys.path.insert(0, folder)
    # As multiprocessing names a script in the processes that it starts: functions and classes can
    # be pickled for processes of its own, and nothing below `if __name__ == "__main__"` runs.
    module = ModuleType("__mp_main__")
    module.__file__ = os.path.abspath(file)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    sys.argv = [file]
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    return module
