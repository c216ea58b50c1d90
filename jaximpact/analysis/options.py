"""Options that analyses pass on to the motions that they compute, shown and checked by name."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast, get_type_hints

from ..simulation.call import LaneOptions as LaneOptions
from ..simulation.call import MotionOptions as MotionOptions

P = ParamSpec("P")
R = TypeVar("R")


def with_options(kind: type[MotionOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorator of ``function(..., **options: Unpack[kind])``: the function receives all options of ``kind``,
    those not given as None.

    Its signature shows the options by name. A call with an unknown option raises TypeError.
    """
    annotations = get_type_hints(kind)

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        *own, last = signature.parameters.values()
        assert last.kind is last.VAR_KEYWORD
        shown = [
            inspect.Parameter(name, last.KEYWORD_ONLY, default=None, annotation=a) for name, a in annotations.items()
        ]
        known = signature.replace(parameters=[*own, *shown])

        @functools.wraps(function)
        def call(*given: P.args, **options: P.kwargs) -> R:
            for name in options:
                if name not in known.parameters:
                    near = difflib.get_close_matches(name, known.parameters, 1)
                    advice = f"; did you mean {near[0]!r}?" if near else f"; it takes {', '.join(known.parameters)}"
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}{advice}")
            return cast(Callable[..., R], function)(*given, **(dict.fromkeys(annotations) | options))

        vars(call)["__signature__"] = known
        return call

    return decorate
