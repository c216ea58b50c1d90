"""What the comparisons of this folder write."""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path


def write_table(path: Path, lines: list[dict]) -> None:
    """Writes lines with the same names as a table; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def run_comparison(
    compare: Callable[[], list[dict]], script: str, about: str | None, arguments: list[str] | None
) -> list[dict]:
    """The command of a script: computes its lines, writes them under the script's name into the folder ``--out``,
    and prints them."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("out/outside"))
    options = parser.parse_args(arguments)
    lines = compare()
    write_table(options.out / f"{Path(script).stem}.csv", lines)
    for line in lines:
        print("  ".join(f"{value!s:>24}" for value in line.values()))
    return lines
