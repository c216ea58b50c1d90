"""float64, strict dtype and rank promotion, warnings as errors: a test sees what a careless user would not."""

import gc
import logging
import os
import time
import warnings
from importlib.metadata import version

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAXIMPACT_CACHE", "off")  # a test begins with nothing
# tests compile far longer than they compute; the slow suite has XLA do all it can. jax reads this where it is first
# imported
if os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") == "1" and version("jax").startswith("0.10."):
    # a quarter of the time of the suite; later versions have not got it any more, and would end at its name. A program
    # in one part is compiled in three quarters of the time that its parts take together
    flags = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flags}"

import pytest

MEMORY = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 7e9
# processor time [s] after which two workers hold programs in half of the memory: 1.8 GB in 100 s each
PERIOD = 14e-9 * MEMORY
CLEARED = pytest.StashKey[float]()  # processor time of this process when it last dropped compiled programs


class Refused(logging.Handler):
    """Turns the silent fallback to XLA, when LLVM refuses code, into an error."""

    def emit(self, record):
        text = record.getMessage()
        assert "LLVM" not in text, text


def pytest_configure(config):
    config.addinivalue_line("filterwarnings", "error")
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        prepare()  # what hands tests to workers runs none: it would import for five seconds before they begin


def prepare():
    """Imports jax, and sets up a process that runs tests."""
    import jax
    from hypothesis import given, strategies

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    # tracing makes millions of objects, of which few are garbage that refers to itself: to look for it took an eighth
    # of the time
    gc.freeze()
    gc.disable()
    logger = logging.getLogger("jaximpact")
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Refused())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hypothesis warns that tests have not begun
        # at its first test hypothesis looks through all objects, of which there are few now
        given(strategies.none())(lambda x: None)()


def pytest_sessionfinish():
    # pytest, and Python after it, look for garbage once more; xdist interrupts a worker that takes more than five
    # seconds to end
    gc.freeze()


@pytest.fixture(autouse=True)
def _drop_compiled_code(request):
    """Drops compiled programs now and then: they are shared between tests,
    but a process has a limited number of memory maps.

    To drop what compiled for a hundred seconds, some 5000 maps, and to collect the garbage, takes four seconds.
    """
    import jax

    yield
    last = request.session.stash.setdefault(CLEARED, time.process_time())
    if time.process_time() > last + PERIOD:
        jax.clear_caches()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # of other tests: not an error of this one
            gc.collect()
        request.session.stash[CLEARED] = time.process_time()
