"""What the comparisons of this folder write."""

import csv
from pathlib import Path


def write_table(path: Path, lines: list[dict]) -> None:
    """Writes lines with the same names as a table; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
