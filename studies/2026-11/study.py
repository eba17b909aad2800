"""Write the reports of the studies from their rows: pages, tables and figures in this folder.

python studies/2026-11/study.py --report
"""

import argparse

from study.results import write_results
from study.results_2 import write_results_2
from study.rows import ROWS, ROWS_2
from study.shared import json_lines
from study.truncated import write_truncated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", action="store_true", required=True)
    parser.parse_args()
    write_results(json_lines(ROWS))
    write_results_2(json_lines(ROWS_2))
    write_truncated()


if __name__ == "__main__":
    main()
