"""Cache keys of programs: hashes of jaxprs, so that machine code is found on disk without emitting the program's IR.

Programs with equal keys have the same primitives, shapes and dtypes, parameters and constants, and are emitted by the
same source code. A program with a parameter that has no stable hash, such as a Python function, has no key.
"""

from __future__ import annotations

import enum
import hashlib
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr
from jax.typing import ArrayLike

from ...jaxtools.argument_checks import is_random_key, is_traced
from ...jaxtools.jaxpr_tools import called_jaxpr, is_literal, scan_counts
from ...jaxtools.jaxpr_types import AnyJaxpr, Equation, OpenJaxpr, Operand, Params
from ...jaxtools.outlined import is_outlined

# parameters of primitives that do not affect what is computed: rules for derivatives and batching, placement, names
IGNORED_PARAMS = {
    "custom_jvp_call": {"jvp_jaxpr_fun", "symbolic_zeros", "num_consts"},
    "custom_vjp_call": {"fwd_jaxpr_thunk", "bwd", "out_trees", "symbolic_zeros", "num_consts"},
    "custom_vmap_call": {"rule"},
    "jit": {"in_shardings", "out_shardings", "in_layouts", "out_layouts", "donated_invars", "ctx_mesh", "name",
    "inline",
            "keep_unused", "compiler_options_kvs"},
    "remat2": {"policy"},
    "checkpoint": {"policy"},
    "linear_call": {"transpose_thunk", "num_callee_consts", "num_res"},
    "scan": {"ft_in", "ft_out"},  # trees of operands, of which their numbers count
}  # fmt: skip
IGNORED_PARAMS["pjit"] = IGNORED_PARAMS["jit"]
IGNORED_ELSEWHERE = {"sharding", "out_sharding"}
PLAIN_TYPES = {type(None), bool, int, float, complex, str, bytes}
SOURCES = ("compiler/llvm", "compiler/scalar")  # code is kept under a key of what wrote it
SOURCE_FILES = (
    "compiler/limits.py",
    "jaxtools/jaxpr_tools.py",
    "jaxtools/outlined.py",
    "jaxtools/known_arrays.py",
    "jaxtools/tables.py",
)
log = logging.getLogger(__name__)


class NoStableKey(Exception):
    """Raised for a parameter without a stable hash: the program then cannot be cached on disk."""


def program_key(closed: ClosedJaxpr, variables: Sequence[Operand], *flags: object) -> str | None:
    """Returns the cache key of the program of a closed jaxpr, or None if it has no stable key.

    ``variables``: inputs of the program. Values of other variables that the jaxpr closes over are part of the key;
    so are the ``flags``.
    """
    hasher = _ProgramHasher(variables)
    try:
        hasher.value(flags)
        hasher.closed_jaxpr(closed)
    except NoStableKey as what:
        log.info("a program is not cached on disk, since it has a parameter without a stable hash: %s", what)
        return None
    return hasher.digest()


@cache
def _sources() -> bytes:
    """Hash of the source code of the modules that emit programs."""
    root, found = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(
        [*(path for room in SOURCES for path in (root / room).glob("*.py")), *(root / file for file in SOURCE_FILES)]
    ):
        found.update(path.read_bytes())
    return found.digest()


def _params(eqn: Equation) -> Params:
    """Returns the parameters of an equation that affect what is computed."""
    name = eqn.primitive.name
    if name == "call_hi_primitive":  # an operation that is kept whole stands for the jaxpr that it makes
        return {"jaxpr": called_jaxpr(eqn)}
    apart = IGNORED_PARAMS.get(name, IGNORED_ELSEWHERE)
    found = {key: x for key, x in eqn.params.items() if key not in apart}
    return found | {"counts": scan_counts(eqn.params)} if name == "scan" else found


