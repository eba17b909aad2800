"""Remove one rule of the grader at a time, and print what changes: which rules are needed, and by
what.

    BNPO_DATA=<folder with the sets> python dev/remove_rules.py [start of a name]

A rule is a row of a table of rewrites, an entry of a table of signs, commands or units, a compiled
pattern of a module, a reader, the rule of a pair of types, or an `if` without `else`. For each, the
number of references of all data sets (also those in the folder's subfolder `more`) that are read
otherwise without it, and the labelled pairs of tests/answers whose verdict changes. A rule with
neither can go. Half an hour of one core; with a name such as `entry`, `if compare` or `text:` only
rules whose names begin so.
"""

import ast
import inspect
import json
import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType

from mathequal import compare, formula, read, sets, text, values, words

ROOT = Path(__file__).resolve().parents[1]
NEVER = re.compile(r"(?!)()()()()()()")  # with groups, which replacements name
ROWS = {"text": (text.BEFORE_WORDS, text.AFTER_WORDS), "formula": (formula._REWRITES,)}
MODULES = (text, words, values, read, formula, sets, compare)
ENTRIES = {
    "sign": text.CHARACTERS,
    "command": text._COMMANDS,
    "unit": words._UNITS,
    "multiple": words.MULTIPLES,
    "part of a unit": values._PARTS_OF_UNITS,
    "pair of types": compare._RULES,
}

Change = Callable[[], None]
Pair = tuple[str, str]


class Covered:
    """The lines of the grader that run for each of some things."""

    def __init__(self):
        self.by_line: dict[tuple[str, int], list] = {}

    def run(self, function: Callable[[], object], thing: object) -> object:
        """Return `function()`, and note its lines under `thing`."""
        lines: set[tuple[str, int]] = set()

        def trace(frame: FrameType, event: str, argument: object):
            if "mathequal" not in frame.f_code.co_filename:
                return None
            lines.add((Path(frame.f_code.co_filename).stem, frame.f_lineno))
            return trace

        forget()
        sys.settrace(trace)
        result = function()
        sys.settrace(None)
        for line in lines:
            self.by_line.setdefault(line, []).append(thing)
        return result


def rules() -> Iterator[tuple[str, Change, Change, str]]:
    """Yield the name of each rule but conditions, how to remove it and put it back, and what
    must be in its texts.
    """
    for module, tables in ROWS.items():
        for rows in tables:
            for i, row in enumerate(list(rows)):
                yield (f"{module}: {row[0].pattern}", *exchange(rows, i, (NEVER, "")), "")
    for kind, entries in ENTRIES.items():
        for key, entry in list(entries.items()):
            if isinstance(key, tuple):
                name, part = " and ".join(value_type.__name__ for value_type in key), ""
            else:
                name = part = chr(key) if isinstance(key, int) else key
            remove, restore = partial(entries.pop, key), partial(entries.update, {key: entry})
            yield f"entry {kind} {name}", remove, restore, part
    for i, reader in enumerate(read._READERS):
        yield (f"reader {reader.__name__}", *exchange(read._READERS, i, lambda text: None), "")
    for module in MODULES:
        for name, pattern in list(vars(module).items()):
            if isinstance(pattern, re.Pattern):
                users = [other for other in MODULES if name in vars(other)]

                def assign(new: re.Pattern, name: str = name, users: list = users) -> None:
                    for user in users:
                        setattr(user, name, new)

                short = module.__name__.removeprefix("mathequal.")
                yield (
                    f"{short}: {name}",
                    lambda a=assign: a(NEVER),
                    lambda a=assign, p=pattern: a(p),
                    "",
                )


def exchange(rows: list, i: int, other: object) -> tuple[Change, Change]:
    row = rows[i]
    return lambda: rows.__setitem__(i, other), lambda: rows.__setitem__(i, row)


