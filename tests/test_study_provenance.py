"""On which processor and with which versions a study was computed: said when it resumes, and in its summary."""

from contextlib import ExitStack

import numpy as np
import pytest
from study_systems import begun, grid

import jaximpact as ji
from jaximpact.study import provenance, study
from jaximpact.study.store import Writer
from jaximpact.study.task import Result

ELSEWHERE = {"processor": "x86_64 Another CPU", "jaxlib": "99.0"}


def test_processor_is_known_and_steady():
    assert provenance.processor() == provenance.processor.__wrapped__()
    assert len(provenance.processor()) > 10
    assert provenance.changes(provenance.provenance(), provenance.provenance(), provenance.TRACED) == []


def test_resumed_elsewhere_is_said_when_it_resumes_and_in_the_summary(tmp_path, monkeypatch):
    opened = begun(tmp_path / "s.zarr", grid((1, 2)), chunk=1)

    def write(block, origin):
        writer = Writer(opened.store, opened.blocks, opened._definition["variables"])
        opened._write(writer, Result(block, None, np.ones(1, bool), 0, 0.1, {"0": "below"}, origin))

    here = provenance.provenance()
    write(0, here)
    assert "last bit" not in str(opened.summary())
    with monkeypatch.context() as patched:
        patched.setattr(study, "_versions", lambda: here | ELSEWHERE)
        words = r"begun with jaxlib .* → 99\.0, processor .* → x86_64 Another CPU: .*not continue to the same bits"
        with pytest.warns(ji.JaximpactWarning, match=words), ExitStack() as stack:
            ji.Study.open(opened.path)._prepared(stack, False, False)
    write(1, here | ELSEWHERE)
    summary = ji.Study.open(opened.path).summary()
    assert sorted(summary.origins.values()) == [1, 1]
    told = str(summary)
    assert "agree to rounding and not to the last bit" in told
    assert "1 chunks with" in told and "x86_64 Another CPU" in told and here["processor"] in told
