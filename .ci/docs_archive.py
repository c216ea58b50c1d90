"""The built manual as one zip, to be read without a build: `make docs-archive`."""

import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "docs" / "_build" / "html"
BUILD = {".doctrees", ".buildinfo", ".buildinfo.bak"}  # what Sphinx keeps for its next build


def archive(site: Path, folder: Path) -> Path:
    """Writes every page of the site, below one folder that is named by the version;
    the same site gives the same bytes."""
    (version,) = re.findall(r'__version__ = "(.+)"', (ROOT / "jaximpact/version.py").read_text())
    if not (site / "index.html").exists():
        sys.exit(f"{site} has no index.html: run `make docs` first")
    folder.mkdir(parents=True, exist_ok=True)
    name = f"jaximpact-{version}-docs"
    with zipfile.ZipFile(folder / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as made:
        for path in sorted(site.rglob("*")):
            place = path.relative_to(site)
            if path.is_file() and place.parts[0] not in BUILD:
                made.writestr(zipfile.ZipInfo(f"{name}/{place.as_posix()}"), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return folder / f"{name}.zip"


if __name__ == "__main__":
    print(archive(SITE, Path(sys.argv[1] if len(sys.argv) > 1 else "dist")))
