"""Random bodies that bounce, and their reference with located impacts."""

from cases.tumbling_bodies import KINDS, SCHEMES, answer, compare, draw, slopes
