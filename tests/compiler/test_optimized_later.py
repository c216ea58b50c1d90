"""Code that is not optimised answers first: the same bits, replaced in use and on disk,
and kept where nothing can optimise it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaximpact as ji
from jaximpact import catalogue
from jaximpact.compiler import disk_cache as cache
from jaximpact.compiler.llvm import code_generation, optimized_later
from jaximpact.compiler.llvm import jit as native
from jaximpact.compiler.llvm.emitter import emit
from jaximpact.compiler.llvm.fused_products import fuse_products
from support.native_table import lanewise

X = np.random.default_rng(0).normal(size=(5, 3))


def products(x):
    """Sums of products, of which each is fused once at most, in loops and branches."""
    turn = lambda _, z: z * jnp.roll(z, 1) - x * z[0] + jnp.where(x[1] > 0, z @ x - 1, z[2] * x[2])
    return jax.lax.fori_loop(0, 4, turn, x / 3)


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """The cache folder of a process to which every program is long, and a call of one program as in a new process."""
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(tmp_path))
    monkeypatch.setattr(native.host(), "level", code_generation.FULL)
    monkeypatch.setattr(native, "MIN_BYTES_QUICK_FIRST", 0)

    def call():
        native._programs.clear()
        before = native.compilations
        found = lanewise(lambda x: products(x), X)
        ((_, program),) = native._programs.values()
        return found, program, native.compilations - before

    return tmp_path, call


def test_optimised_code_takes_the_place_of_the_first(kept):
    folder, call = kept
    first, program, compiled = call()
    assert compiled == 1 and optimized_later.wait_for_optimized(60)
    assert program.is_final and len(program.engines) == 2 and program.place.value == program.address
    (file,) = folder.iterdir()  # of the optimised code alone
    assert not file.name.endswith(native.QUICK_NAME)
    again, program, compiled = call()
    assert compiled == 0 and len(program.engines) == 1
    np.testing.assert_array_equal(first, again)  # bits do not depend on who selects instructions
    np.testing.assert_allclose(first, jax.vmap(products)(X), rtol=1e-13)  # rounding of 4 turns


def test_code_of_a_process_that_ended_too_soon_is_optimised_by_the_next(kept, monkeypatch):
    folder, call = kept
    monkeypatch.setattr(optimized_later._Worker, "_compile", lambda *_: 1 / 0)
    first, program, _ = call()
    assert optimized_later.wait_for_optimized(60) and not program.is_final  # and the first code stays in use
    (file,) = folder.iterdir()
    assert file.name.endswith(native.QUICK_NAME)
    monkeypatch.undo()
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(folder))
    monkeypatch.setattr(native.host(), "level", code_generation.FULL)
    again, program, compiled = call()
    assert compiled == 0 and optimized_later.wait_for_optimized(60) and program.is_final
    np.testing.assert_array_equal(first, again)
    assert [x.name for x in folder.iterdir()] == [file.name.removesuffix(native.QUICK_NAME)]


SCHEMES = (ji.PaoliSchatzman(), ji.MoreauJean(), ji.Maury(), ji.EventCorrected(), ji.EventDriven())


def every_motion():
    """The first case of every problem of the catalogue, by every scheme that takes it;
    in the slow suite but for spheres in a row."""
    for entry in catalogue.entries():
        for scheme in SCHEMES:
            rubs, jointed = entry.problem.rubs and not scheme.traits.friction, entry.problem.joints is not None
            inelastic = isinstance(scheme, ji.Maury) or (jointed and isinstance(scheme, ji.PaoliSchatzman))
            if not (rubs or (inelastic and entry.case().restitution)):
                yield pytest.param(
                    entry.name, None, scheme, marks=pytest.mark.slow, id=f"{entry.name}-{type(scheme).__name__}"
                )
    yield pytest.param("growing-spheres", "row", SCHEMES[0], id="spheres in a row")


@pytest.mark.parametrize(("name", "case", "scheme"), [*every_motion()])
def test_the_first_answer_of_a_long_program_is_that_of_later_ones(name, case, scheme, kept):
    """And by XLA the motion ends with the same status. Of spheres in a row that touch one after the other unoptimised
    code lost terms of a sum, and told that a gap was unresolved (`packs.fold_pack`)."""
    entry, is_clean = catalogue.get(name), case == "row"
    case = entry.case(case)
    steps = {} if scheme.traits.by_tolerance else {"steps": 100}

    def solve(execution):
        native._programs.clear()
        return ji.solve(
            entry.problem, case.q0, case.v0, t1=case.t1, args=case.args, e=case.restitution, scheme=scheme,
            save="final", execution=execution, **steps,
        )  # fmt: skip

    first = solve("native")
    assert optimized_later.wait_for_optimized(60)
    again, other = solve("native"), solve("xla")
    assert first.status == again.status == other.status and not (is_clean and first.status)
    np.testing.assert_array_equal(first.q, again.q)


@pytest.mark.parametrize("why", ["switched off", "no Python"])
def test_where_no_process_can_optimise_code_is_optimised_at_once(kept, monkeypatch, why):
    monkeypatch.setenv(optimized_later.VARIABLE, "off" if why == "switched off" else "")
    monkeypatch.setattr(optimized_later.sys, "executable", "/usr/bin/python" if why == "switched off" else "")
    assert kept[1]()[1].is_final


def test_products_are_fused_once_where_they_are_used_once():
    """a b + c, a b - c and c - a b; not what is read twice, nor across blocks."""
    head, tail = "define double @motion(double %a, double %b, double %c) {\nentry:", "}"
    product = "  %p = fmul contract double %a, %b"
    cases = {
        "  %s = fadd contract double %p, %c\n  ret double %s": ("fma", ["%a", "%b", "%c"]),
        "  %s = fsub contract double %p, %c\n  ret double %s": ("fma", ["%a", "%b", "%s.minus"]),
        "  %s = fsub contract double %c, %p\n  ret double %s": ("fma", ["%s.minus", "%b", "%c"]),
        "  %s = fadd contract double %p, %p\n  ret double %s": ("fadd", []),
        "  br label %on\non:\n  %s = fadd contract double %p, %c\n  ret double %s": ("fadd", []),
    }
    for body, (name, operands) in cases.items():
        text = fuse_products("\n".join([head, product, body, tail]) + "\n")
        native.host().compile(text, code_generation.QUICK)  # it is IR
        assert "contract" not in text and (f"@llvm.fma.f64({', '.join(f'double {x}' for x in operands)})" in text) == (
            name == "fma"
        )
        assert ("fmul" in text) == (name != "fma")


def test_a_program_leaves_no_fusion_to_llvm():
    closed = jax.make_jaxpr(products)(X[0])
    assert "contract" not in emit(closed, closed.jaxpr.invars, [True], 8, True).ir