def conditions() -> Iterator[tuple[str, Change, Change, tuple[str, int]]]:
    """Yield rules that are an `if` of a function, and the first line that runs where its
    condition holds.
    """
    for module in MODULES:
        for function in vars(module).values():
            function = inspect.unwrap(function) if callable(function) else None
            if not isinstance(function, FunctionType) or function.__module__ != module.__name__:
                continue
            lines, start = inspect.getsourcelines(function)
            source = textwrap.dedent("".join(lines))
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.If) and not node.orelse:
                    new = without(source, node.lineno, module, function)
                    name = (
                        f"if {Path(module.__file__).stem}:{start + node.lineno - 1} "
                        f"{ast.unparse(node.test)}"
                    )
                    old, body = (
                        function.__code__,
                        (Path(module.__file__).stem, start + node.body[0].lineno - 1),
                    )
                    yield (
                        name,
                        lambda f=function, c=new: set_code(f, c),
                        lambda f=function, c=old: set_code(f, c),
                        body,
                    )


def set_code(function: FunctionType, code: CodeType) -> None:
    function.__code__ = code


def without(source: str, line: int, module: object, function: FunctionType) -> CodeType:
    """Return the code of a function without the `if` at a line of its source."""
    tree = ast.parse(source)
    tree.body[0].decorator_list = []
    for node in ast.walk(tree):
        for field in ("body", "orelse"):
            statements = getattr(node, field, None)
            for i, statement in enumerate(statements if isinstance(statements, list) else []):
                if isinstance(statement, ast.If) and statement.lineno == line:
                    statements[i] = ast.copy_location(ast.Pass(), statement)
    namespace = dict(vars(module))
    exec(compile(tree, module.__file__, "exec"), namespace)
    return namespace[function.__name__].__code__


def end_loop(*_: object) -> None:
    raise TimeoutError("a loop that does not end without the rule")


def forget() -> None:
    for cached in (text.spelled, read.read, formula.expression):
        cached.cache_clear()


def reading(answer: str) -> str:
    signal.alarm(10)
    try:
        return repr(read.read(answer))
    except Exception as error:  # without the rule
        return repr(error)


def verdict(pair: Pair) -> bool:
    signal.alarm(10)
    try:
        return compare.verdict(*pair)
    except Exception:  # without the rule
        return False


def main(start: str) -> None:
    signal.signal(signal.SIGALRM, end_loop)
    folder = Path(os.environ.get("BNPO_DATA", ROOT / "data"))
    references = set()
    for file in (*folder.glob("*.jsonl"), *folder.glob("more/*.jsonl")):
        problems = [
            json.loads(line) for line in file.read_text(encoding="utf-8").split("\n") if line
        ]
        references |= {str(problem["answer"]) for problem in problems if problem.get("answer")}
    lines = (
        (ROOT / "tests" / "answers" / "grader_cases.jsonl").read_text(encoding="utf-8").splitlines()
    )
    pairs = [(case["gold"], case["prediction"]) for case in map(json.loads, lines)]
    texts = [*sorted(references), *{one for pair in pairs for one in pair} - references]
    covered, covered_pairs = Covered(), Covered()
    if "if".startswith(start[:2]):
        whole = {one: covered.run(lambda one=one: reading(one), one) for one in texts}
        labels = {pair: covered_pairs.run(lambda pair=pair: verdict(pair), pair) for pair in pairs}
    else:
        whole, labels = (
            {one: reading(one) for one in texts},
            {pair: verdict(pair) for pair in pairs},
        )

    def report(name: str, changed: set[str], touched: list[Pair]) -> None:
        lost = [pair for pair in touched if verdict(pair) != labels[pair]]
        print(
            f"{len(changed & references):5} references, {len(lost):4} verdicts: {name}", flush=True
        )
        for pair in lost[:3]:
            print(f"{'':12}{labels[pair]} no more: {pair}", flush=True)

    for name, remove, restore, part in rules():
        if name.startswith(start):
            remove()
            forget()
            changed = {
                one
                for one in texts
                if part.casefold() in one.casefold() and reading(one) != whole[one]
            }
            # What only decides verdicts changes no reading, so all verdicts are tried.
            only_verdicts = name.startswith(("formula", "sets", "compare", "entry pair"))
            report(name, changed, [pair for pair in pairs if only_verdicts or changed & {*pair}])
            restore()
    for name, remove, restore, line in conditions():
        if name.startswith(start):
            remove()
            forget()
            changed = {one for one in covered.by_line.get(line, []) if reading(one) != whole[one]}
            report(name, changed, covered_pairs.by_line.get(line, []))
            restore()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