class _ProgramHasher:
    """Hash of a program, accumulated part by part; variables are numbered in the order of their definition."""

    def __init__(self, variables: Sequence[Operand]) -> None:
        self.parts: list[bytes] = [_sources()]
        self.numbers: dict[Operand, int] = {}
        self.count = 0  # of definitions: a variable that two jaxprs share is defined in each of them
        self.inputs = set(variables)
        # number of each jaxpr by its id, and the jaxpr, which is kept alive so that its id stays its own
        self.jaxpr_numbers: dict[int, tuple[int, AnyJaxpr]] = {}
        self.kinds: dict[ShapedArray, str] = {}  # text by aval

    def digest(self) -> str:
        return hashlib.sha256(b"\0".join(self.parts)).hexdigest()

    def text(self, part: str) -> None:
        """Adds a text to the hash."""
        self.parts.append(part.encode())

    def value(self, x: Any) -> None:
        """Adds a parameter of any supported type.

        Raises:
            NoStableKey: the parameter has another type.
        """
        if type(x) in PLAIN_TYPES:
            self.text(f"{type(x).__name__} {x!r}")
        elif type(x) in (tuple, list):
            self.text(f"{type(x).__name__} {len(x)}")
            for y in x:
                self.value(y)
        elif isinstance(x, ClosedJaxpr):
            self.closed_jaxpr(x)
        elif isinstance(x, OpenJaxpr):
            self.jaxpr(x)
        elif isinstance(x, enum.Enum):
            self.text(f"{type(x).__name__}.{x.name}")
        elif isinstance(x, np.dtype) or (isinstance(x, type) and issubclass(x, np.generic)):
            self.text(f"dtype {np.dtype(x).str}")
        elif isinstance(x, np.ndarray | np.generic | jax.Array):
            self.array(x)
        elif isinstance(x, tuple):
            self.text(type(x).__name__)
            self.value(tuple(x))
        elif isinstance(x, dict):
            self.value(sorted(x.items(), key=str))
        elif hasattr(x, "__dataclass_fields__"):
            self.text(type(x).__name__)
            self.value([getattr(x, name) for name in x.__dataclass_fields__])
        else:
            raise NoStableKey(f"a {type(x).__name__}")

    def array(self, x: ArrayLike | np.generic) -> None:
        """Adds an array with its entries; NoStableKey for a tracer."""
        if is_traced(x):
            raise NoStableKey("a traced array")
        if is_random_key(x):
            raise NoStableKey("a random key")
        x = np.asarray(x)
        self.text(f"array {x.dtype.str} {x.shape}")
        self.parts.append(x.tobytes())

    def closed_jaxpr(self, closed: ClosedJaxpr) -> None:
        """Adds a jaxpr and its constants, except those that are inputs of the program."""
        self.jaxpr(closed.jaxpr)
        for v, x in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            if v not in self.inputs:
                self.array(x)

    def jaxpr(self, jaxpr: AnyJaxpr) -> None:
        # a jaxpr that occurs again is not hashed again
        if id(jaxpr) in self.jaxpr_numbers:
            self.text(f"again {self.jaxpr_numbers[id(jaxpr)][0]}")
            return
        self.jaxpr_numbers[id(jaxpr)] = len(self.jaxpr_numbers), jaxpr
        self.text(f"jaxpr {len(jaxpr.constvars)} {len(jaxpr.invars)} {[v in self.inputs for v in jaxpr.constvars]}")
        self.number_variables([*jaxpr.constvars, *jaxpr.invars])
        for eqn in jaxpr.eqns:
            name = eqn.primitive.name
            self.text(f"{name} {is_outlined(eqn)}")
            self.operands(eqn.invars)
            if name == "stream":  # its constants are operands, which newer versions of jax keep with its jaxpr too
                self.inputs.update(eqn.params["jaxpr"].constvars)
            for key, x in sorted(_params(eqn).items()):
                self.text(key)
                self.value(x)
            self.number_variables(eqn.outvars)
        self.operands(jaxpr.outvars)

    def number_variables(self, variables: Sequence[Operand]) -> None:
        """Numbers variables where they are defined, and adds their shapes and dtypes."""
        for v in variables:
            self.numbers[v] = self.count
            self.count += 1
            self.text(self.kind(v.aval))

    def kind(self, aval: ShapedArray) -> str:
        if aval not in self.kinds:
            self.kinds[aval] = f"{aval.dtype} {aval.shape}"
        return self.kinds[aval]

    def operands(self, operands: Sequence[Operand]) -> None:
        """Adds operands of an equation to the hash: the numbers of variables, the values of literals."""
        for v in operands:
            if is_literal(v):
                self.text(self.kind(v.aval))
                self.array(np.asarray(v.val, v.aval.dtype))
            else:
                self.text(str(self.numbers[v]))
