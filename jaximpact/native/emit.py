"""A jaxpr of numbers as a function in LLVM IR that executes it for blocks of lanes, a vector at a time.

Loops and branches are real: a loop goes on while any lane of the vector does, and the others keep what they have; of the
branches of a `cond` the shortest is taken always, another one if any lane asks for it. What has no rule raises `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from ..jaxprs import CALLS, IDENTITIES, as_closed, inner, scan_counts, size, varying
from ..numbers import Unsupported
from ..stream import streamed
from .arithmetic import RULES, converted
from .writer import BOOL, INT, Number, Writer, constant

CHEAP = 40  # operations of a branch that is taken whether a lane asks for it or not
NAME = "motion"


def emit(program: ClosedJaxpr, varies: Sequence[bool], width: int, fused: bool) -> str:
    """A program for ``width`` lanes a block, with the C signature

        void motion(void** entries, void** results, void** given, int64_t blocks, int64_t rows)

    ``varies`` says of each entry whether it holds one number for every lane, one after the other, or one for all. Results hold
    one for every lane; rows of a `stream` lie one after the other, and ``given`` are the sequences that its turns are given.
    Booleans are bytes. ``fused``: see `Writer`.
    """
    w = Writer(width, fused)
    jaxpr = program.jaxpr
    w.do(f"%row = mul i64 %blocks, {width}")
    shared = [
        None if x else _load(w, i, v.aval.dtype) for i, (v, x) in enumerate(zip(jaxpr.invars, varies, strict=True))
    ]
    pointers = [_pointer(w, "entries", i) if x is None else "" for i, x in enumerate(shared)]
    targets = [_pointer(w, "results", i) for i in range(len(jaxpr.outvars))]
    rows = streamed(program, IDENTITIES)
    for v, target in zip(rows, targets, strict=True):
        if v is not None:
            w.rows.setdefault(v, []).append(target)
    w.go("block")
    w.begin("block")
    w.do("%number = phi i64 [ 0, %entry ], [ %next, %BACK ]")
    head = len(w.lines) - 1
    w.do(f"%lane = mul i64 %number, {width}")
    values = [
        _lanes(w, pointers[i], v.aval.dtype) if x is None else x
        for i, (v, x) in enumerate(zip(jaxpr.invars, shared, strict=True))
    ]
    for target, row, x in zip(targets, rows, run(w, program, values), strict=True):
        if row is None:
            _store(w, target, w.wide(x))
    w.do("%next = add i64 %number, 1")
    w.do("%more = icmp slt i64 %next, %blocks")
    w.lines[head] = w.lines[head].replace("BACK", w.block)
    w.do("br i1 %more, label %block, label %done")
    w.begin("done")
    w.do("ret void")
    body = "\n".join(w.lines)
    others = "\n".join(w.declared.values())
    signature = "ptr %entries, ptr %results, ptr %given, i64 %blocks, i64 %rows"
    return f"define void @{NAME}({signature}) nounwind {{\nentry:\n{body}\n}}\n{others}\n"


def _memory(dtype: Any) -> np.dtype:
    return np.dtype(np.uint8) if np.dtype(dtype) == BOOL else np.dtype(dtype)


def _pointer(w: Writer, table: str, i: int) -> str:
    name = "%" + w.fresh("p")
    w.do(f"{name}.at = getelementptr ptr, ptr %{table}, i64 {i}")
    w.do(f"{name} = load ptr, ptr {name}.at")
    return name


def _read(w: Writer, pointer: str, dtype: Any, wide: bool) -> Number:
    kept = _memory(dtype)
    found = w.text(kept, wide, f"load {w.type(kept, wide)}, ptr {pointer}, align {kept.itemsize}")
    return found if kept == dtype else w.op("icmp ne", found, constant(0, kept), dtype=BOOL)


def _load(w: Writer, i: int, dtype: Any) -> Number:
    return _read(w, _pointer(w, "entries", i), dtype, False)


def _lanes(w: Writer, pointer: str, dtype: Any) -> Number:
    return _read(w, _offset(w, pointer, dtype), dtype, True)


def _offset(w: Writer, pointer: str, dtype: Any, place: str = "%lane") -> str:
    name = "%" + w.fresh("p")
    w.do(f"{name} = getelementptr {w.type(_memory(dtype), False)}, ptr {pointer}, i64 {place}")
    return name


def _store(w: Writer, target: str, x: Number, place: str = "%lane") -> None:
    kept = _memory(x.dtype)
    x = x if kept == x.dtype else w.convert("zext", x, kept)
    w.do(f"store {w.arg(x)}, ptr {_offset(w, target, x.dtype, place)}, align {kept.itemsize}")


# a program of numbers


def run(w: Writer, program: Any, values: Sequence[Number]) -> list[Number]:
    """The outputs of a jaxpr of numbers."""
    program = as_closed(program)
    return _evaluate(w, program.jaxpr, [_known(w, x) for x in program.consts], values)


def _evaluate(w: Writer, jaxpr: Any, constants: Sequence[Number], values: Sequence[Number]) -> list[Number]:
    env: dict = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *values], strict=True))
    read = lambda v: _known(w, v.val, v.aval.dtype) if isinstance(v, Literal) else env[v]  # type: ignore[attr-defined]
    for eqn in jaxpr.eqns:
        env.update(zip(eqn.outvars, _apply(w, eqn, [read(v) for v in eqn.invars]), strict=True))
    return [read(v) for v in jaxpr.outvars]


def _known(w: Writer, x: Any, dtype: Any = None) -> Number:
    x = np.asarray(x)
    dtype = x.dtype if dtype is None else np.dtype(dtype)
    # an array can be handed on, and read by a loop
    return w.array(x) if x.ndim else constant(x[()], dtype)


def _stream(w: Writer, eqn: Any, values: list[Number]) -> list[Number]:
    """Turns as many as the caller has rows, each of which is stored."""
    jaxpr, carried = eqn.params["jaxpr"], eqn.params["carried"]
    constants = values[: len(jaxpr.constvars)]
    start = w.like(values[len(constants) :], varying(eqn, [x.wide for x in values])[:carried])
    given = [(_pointer(w, "given", i), v.aval.dtype) for i, v in enumerate(jaxpr.invars[carried:])]
    count = Number("%rows", np.dtype(np.int64), False)

    def turn(carry: list[Number]) -> list[Number]:
        i, *state = carry
        here = [_read(w, _offset(w, pointer, dtype, i.name), dtype, False) for pointer, dtype in given]
        found = _evaluate(w, jaxpr, constants, [*state, *here])
        first = w.op("mul", i, Number("%row", i.dtype, False))
        place = w.op("add", first, Number("%lane", i.dtype, False))
        for v, x in zip(eqn.outvars[carried:], found[carried:], strict=True):
            for target in w.rows.get(v, ()):
                _store(w, target, w.wide(x), place.name)
        return [w.op("add", i, constant(1, i.dtype)), *found[:carried]]

    going = lambda carry: w.op("icmp slt", carry[0], count, dtype=BOOL)
    state = _loop(w, [constant(0, np.int64), *start], going, turn)[1:]
    return [*state, *(Number("a row", v.aval.dtype, True) for v in eqn.outvars[carried:])]


def _apply(w: Writer, eqn: Any, values: list[Number]) -> list[Number]:
    name = eqn.primitive.name
    if name in IDENTITIES:
        return values[: len(eqn.outvars)]
    if name in CALLS:
        return run(w, eqn.params[CALLS[name]], values)
    if name in CONTROL:
        return CONTROL[name](w, eqn, values)
    if name not in RULES or any(v.aval.shape for v in (*eqn.invars, *eqn.outvars)):
        raise Unsupported(name)
    found = RULES[name](w, eqn, values)
    expected = eqn.outvars[0].aval.dtype
    if found.dtype != expected:
        raise Unsupported(f"{name} of {', '.join(str(x.dtype) for x in values)}")
    return [found]


def _linear_solve(w: Writer, eqn: Any, values: list[Number]) -> list[Number]:
    ends = np.cumsum(eqn.params["const_lengths"])
    parts = [values[a:b] for a, b in zip([0, *ends], [*ends, None], strict=True)]
    return run(w, eqn.params["jaxprs"].solve, [*parts[2], *parts[4]])


def _loop(
    w: Writer,
    start: list[Number],
    going: Callable[[list[Number]], Number],
    turn: Callable[[list[Number]], list[Number]],
) -> list[Number]:
    """Numbers after a loop: those of lanes that have ended are kept while others go on."""
    before, head, body, after = w.block, *(w.fresh(name) for name in ("head", "body", "after"))
    w.go(head)
    w.begin(head)
    first = len(w.lines)
    with w.scope(w.active):
        carry = [w.joined(x.dtype, x.wide, [(x, before)]) for x in start]
        more = going(carry)
        if more.wide:
            more = w.both(more, w.active)
        w.branch(w.any(more), body, after)
        w.begin(body)
        with w.scope(more if more.wide else w.active):
            new = w.like(turn(carry), [x.wide for x in carry])
            if more.wide:
                new = [w.select(more, x, y) for x, y in zip(new, carry, strict=True)]
            for i, x in enumerate(new):
                w.lines[first + i] += f", [ {x.name}, %{w.block} ]"
            w.go(head)
    w.begin(after)
    return carry


def _while(w: Writer, eqn: Any, values: list[Number]) -> list[Number]:
    p = eqn.params
    a, b = p["cond_nconsts"], p["body_nconsts"]
    head, fixed, start = values[:a], values[a : a + b], values[a + b :]
    start = w.like(start, varying(eqn, [x.wide for x in values]))
    going = lambda carry: run(w, p["cond_jaxpr"], [*head, *carry])[0]
    return _loop(w, start, going, lambda carry: run(w, p["body_jaxpr"], [*fixed, *carry]))


def _scan(w: Writer, eqn: Any, values: list[Number]) -> list[Number]:
    p = eqn.params
    a, count = scan_counts(p)
    sequences = values[a + count :]
    if len(eqn.outvars) > count or any(x.name not in w.arrays for x in sequences):
        raise Unsupported("scan of arrays")
    start = w.like(values[a : a + count], varying(eqn, [x.wide for x in values]))
    going = lambda carry: w.op("icmp slt", carry[0], constant(p["length"], INT), dtype=BOOL)

    def turn(carry: list[Number]) -> list[Number]:
        i = w.op("sub", constant(p["length"] - 1, INT), carry[0]) if p["reverse"] else carry[0]
        entries = [w.entry(x, i) for x in sequences]
        return [w.op("add", carry[0], constant(1, INT)), *run(w, p["jaxpr"], [*values[:a], *carry[1:], *entries])]

    return _loop(w, [constant(0, INT), *start], going, turn)[1:]


def _cond(w: Writer, eqn: Any, values: list[Number]) -> list[Number]:
    branches = [as_closed(x) for x in eqn.params["branches"]]
    which, *operands = values
    flags = varying(eqn, [x.wide for x in values])
    which = converted(w, which, INT)
    last = len(branches) - 1

    def asked(i: int) -> Number:
        """What is out of range means the nearest."""
        name = "icmp sle" if i == 0 else "icmp sge" if i == last else "icmp eq"
        return w.op(name, which, constant(i, INT), dtype=BOOL)

    order = sorted(range(len(branches)), key=lambda i: size(branches[i].jaxpr))
    found = None
    if size(branches[order[0]].jaxpr) <= CHEAP and not _loops(branches[order[0]].jaxpr):
        found = w.like(run(w, branches[order.pop(0)], operands), flags)
    for i in order:
        mine = asked(i)
        if found is None:
            found = w.like([constant(0, v.aval.dtype) for v in eqn.outvars], flags)
        before, inside, after = w.block, w.fresh("inside"), w.fresh("outside")
        taken = w.both(mine, w.active) if mine.wide else mine
        w.branch(w.any(taken), inside, after)
        w.begin(inside)
        with w.scope(taken if mine.wide else w.active):
            new = w.like(run(w, branches[i], operands), flags)
            if mine.wide:
                new = [w.select(taken, x, y) for x, y in zip(new, found, strict=True)]
            end = w.block
            w.go(after)
        w.begin(after)
        found = [w.joined(x.dtype, x.wide, [(y, before), (x, end)]) for x, y in zip(new, found, strict=True)]
    assert found is not None
    return found


def _loops(jaxpr: Any) -> bool:
    return any(e.primitive.name in ("while", "scan") or any(map(_loops, inner(e))) for e in jaxpr.eqns)


CONTROL: dict[str, Callable] = {
    "while": _while,
    "scan": _scan,
    "cond": _cond,
    "stream": _stream,
    "custom_linear_solve": _linear_solve,
}
