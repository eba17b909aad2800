"""A plugin of pytest: where it looks for examples in docstrings."""

from pathlib import Path


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Modules without any are not imported to find none: vLLM and DeepSpeed would take each
    worker ten seconds.
    """
    is_module = collection_path.suffix == ".py" and not collection_path.name.startswith("test_")
    return True if is_module and ">>> " not in collection_path.read_text(encoding="utf-8") else None
