"""Which errors are this library's own."""

from pathlib import Path

import jaximpact as ji

PACKAGE = str(Path(ji.__file__).parent)


def is_ours(error) -> bool:
    """Whether an error is this library's: raised by it, and of a kind that it documents."""
    trace = error.__traceback__
    while trace.tb_next is not None:
        trace = trace.tb_next
    return isinstance(error, ValueError | TypeError | RuntimeError) and trace.tb_frame.f_code.co_filename.startswith(
        PACKAGE
    )
