"""Frictional motions in closed form, and how calls of this package are compared with them."""

from cases.friction import (
    ALL,
    BANDS,
    DISK,
    MOTIONS,
    PULLED,
    ROWS,
    SCHEME,
    VARIED,
    G,
    call_of,
    end,
    errors,
    exact_of,
    jacobian,
    numbers_of,
    order,
    row,
)
