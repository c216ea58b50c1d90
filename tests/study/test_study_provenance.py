"""On which processor and with which versions a study was computed: said when it resumes, and in its summary."""

import json
from pathlib import Path

import pytest

import jaximpact as ji
from support.study_systems import begun, run_until

ELSEWHERE = {"processor": "x86_64 Another CPU", "jaxlib": "99.0", "llvmlite": "none"}
BELOW = ji.Design.points(**{"q0[0]": [-1.0, -2.0]})  # lanes that cannot start: nothing is compiled for them


def rewrite(file, change):
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


def test_resumed_elsewhere_is_said_when_it_resumes_and_in_the_summary(tmp_path):
    """The record and the first chunk are made to say that they come from another machine."""
    path = tmp_path / "s.zarr"
    study = run_until(begun(path, BELOW, chunk=1), 1)
    assert "last bit" not in str(study.summary())
    home = Path(path) / ".study"
    rewrite(home / "blocks" / "0.json", lambda mark: mark["versions"].update(ELSEWHERE))
    rewrite(home / "study.json", lambda record: record["versions"].update(ELSEWHERE))
    words = r"begun with jaxlib 99\.0 → .*, llvmlite none → .*, processor x86_64 Another CPU → .*: .*not continue to the same bits"  # noqa: E501
    with pytest.warns(ji.JaximpactWarning, match=words):
        summary = ji.Study.open(path).run()
    assert sorted(summary.origins.values()) == [1, 1]
    told = str(summary)
    assert "agree to rounding and not to the last bit" in told
    assert told.count("1 chunks with") == 2 and "x86_64 Another CPU" in told


def test_the_processor_is_known(tmp_path):
    """Two studies of one program are of one provenance, which names the processor."""
    first, second = (begun(tmp_path / name, BELOW).describe() for name in ("a.zarr", "b.zarr"))
    assert first["processor"] == second["processor"] and len(first["processor"]) > 10
