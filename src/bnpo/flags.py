"""Command lines of dataclasses: marks on fields, what they forbid, headings over groups of flags, a dry run's flags."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, make_dataclass
from typing import Annotated, TypeVar, get_type_hints

import tyro

from bnpo.files import InputError

T = TypeVar("T")
ABOVE_0, NOT_BELOW_0 = "must be above 0", "must not be below 0"
Positive = Annotated[T, ABOVE_0]
NotNegative = Annotated[T, NOT_BELOW_0]
Free = Annotated[T, "free"]
"""Changes nothing of what is computed up to a step: a resumed run may differ in it."""
NotCompared = Annotated[T, "not compared"]
"""Names a row of the tables, or changes no more than the last bits of what is learned."""

SAID_ONCE = {"console_outputs": os.environ.get("LOCAL_RANK", "0") == "0"}
"""For tyro: help and errors come from one rank of a machine."""

COMMA_SEPARATED = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="NAME[,NAME...]",
    instance_from_str=lambda words: tuple(words[0].split(",")),
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=lambda value: [",".join(value)],
)


@dataclass(frozen=True, kw_only=True)
class Planning:
    """What a run would take, before one is started."""

    dry_run: bool = False
    """Check settings and data, tell the memory, hours and disk that all of it would take, and start nothing."""
    gpus: Positive[int | None] = None
    """With --dry-run: how many GPUs to plan for; by default one."""
    gpu: str | None = None
    """With --dry-run: which: H20, A100-80GB, H100, H200. None: memory and hours are left out (by
    reproduce.py: all of these are compared)."""
    answer_tokens: Positive[int] = 600
    """With --dry-run: tokens of an answer, on average, that its hours rest on."""


@dataclass(frozen=True)
class OneOf:
    """Mark of a string that must be one of `names`; refused by `check_marks`, in one line."""

    names: tuple[str, ...]


def one_of(names: Iterable[str]) -> tuple[object, OneOf]:
    """What Annotated needs for a string that is one of `names`: their list in the help, and the mark."""
    return tyro.conf.arg(metavar="{" + ",".join(names) + "}"), OneOf(tuple(names))


def marks(config: type) -> dict[str, tuple]:
    """The marks on every field of a dataclass."""
    hints = get_type_hints(config, include_extras=True)
    return {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}


def marked(config: type, mark: object) -> set[str]:
    """Names of the fields of a dataclass that carry `mark`, such as Free."""
    return {name for name, found in marks(config).items() if mark.__metadata__[0] in found}


def check_marks(config: object) -> None:
    """Raise InputError, one line, for the first value that a mark on its field forbids; None is never forbidden."""
    for name, found in marks(type(config)).items():
        flag, value = name.replace("_", "-"), getattr(config, name)
        for mark in found if value is not None else ():
            if isinstance(mark, OneOf) and value not in mark.names:
                raise InputError(f"--{flag}: unknown {flag} '{value}'; known: {', '.join(mark.names)}")
            # Not `value <= 0`: nan must be refused too.
            if (mark == ABOVE_0 and not value > 0) or (mark == NOT_BELOW_0 and not value >= 0):
                raise InputError(f"--{flag}: is {value}, {mark}")


def split_planning(argv: list[str]) -> tuple[Planning, list[str]]:
    """The flags of a dry run in `argv`, and those that are left. Raises InputError, one line."""
    planning, rest = tyro.cli(Planning, args=argv, return_unknown_args=True, add_help=False, **SAID_ONCE)
    check_planning(planning)
    return planning, rest


def check_planning(planning: Planning) -> None:
    """Raise InputError, one line, for what makes no plan."""
    check_marks(planning)
    given = [item.name for item in fields(Planning) if getattr(planning, item.name) != item.default]
    if given and not planning.dry_run:
        raise InputError(f"--{given[0].replace('_', '-')}: needs --dry-run, whose plan it is for")


def parse_grouped(defaults, argv: list[str], prog: str):
    """`defaults`, a dataclass that inherits all of its fields from dataclasses, with the flags of `argv`.

    Each of those is a group with a heading in the help; another one are those of a dry run, which `split_planning` has
    taken out. tyro makes headings of dataclasses within a dataclass, so one of that form is parsed. Exits on flags that
    are not known.
    """
    parts: list = []
    for group in reversed(type(defaults).__bases__):
        default = group(**{item.name: getattr(defaults, item.name) for item in fields(group)})
        parts.append((group.__name__.lower(), tyro.conf.OmitArgPrefixes[group], field(default=default)))
    parts.append(("planning", tyro.conf.OmitArgPrefixes[Planning], field(default=Planning())))
    form = make_dataclass("Form", parts, frozen=True)
    form.__doc__ = type(defaults).__doc__
    parsed = tyro.cli(form, args=argv, prog=prog, **SAID_ONCE)
    values = {name: value for part in vars(parsed).values() for name, value in vars(part).items()}
    return type(defaults)(**{item.name: values[item.name] for item in fields(defaults)})
