"""The gallery page is the one its script writes, and has its pictures."""

from pathlib import Path

import draw as gallery

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_page_and_pictures():
    assert (gallery.GALLERY / "README.md").read_text() == gallery.page()
    assert {path.stem for path in gallery.GALLERY.glob("*.png")} == set(gallery.PLATES)


def test_scripts_exist():
    for plate in gallery.PLATES.values():
        name, *_ = plate.script.split()
        assert (EXPERIMENTS / name).exists(), name
