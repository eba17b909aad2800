"""Settings dataclasses as command lines: marks on their fields, checks of values, flat views of nested settings."""

from collections.abc import Iterable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Annotated, NamedTuple, TypeVar, get_args, get_type_hints

import docstring_parser
import tyro

from bnpo.files import InputError

T = TypeVar("T")
ABOVE_0, NOT_BELOW_0 = "must be above 0", "must not be below 0"
Positive = Annotated[T, ABOVE_0]
NotNegative = Annotated[T, NOT_BELOW_0]
Free = Annotated[T, "free"]
"""Does not change what a run computes up to a given step, so a resumed run may have another value."""
NotCompared = Annotated[T, "not compared"]
"""Names a row of the tables, or changes no more than the last bits of what is learned."""

COMMA_SEPARATED = tyro.constructors.PrimitiveConstructorSpec(
    nargs=1,
    metavar="NAME[,NAME...]",
    instance_from_str=lambda words: tuple(words[0].split(",")),
    is_instance=lambda value: isinstance(value, tuple),
    str_from_instance=lambda value: [",".join(value)],
)


@dataclass(frozen=True, kw_only=True)
class Planning:
    """Dry run: print what a run would take, and start nothing."""

    dry_run: bool = False
    """Check settings and data, print the disk space and, with --gpu, the memory and hours that the run needs. Exit."""
    gpus: Positive[int | None] = None
    """Number of GPUs to plan for, with --dry-run. The default is one."""
    gpu: str | None = None
    """GPU model to plan for, with --dry-run, such as H100 or RTX-4090; a wrong name lists all. Without it, memory and
    hours are left out."""
    answer_tokens: Positive[int] = 600
    """Mean tokens per answer that the estimated hours assume, with --dry-run."""


def one_of(names: Iterable[str]) -> tuple[object, tuple[str, ...]]:
    """Return the two Annotated arguments of a string setting: the list of `names` for the help, and the mark."""
    return tyro.conf.arg(metavar="{" + ",".join(names) + "}"), tuple(names)


@cache
def join_help_lines(config: type) -> None:
    """Give tyro the docstring of each setting in one line. Otherwise its help keeps the line breaks of the source."""
    for hint in get_type_hints(config).values():
        if is_dataclass(hint):
            join_help_lines(hint)
    for setting in docstring_parser.parse_from_object(config).params:
        hint, text = config.__annotations__[setting.arg_name], " ".join(setting.description.split())
        config.__annotations__[setting.arg_name] = Annotated[hint, tyro.conf.arg(help=text)]


class Setting(NamedTuple):
    """Where a setting stands in its config, and the marks on it. `group` is None for a field of the config itself."""

    group: str | None
    marks: tuple


def settings_of(config: type) -> dict[str, Setting]:
    """Return all settings of a config class by name, including those inside its groups, in order of definition."""
    settings = {}
    for name, hint in get_type_hints(config, include_extras=True).items():
        inner_type, *marks = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
        if is_dataclass(inner_type):
            for inner_name, inner in settings_of(inner_type).items():
                settings[inner_name] = Setting(name, inner.marks)
        else:
            settings[name] = Setting(None, tuple(marks))
    return settings


def flat_settings(config: object) -> dict[str, object]:
    """Return the values of all settings of `config` by name, without the flags of a dry run."""
    values = {}
    for name, setting in settings_of(type(config)).items():
        if setting.group != "planning":
            values[name] = getattr(getattr(config, setting.group) if setting.group else config, name)
    return values


def with_settings(config: T, **values: object) -> T:
    """Return a copy of `config` with other values for some settings, which are given by name without their group."""
    for name, value in values.items():
        group = settings_of(type(config))[name].group
        changes = {name: value}
        config = replace(config, **({group: replace(getattr(config, group), **changes)} if group else changes))
    return config


def marked(config: type, mark: object) -> set[str]:
    """Return the names of the settings that carry `mark`, such as Free."""
    return {name for name, setting in settings_of(config).items() if mark.__metadata__[0] in setting.marks}


def check_marks(config: object) -> None:
    """Raise InputError, one line, for the first value that a mark on its setting forbids. None is always allowed."""
    for name, setting in settings_of(type(config)).items():
        value = getattr(getattr(config, setting.group) if setting.group else config, name)
        if value is None:
            continue
        flag = name.replace("_", "-")
        for mark in setting.marks:
            if isinstance(mark, tuple) and value not in mark:  # from `one_of`
                raise InputError(f"--{flag}: unknown {flag} '{value}'; known: {', '.join(mark)}")
            # Not `value <= 0`: nan must be refused too.
            if (mark == ABOVE_0 and not value > 0) or (mark == NOT_BELOW_0 and not value >= 0):
                raise InputError(f"--{flag}: is {value}, {mark}")


def check_planning(planning: Planning) -> None:
    """Raise InputError, one line, for values that are not allowed and for dry-run flags without --dry-run."""
    check_marks(planning)
    given = [item.name for item in fields(Planning) if getattr(planning, item.name) != item.default]
    if given and not planning.dry_run:
        raise InputError(f"--{given[0].replace('_', '-')}: needs --dry-run")
