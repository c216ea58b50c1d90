"""What records the numbers of the conformance cases, in many digits."""

from conformance import exact_numbers, frictional_numbers
