"""Compiled programs on disk: the next process loads them, only what is whole, one's own and means the same,
from a folder with bounds."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact.compiler import disk_cache as cache
from jaximpact.compiler import vectorised
from jaximpact.compiler import xla_cache as lasting
from jaximpact.compiler.llvm import elementwise as arithmetic
from jaximpact.compiler.llvm import jit as native_compile
from jaximpact.compiler.llvm.lane_frames import FUNCTION_NAME
from jaximpact.compiler.llvm.program_key import program_key
from jaximpact.compiler.scalar import Unsupported
from support.native_table import lanewise


@pytest.fixture(params=["native", "xla"])
def kept(request, tmp_path, monkeypatch):
    """The cache folder, and a call of one program as in a new process, which tells whether it compiled."""
    folder = tmp_path / "cache"
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(folder))
    counter = native_compile if request.param == "native" else lasting

    def call():
        native_compile._programs.clear()
        before = counter.compilations
        x, line = np.arange(3.0), lambda x: x * 3 + 1
        found = lanewise(line, x) if counter is native_compile else lasting.PersistentJit(line)(x)
        np.testing.assert_array_equal(found, [1, 4, 7])
        return counter.compilations > before

    return folder, call


def test_the_next_process_need_not_compile(kept):
    folder, call = kept
    assert [call(), call(), call()] == [True, False, False]
    (file,) = folder.iterdir()
    assert folder.stat().st_mode & 0o077 == 0 and file.stat().st_mode & 0o077 == 0


def test_only_what_is_whole_and_ones_own_is_loaded(kept, tmp_path):
    folder, call = kept
    call()
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    damaged = [b"", whole[:20], whole[:-1], whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:], b"x" + whole[1:]]
    for content in damaged:
        file.write_bytes(content)
        assert call() and not call()  # compiled, and kept again
    file.chmod(0o666)
    assert call()
    file.unlink()
    (tmp_path / "elsewhere").write_bytes(whole)
    file.symlink_to(tmp_path / "elsewhere")
    assert call() and not file.is_symlink() and not call()
    # under another name it is another program's
    assert cache.load(file.name) is not None
    file.rename(folder / "other")
    assert cache.load("other") is None


def test_a_folder_that_others_may_write_to_is_not_used(tmp_path, monkeypatch, caplog):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for path in (shared, tmp_path / "file"):
        (tmp_path / "file").write_text("")
        monkeypatch.setenv(cache.CACHE_VARIABLE, str(path))
        cache.store("key", b"code")
        assert cache.load("key") is None and str(path) in caplog.text
    assert list(shared.iterdir()) == []
    monkeypatch.setenv(cache.CACHE_VARIABLE, "~nobody-of-this-name/cache")
    cache.store("key", b"code")
    assert cache.load("key") is None and caplog.text.count("JAXIMPACT_CACHE=~nobody-of-this-name/cache") == 1


@pytest.mark.parametrize("asked, kept", [("off", False), ("0", False), ("on", True), ("TRUE", True), ("", True)])
def test_words_in_place_of_a_folder(asked, kept, tmp_path, monkeypatch):
    """They switch the cache off or on, in the user's folder; none is the name of a folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(cache.CACHE_VARIABLE, asked)
    assert cache.folder() == (tmp_path / "jaximpact" if kept else None)


