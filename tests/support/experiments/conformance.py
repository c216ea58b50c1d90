"""The event-driven reference with saltation matrices, and the cases without friction."""

from conformance import cases
from conformance.reference import central_differences, reference
