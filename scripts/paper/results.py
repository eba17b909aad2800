"""The results.json files of evaluations, read as rows of the paper's tables."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from bnpo.config import FREE, GONE, PRESETS, flat_settings
from bnpo.files import InputError, short_name, step_name
from bnpo.grading.rewards import BOTH_RULES
from bnpo.prompts import SYSTEM_PROMPTS

PAPER_DATASETS = {
    "MATH500": (500, 1),
    "AMC23": (40, 16),
    "AIME2024": (30, 16),
    "AIME2025": (30, 16),
}
"""The paper's data sets: number of problems, and repetitions over which pass@1 is the mean
(Section 5.1)."""
METHODS = {
    "reinforce": "REINFORCE",
    "rloo": "RLOO",
    "remax": "ReMax",
    "grpo": "GRPO",
    "reinforce_pp": "REINFORCE++",
}
METHODS |= {
    "bnpo": "BNPO",
    "reinforce_pp_baseline": "REINFORCE++ with baseline",
    "opo": "OPO",
    "gdpo": "GDPO",
}
METHODS |= {"maxrl": "MaxRL", "beta": "Beta", "eb": "Empirical Bayes"}
METHODS |= {"shrinkage": "Shrinkage", "curverl": "CurveRL", "weight": "Weight"}
METHODS |= {"pass_at_k": "Pass@K"}
"""Names of the algorithms in tables and figures, in the order of the rows."""
NAMES_OF_ROWS = {"model", "algo", "decompose", "seed"}
LAST_BITS = {
    "max_bad_steps",
    "micro_batch_tokens",
    "gradient_checkpointing",
    "offload_optimizer",
    "offload_weights",
}
LAST_BITS |= {"sampler_ranks", "gpu_memory", "enforce_eager", "eval_every", "eval_suite"}
NOT_COMPARED = NAMES_OF_ROWS | LAST_BITS | FREE | GONE
"""Settings in which the runs of one row may differ: they name the row, or change no more than the
last bits of what is learned, or nothing that a run computes up to a given step."""


@dataclass(frozen=True)
class Setting:
    """A setting of a results file. Where `source` names who expects a value, a different value
    becomes a note.
    """

    value: object
    source: str = ""
    expected: object = None


@dataclass(frozen=True)
class Result:
    """One results.json: the row it belongs to, (pass@1, standard error) by column, and its settings
    by name.

    `scores` are by the rule of the paper's released code, or another one that the user has chosen,
    and `ours` by this project's. Old files have only scores by the rule of their protocol.
    """

    path: Path
    model: str
    method: str
    scores: dict[str, tuple[float, float]]
    ours: dict[str, tuple[float, float]]
    settings: dict[str, Setting]


def method_name(run: dict) -> str:
    """Return the name of a run's method in tables and figures, from its config.json: `Beta(1.5,
    1.5), rescaled`.
    """
    name = METHODS.get(run["algo"], run["algo"])
    if run["decompose"]:
        name = f"AD-{name}"
    parameters = run.get("beta_parameters")  # missing in old runs
    if parameters:
        name += f"({', '.join(f'{parameter:g}' for parameter in parameters)})"
    weights = [run[key] for key in ("weight", "weight_wrong") if run.get(key)]
    if weights:
        name += f"({', '.join(weights)})"
    if run.get("k"):
        name += f"({run['k']})"
    return name + (", rescaled" if run.get("rescale_advantages") else "")


def load_results(paths: Iterable[Path]) -> list[Result]:
    """Read results.json files. Raises InputError with the file and what is wrong or missing in
    it.
    """
    results = []
    for path in paths:
        try:
            results.append(_result(path, json.loads(path.read_text(encoding="utf-8"))))
        except OSError as error:
            raise InputError(
                f"{path}: cannot be read ({error.strerror}); it must be a results.json"
            ) from error
        except KeyError as error:
            raise InputError(
                f"{path}: not a results.json of eval.py: {error} is missing"
            ) from error
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"{path}: not a results.json of eval.py ({error})") from error
    return results


def _result(path: Path, content: dict) -> Result:
    protocol, columns = content["protocol"], content["results"]
    run = protocol["run"]  # None: the model as it was published
    model = short_name(run["model"] if run else protocol["ckpt"])
    settings = _protocol_settings(protocol, columns, model)
    if run:
        settings |= _training_settings(protocol, model)
    # The column Average is over the paper's data sets. The average of others is another number.
    if len(columns) > 1:
        of_paper = columns.keys() == PAPER_DATASETS.keys()
        average = "Average" if of_paper else f"Average of {len(columns)}"
        columns = columns | {average: content["average"]}
    scores, ours = {}, {}
    for name, score in columns.items():
        by_rule = score.get("by_rule", {})
        released = by_rule.get(_shown_rule(protocol), score)
        scores[name] = (float(released["pass1"]), float(released["se"]))
        if by_rule.keys() >= {"default", "paper"}:
            ours[name] = (float(by_rule["default"]["pass1"]), float(by_rule["default"]["se"]))
    return Result(path, model, method_name(run) if run else "Base", scores, ours, settings)


def _shown_rule(protocol: dict) -> str:
    """Return the rule whose scores are shown: that of the released code, or another one that the
    user has chosen.
    """
    return "paper" if protocol["grader"] in BOTH_RULES else protocol["grader"]


def _protocol_settings(protocol: dict, scores: dict, model: str) -> dict[str, Setting]:
    """Return the settings of the evaluation. Those that the paper does not give are compared
    between files.
    """
    suite = protocol["suite"]
    rule = _shown_rule(protocol)
    has_rule = all(rule in score.get("by_rule", {}) for score in scores.values())
    # `chat` is the model's own chat template. Only that of the Qwen2.5-Math models is the paper's.
    owner = "Qwen2.5-Math" if model.startswith("Qwen2.5-Math-") else model
    if suite["template"] in SYSTEM_PROMPTS:
        template = f"{suite['template']} of {owner}"
    else:  # the text of a file
        template = f"from a file (SHA-256 {sha256(suite['template'].encode()).hexdigest()[:8]})"
    settings = {
        "suite": Setting(suite["name"]),
        "temperature": Setting(suite["temperature"], "paper", 0.6),
        "top_p": Setting(suite["top_p"], "released code", 1.0),
        "template": Setting(template, "paper", "chat of Qwen2.5-Math"),
        "longest prompt": Setting(suite["max_prompt_tokens"], "paper", 1024),
        "longest answer": Setting(suite["max_answer_tokens"], "paper", 3072),
        "limit": Setting(protocol["limit"] or "none", "paper", "none"),
        "grader": Setting(rule if has_rule else protocol["grader"], "released code", "paper"),
        "dtype": Setting(protocol["dtype"], "usual", "bfloat16"),
        "evaluation seed": Setting(protocol["seed"]),
    }
    for name, score in scores.items():
        source = "paper" if name in PAPER_DATASETS else ""
        problems, repetitions = PAPER_DATASETS.get(name, (None, None))
        settings[f"problems of {name}"] = Setting(score["problems"], source, problems)
        settings[f"repetitions of {name}"] = Setting(score["repetitions"], source, repetitions)
        settings[f"SHA-256 of {name}"] = Setting(suite["datasets"][name]["sha256"][:8])
    return settings | {
        f"version of {name}": Setting(version) for name, version in protocol["versions"].items()
    }


def _training_settings(protocol: dict, model: str) -> dict[str, Setting]:
    """Return the settings of the training run, compared with the preset for its model (or with its
    own preset, if no preset is for that model).
    """
    run, checkpoint = protocol["run"], Path(protocol["ckpt"]).name
    final = run["steps"] and step_name(run["steps"])
    if checkpoint == final or not checkpoint.startswith(("best", "step-")):
        # --ckpt may be the run's folder, which stands for its last checkpoint. Old files do not say
        # whether the run was done.
        checkpoint = "last" if run.get("done", True) else step_name(run["step"])
    preset_of_model = {short_name(str(config.data.model)): name for name, config in PRESETS.items()}
    preset = preset_of_model.get(model, run["preset"])
    source, standard = f"preset {preset}", flat_settings(PRESETS[preset])
    settings = {
        "training seed": Setting(run["seed"]),
        "checkpoint": Setting(checkpoint, source, "last"),
        "training length": Setting(length_of(run), source, length_of(standard)),
    }
    for name, expected in standard.items():
        if name in run and name not in NOT_COMPARED:
            settings[f"training {name}"] = Setting(run[name], source, expected)
    return settings


def length_of(run: dict) -> str:
    """Return the length of a run as text: --steps, or else --epochs."""
    return f"{run['steps']} steps" if run["steps"] else f"{run['epochs']} epochs"