def test_the_folder_is_bounded_and_shared(kept):
    """What was used last stays; who reads while others write gets all of it or nothing."""
    folder, _ = kept
    code = bytes(1000)
    for i in range(3):
        cache.store(f"{i}", code)
        if i:
            os.truncate(folder / f"{i}", cache.MAX_CACHE_BYTES // 2)  # of holes: it takes no room on the disk
        os.utime(folder / f"{i}", (i, i))
    assert cache.load("0") == code
    cache.store("3", code)
    assert sorted(x.name for x in folder.iterdir()) == ["0", "2", "3"]
    with ThreadPoolExecutor(4) as pool:
        writing = [pool.submit(cache.store, "same", code) for _ in range(40)]
        assert {cache.load("same") for _ in range(100)} <= {None, code}
        assert [x.result() for x in writing] == [None] * 40
    assert cache.load("same") == code


def test_a_program_is_named_by_what_it_computes(tmp_path, monkeypatch, caplog):
    """Traced anew it is the same; another operation, parameter, whole number or kind of operand makes another;
    real numbers do not."""
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
    x, y = np.arange(3.0), np.arange(3, dtype=np.float32)

    def made(a=2.0, k=1, turns=3, function=jnp.sin, order=(0, 1)):
        weights, index = jnp.full(2, a), jnp.array(order)

        def body(_, z):
            return function(z) * weights[0] + jnp.stack([z, 2 * z])[index][0] ** k

        return lambda x: jax.lax.fori_loop(0, turns, body, x)

    def compiles(function, x):
        native_compile._programs.clear()
        before = native_compile.compilations
        found = lanewise(function, x)
        np.testing.assert_allclose(found, jax.vmap(function)(x), rtol=1e-5)
        return native_compile.compilations - before

    others = [made(k=2), made(turns=4), made(function=jnp.cos), made(order=(1, 0))]
    assert compiles(made(), x) == 1 and compiles(made(), x) == 0 and compiles(made(a=3.0), x) == 0
    assert [compiles(f, x) for f in others] == [1, 1, 1, 1] and compiles(made(), y) == 1
    assert [compiles(f, x) for f in others] == [0, 0, 0, 0] and compiles(made(), y) == 0
    assert "without a stable hash" not in caplog.text  # of a program without a name the code is written each time


def test_jaxprs_that_share_variables_are_told_apart():
    """jax makes jaxprs of others with the same variables; the second of two had one number for all of its operands."""
    calls = jax.make_jaxpr(lambda a, b: (jax.jit(jnp.subtract)(a, b), jax.jit(jnp.add)(a, b)))(1.0, 2.0)
    first, second = calls.jaxpr.eqns
    inner = first.params["jaxpr"]
    (eqn,) = inner.jaxpr.eqns

    def key(operands):
        """Of a program that subtracts, then subtracts again with these operands of the same variables."""
        again = inner.replace(jaxpr=inner.jaxpr.replace(eqns=[eqn.replace(invars=operands)]))
        other = second.replace(params=second.params | {"jaxpr": again})
        return program_key(calls.replace(jaxpr=calls.jaxpr.replace(eqns=[first, other])), calls.jaxpr.invars)

    assert key(eqn.invars) == key(list(eqn.invars)) is not None
    assert key(eqn.invars) != key(eqn.invars[::-1])


def test_a_function_with_a_pullback_of_its_own_has_a_name(tmp_path, monkeypatch):
    """It is not compiled again, made anew; another one is."""
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
    x = np.arange(3.0)

    def made(a):
        own = jax.custom_vjp(lambda z: jnp.sin(z) + a)
        own.defvjp(lambda z: (own(z), None), lambda _, g: (g,))
        return own

    def compiles(function):
        native_compile._programs.clear()
        before = native_compile.compilations
        np.testing.assert_allclose(lanewise(function, x), jax.vmap(function)(x), rtol=1e-15)
        return native_compile.compilations - before

    assert [compiles(made(a)) for a in (1.0, 1.0, 2.0)] == [1, 0, 1]


def test_a_missing_symbol_is_told_before_it_is_called(monkeypatch):
    """Calling it would end the process."""
    text = f"declare double @no_such_function(double)\ndefine double @{FUNCTION_NAME}(double %x) {{\n%y = call double @no_such_function(double %x)\nret double %y\n}}\n"  # noqa: E501
    with pytest.raises(Unsupported, match="no_such_function"):
        native_compile.compile_module(text)
    found = native_compile.undefined_symbols(native_compile.host().compile(text, native_compile.FULL))
    assert found == ["no_such_function"]
    # one that LLVM's own passes write is in every process
    fill = f"declare ptr @memset(ptr, i32, i64)\ndefine void @{FUNCTION_NAME}(ptr %p, i64 %n) {{\n%q = call ptr @memset(ptr %p, i32 0, i64 %n)\nret void\n}}\n"  # noqa: E501
    assert native_compile.undefined_symbols(native_compile.host().compile(fill, native_compile.FULL)) == ["memset"]
    native_compile.compile_module(fill)
    # the way that a rule takes it
    monkeypatch.setitem(
        arithmetic.RULES, "sin", lambda w, params, values: arithmetic.call_library(w, "no_such_sine", *values)
    )
    with pytest.raises(Unsupported, match="no_such_sine"):
        lanewise(lambda x: jnp.sin(x) + 0.123, np.arange(3.0))


def test_a_program_of_xla_lasts_only_where_it_means_the_same(tmp_path, monkeypatch):
    """Numbers that it closes over are part of it; calls of this process's functions,
    another's settings and cache are not for it."""
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
    x = np.arange(3.0)

    def compiles(function, *operands):
        before = lasting.compilations
        found = lasting.PersistentJit(function)(*operands)
        return lasting.compilations - before, len(list(tmp_path.iterdir())), found

    times = lambda a: lambda x: x @ jnp.asarray(a)
    one = np.full((3, 300), 1.0)
    other = one.copy()
    other[1, 150] = 2.0
    assert compiles(times(one), x)[:2] == (1, 1)
    count, files, found = compiles(times(other), x)
    assert (count, files, found[150]) == (1, 2, 4.0)
    assert compiles(times(one), x)[:2] == (0, 2)
    # a factorisation is a call of LAPACK, which every process has
    assert compiles(jnp.linalg.cholesky, np.eye(3))[:2] == (1, 3)
    count, files, found = compiles(jnp.linalg.cholesky, 4 * np.eye(3))
    assert (count, files) == (0, 3) and np.array_equal(found, 2 * np.eye(3))
    # a function of Python is one of this process
    shape = jax.ShapeDtypeStruct((3,), float)
    called = lambda x: jax.pure_callback(lambda x: np.asarray(x) + 1, shape, x)
    for _ in range(2):
        count, files, found = compiles(called, x)
        assert (count, files) == (1, 3) and np.array_equal(found, x + 1)
    # what is whole but no program
    for file in tmp_path.iterdir():
        cache.store(file.name, b"no program")
    assert compiles(times(one), x)[:2] == (1, 3)
    # not inside a transformation, where jax looks for NaN, or keeps programs itself
    assert compiles(jax.grad(lambda x: jnp.sum(lasting.PersistentJit(times(one))(x))), x)[:2] == (1, 4)
    assert lasting.is_cacheable()
    for name, value in {"jax_debug_nans": True, "jax_compilation_cache_dir": str(tmp_path)}.items():
        before = getattr(jax.config, name)
        jax.config.update(name, value)
        assert not lasting.is_cacheable()
        jax.config.update(name, before)
    twice = lasting.PersistentJit(lambda x: 2 * x)
    with jax.enable_x64(False):
        assert twice(np.float32(1)).dtype == twice(1.0).dtype == np.float32
    assert twice(1.0).dtype == np.float64


SECOND = """
import jax, jax.numpy as jnp, numpy as np
names = []
jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: names.append(name))
import jaximpact as ji
from jaximpact.bodies import disks
jax.config.update("jax_enable_x64", True)
at = np.stack([np.arange(4) * 0.3, np.zeros(4)], axis=1).ravel()
many = disks(np.full(4, 0.1), force=lambda t, q, v, args: -20.0 * q, lists=True)
found = ji.solve(many, at, 0 * at, t1=0.2, h=0.01, save="final")
ball = ji.Problem(lambda t, q, v, args: -jnp.ones(1), lambda t, q, args: q)
other = ji.ensemble(ball, [[1.0], [2.0]], [0.0], t1=2.0, h=0.1, execution="xla")
print(names.count("/jax/core/compile/backend_compile_duration"), np.asarray(found.q).tobytes().hex(), other.q.tobytes().hex())
"""  # noqa: E501


@pytest.mark.slow
def test_two_processes_at_once_and_one_behind_them(tmp_path):
    """Listed bodies, whose programs call native code by names of their own, and a ball."""
    environment = os.environ | {cache.CACHE_VARIABLE: str(tmp_path), "PYTHONPATH": str(Path(ji.__file__).parents[1])}
    start = lambda: subprocess.Popen([sys.executable, "-c", SECOND], env=environment, stdout=subprocess.PIPE, text=True)
    both = [start(), start()]
    first, second = (process.communicate()[0].split() for process in both)
    count, *values = start().communicate()[0].split()
    assert count == "0" and int(first[0]) + int(second[0]) > 2
    assert values == first[1:] == second[1:]


def test_without_llvmlite_the_compiler_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    native_compile.host.cache_clear()
    try:
        with pytest.raises(ImportError, match="llvmlite"):
            vectorised(lambda x: x + 0.25)(np.ones(3))
    finally:
        native_compile.host.cache_clear()
