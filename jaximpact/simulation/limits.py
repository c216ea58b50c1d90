"""Sizes beyond which a motion is executed in another way; the comment at each says what it counts and which
measurements chose it."""

from __future__ import annotations

# backends
# Entries m d of the gradients of m constraints by d coordinates from which XLA makes single motions. Of disks in a box,
# all pairs, native code takes a step .18 (gas) and .21 (pile) of XLA's time for 16 (5888 entries), .15 and .11 for 50
# (142,500; the pile while it falls and settles), and a third of it to compile.
MIN_XLA_GRADIENT_ENTRIES = 150_000
MAX_SMALL_SYSTEM = 8  # coordinates and constraints up to which native code is sure to be had
# Directions of a Jacobian times the square of coordinates and joints, from which each direction is a lane of its own.
# Of chains of bars in the plane, by MoreauJean, the first Jacobian then takes 1.9, 2.4 and 3.5 s for one, two and three
# bars (150, 1200, 4050), at once 2.7, 6.1 and 20 s; 200 motions of 1000 steps take .08, .41 and 1.4 s, at once .03, .27
# and 17 s.
MAX_JACOBIAN_ENTRIES = 1000
# The same of up to so many motions, whose first answer counts: of a box in space (896) it takes 9.5 s and then 12 ms,
# at once 21 s and 46 ms; of a rod (54) 4.7 s for 8.2, of four links (128) 4.2 for 7.2, of 16 disks (65,536) 20 for 28,
# later ones .5 to 1 times as long; of a double pendulum (16) 2.3 for 2.9, but later ones 2.4 times as long. Of one
# motion each direction always is: first gradients of nine take .59 to 1.0 of the time, later ones .42 to 1.05, of two
# links in 500 steps 1.4 (`MoreauJean`) and 2.7 (`PaoliSchatzman`).
MAX_JACOBIAN_ENTRIES_OF_FEW = 40
FEW_MOTIONS = 16

# loops
STABILITY_STEPS = 15  # after which the stability of the force is looked at; odd, since what is unstable alternates
MIN_SEGMENTED_STEPS = 32  # from which reverse mode through XLA keeps the states between segments only

# rows where neither h nor steps are given, of a scheme that chooses its own steps
DEFAULT_STEPS = 10  # of a motion of which one state is kept
DEFAULT_ROWS = 200  # of a motion of which all are kept

# chunks
CHUNK_BYTES = 256 * 2**20  # of saved rows in one automatic chunk
MAX_CHUNK_LANES = 16384  # lanes in one automatic chunk on a CPU,
MAX_DEVICE_CHUNK_LANES = 2**20  # and on an accelerator, which they have to fill
MAX_RESULT_SHARE = 1 / 8  # of an accelerator's free memory, up to which results of `ensemble` stay there
# Of a call of which the last one like it took no longer, up to which it runs in the calling thread: 1000 balls take .9
# ms a call with another thread, and .7 without.
MAX_INLINE_SECONDS = 2e-3
MAX_WORK_RATIO = 1.3  # the total work of a call over the sum of its lanes' steps
MAX_STEPS_RATIO = 1.15  # by which lanes of one chunk differ in their number of steps

# calls
MAX_KNOWN_CALLS = 32  # of `ensemble`, of which is kept what they have in common with others

# reverse mode
MAX_FORWARD_DIRECTIONS = 32  # inputs up to which reverse mode is by the Jacobian in forward mode,
# of one motion up to so many, or as many as times the square of d coordinates make no more than so much: a gradient by
# walking back takes 2.5 (d = 2, 4 inputs), 1.6 (2, 28) and 1.8 (4, 8) of the time of one by the Jacobian, 1.1 (4, 16),
# .67 (5, 10), .53 (6, 12), .8 (64, 8) and .06 (64, 16).
MAX_FORWARD_DIRECTIONS_OF_ONE = 8
MAX_FORWARD_ENTRIES_OF_ONE = 200
MAX_JACOBIAN_BYTES = 1e8  # of a Jacobian of all rows, up to which it is
MAX_STATE_BYTES = 2**30  # of states to keep; beyond it reverse mode goes through XLA, which computes them again
MAX_SPARE_BYTES = (
    2**26
)  # of states, whose memory stays for the next call: new memory takes longer than what is written to it
MAX_SPARE_WALKS = (
    32  # of one program and number of lanes that wait with their states, beyond which the oldest gives up its memory
)
# Numbers moved, beyond which XLA's products of matrices over all lanes may be the faster way. Of a policy 4-n-n-1
# (float32, 200 steps) over 256 lanes a gradient takes native code .45 of XLA's time for n = 32 (1249 numbers), .64 for
# 64 (4545) and .44 for 128 (17,300), over 4096 lanes .42 for 32, and of a hopper in four coordinates with a network
# 8-32-32-2 over 256 lanes .2; the first one a third of it or less.
MAX_REVERSE_INPUTS = 20_000
MIN_REVERSE_LANES_FOR_THREADS = 16  # lanes from which they are shared out to all cores: a lane takes many steps
