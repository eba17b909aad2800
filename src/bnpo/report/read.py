"""The files that runs and evaluations leave, read for reports and checks."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bnpo.config import PRESETS, TrainConfig, json_settings, preset_config
from bnpo.files import InputError, read_json, step_name
from bnpo.flags import Free, NotCompared, marked

PAPER_DATASETS = {"MATH500": (500, 1), "AMC23": (40, 16), "AIME2024": (30, 16), "AIME2025": (30, 16)}
"""The paper's data sets: problems, and answers to each that pass@1 is the mean of (Section 5.1)."""
METHODS = {"reinforce": "REINFORCE", "rloo": "RLOO", "remax": "ReMax", "grpo": "GRPO"}
METHODS |= {"reinforce_pp": "REINFORCE++", "bnpo": "BNPO", "reinforce_pp_baseline": "REINFORCE++ with baseline"}
METHODS |= {"opo": "OPO", "gdpo": "GDPO", "maxrl": "MaxRL", "beta": "Beta"}
NOT_COMPARED = marked(TrainConfig, NotCompared) | marked(TrainConfig, Free)


@dataclass(frozen=True)
class Setting:
    """A setting of a file; where `source` tells what to expect, what differs becomes a note."""

    value: object
    source: str = ""
    expected: object = None


@dataclass(frozen=True)
class Result:
    """One results.json: the row it belongs to, pass@1 with standard error by column, and its settings by name."""

    path: Path
    model: str
    method: str
    scores: dict[str, tuple[float, float]]
    settings: dict[str, Setting]


def method_name(run: dict) -> str:
    """What the tables and figures call the estimator of a run, given its config.json.

    >>> method_name({"algo": "beta", "beta_parameters": [1.5, 1.5], "decompose": False, "rescale_advantages": True})
    'Beta(1.5, 1.5), rescaled'
    """
    name = ("AD-" if run["decompose"] else "") + METHODS.get(run["algo"], run["algo"])
    if parameters := run.get("beta_parameters"):
        name += f"({', '.join(f'{parameter:g}' for parameter in parameters)})"
    return name + (", rescaled" if run.get("rescale_advantages") else "")


def open_folder(folder: Path) -> dict:
    """The config.json of a run, or the protocol.json of an evaluation as `protocol`. Raises InputError."""
    for path in (folder / "config.json", folder / "protocol.json"):
        if path.is_file():
            content = read_json(path, "name another folder")
            if "suite" in content or "preset" in content:
                return content if "preset" in content else {"protocol": content}
    raise InputError(f"{folder}: neither a run nor an evaluation; name a folder that train.py or eval.py wrote")


def read_results(folder: Path) -> dict:
    """The results.json of an evaluation's folder."""
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def load_results(paths: Iterable[Path]) -> list[Result]:
    """Read results.json files. Raises InputError naming the file and what is wrong or missing in it."""
    results = []
    for path in paths:
        try:
            results.append(_result(path, json.loads(path.read_text(encoding="utf-8"))))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); it must be a results.json") from error
        except KeyError as error:
            raise InputError(f"{path}: not a results.json of eval.py: {error} is missing") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise InputError(f"{path}: not a results.json of eval.py ({error})") from error
    return results


def _result(path: Path, content: dict) -> Result:
    protocol, scores = content["protocol"], content["results"]
    model, method = Path(protocol["ckpt"]).name, "Base"
    if run := protocol["run"]:
        model = Path(run["model"]).name
        method = method_name(run)
    settings = _protocol_settings(protocol, scores, model) | (_training_settings(protocol, model) if run else {})
    # With other data sets among them, or fewer, the file's average is not the column's.
    columns = scores | ({"Average": content["average"]} if scores.keys() == PAPER_DATASETS.keys() else {})
    cells = {name: (float(score["pass1"]), float(score["se"])) for name, score in columns.items()}
    return Result(path, model, method, cells, settings)


def _protocol_settings(protocol: dict, scores: dict, model: str) -> dict[str, Setting]:
    """How the file was made, beside the paper's evaluation; what that leaves open is compared between files."""
    suite = protocol["suite"]
    # `chat` is the model's own chat template, and only the Qwen2.5-Math models have the paper's.
    owner = "Qwen2.5-Math" if model.startswith("Qwen2.5-Math-") else model
    settings = {
        "suite": Setting(suite["name"]),
        "temperature": Setting(suite["temperature"], "paper", 0.6),
        "top_p": Setting(suite["top_p"], "released code", 1.0),
        "template": Setting(f"{suite['template']} of {owner}", "paper", "chat of Qwen2.5-Math"),
        "longest prompt": Setting(suite["max_prompt_tokens"], "paper", 1024),
        "longest answer": Setting(suite["max_answer_tokens"], "paper", 3072),
        "limit": Setting(protocol["limit"] or "none", "paper", "none"),
        "grader": Setting(protocol["grader"], "released code", "reference"),
        "dtype": Setting(protocol["dtype"], "usual", "bfloat16"),
        "evaluation seed": Setting(protocol["seed"]),
    }
    for name, score in scores.items():
        source, expected = ("paper", PAPER_DATASETS[name]) if name in PAPER_DATASETS else ("", (None, None))
        settings[f"problems of {name}"] = Setting(score["problems"], source, expected[0])
        settings[f"runs of {name}"] = Setting(score["runs"], source, expected[1])
        settings[f"SHA-256 of {name}"] = Setting(suite["datasets"][name]["sha256"][:8])
    return settings | {f"version of {name}": Setting(number) for name, number in protocol["versions"].items()}


def _training_settings(protocol: dict, model: str) -> dict[str, Setting]:
    """What shaped the checkpoint, beside the preset for its model; for a model without one, the run's own preset."""
    run, checkpoint = protocol["run"], Path(protocol["ckpt"]).name
    final = run["steps"] and step_name(run["steps"])
    if checkpoint == final or not checkpoint.startswith(("best", "step-")):
        checkpoint = "last"  # or the folder of the run, which stands for it
    presets = {Path(preset_config(name).data.model).name: name for name in PRESETS}
    preset = presets.get(model, run["preset"])
    standard = json_settings(preset_config(preset))
    length, expected = (f"{c['steps']} steps" if c["steps"] else f"{c['epochs']} epochs" for c in (run, standard))
    compared = {
        "checkpoint": (checkpoint, "last"),
        "training length": (length, expected),
        **{f"training {key}": (run[key], standard[key]) for key in standard if key in run and key not in NOT_COMPARED},
    }
    settings = {name: Setting(value, f"preset {preset}", expected) for name, (value, expected) in compared.items()}
    return {"training seed": Setting(run["seed"])} | settings
