"""Sizes beyond which the compiler generates code in another way; the comment at each constant says what it counts, and
why it has this value."""

from __future__ import annotations

# arrays as scalars, in all emitters
MAX_SCALARS = 512  # entries of an array, or terms of a product, that become scalars; larger ones are loops over memory
MAX_SELECTED_ENTRIES = (
    32  # of an array of which one at a variable index is selected; in larger ones it is looked up in memory
)
MAX_SORTED_SCALARS = 32  # entries that are sorted by exchanges of scalars, half the square of their number
MIN_LOOP_COST = 1000  # operations that a loop counts for, besides those of its body
ARRAY_PRIMITIVE_COST = 50  # operations of a primitive on an array in memory

# LLVM: programs of one lane, whose arrays lie side by side in registers where a share of all entries belongs to arrays
# of so many. On 8 entries a register the time of scalars, with that share: double pendulum 1.09, its gradient 1.34 (0);
# three links 1.07 (0), their gradient .90 (.14); four links 1.18 (0), their gradient .66 (.43); six links .90, its
# derivatives .73 and .94 (.44 and more), in .7 of the time to compile.
MIN_ENTRIES_SIDE_BY_SIDE = 24
MIN_SHARE_SIDE_BY_SIDE = 0.1
# In place of MAX_OPS_LLVM: one of 240,000 takes 5 s. Jacobians of bodies in space take 35 s to the first answer with
# 1,290,000, and more than 600 through XLA; 93 s with 2,270,000.
MAX_OPS_OF_A_LANE = 3_000_000
# entries, of a root, division or function, that make an instruction on a register; of others more than half of one
MIN_DEAR_SIDE_BY_SIDE = 2
MAX_SELECTED_ENTRIES_OF_A_LANE = (
    4  # in place of MAX_SELECTED_ENTRIES: of a lane by itself looking up is one instruction
)

# LLVM: programs
# Operations, those of a function that is called once: larger ones take too long to compile. Of a box in space with
# eight corners a motion has 80,000 and its Jacobian 183,000, of a planar quadruped with eight contacts 99,000 and
# 226,000: first answers take a second for each 10,000 to 15,000 of them, and through XLA several times as long.
MAX_OPS_LLVM = 640_000
# A program of more operations takes smaller arrays for large ones, as loops over memory. Of many lanes that is worth
# while only where it would be too
# large: four links (60,000) compile in 2.6 s and take 1.3 ms, with loops 3.6 s and 15; the Jacobian of the box takes
# more than twice as long with them.
LONG_PROGRAM_OPS = 600_000
MAX_SCALARS_IN_LONG_PROGRAMS = 32  # entries
# Of a program of a single lane more operations: that of 16 disks with 184 gaps (180,000) compiles in 4.6 s and takes
# 1.8 µs a step, with loops 2.7 s and 4.0 µs; its derivative has 1,400,000 and more.
LONG_PROGRAM_OPS_OF_A_LANE = 400_000
# A program of many lanes of more operations becomes one of a single lane, for one after the other, if arrays lie side
# by side in that: the Jacobian of 16 disks (656,000) then takes 10.6 s to the first answer, of many lanes with loops
# 43, as through XLA.
MAX_OPS_OF_MANY_LANES = 300_000
# Registers that make up a vector, in programs of so many operations, on processors with registers of 64 bytes: 12 to 19
# % of the time of a double pendulum, whose instructions wait for one another. Shorter programs compute blocks of lanes,
# longer ones keep the processor busy, and processors with 32 bytes have too few registers.
REGISTERS_PER_VECTOR = 2
OPS_WITH_WIDE_VECTORS = range(3_300, 8_000)
# Operations of a branch, in programs of a single lane, from which on it is a function of its own: the derivative of 16
# disks, 180,000 lines, takes LLVM 7 s where it took 38 as one function; from 5000 on a step of six links takes 6 %
# longer, and from 30,000 on the derivative compiles as quickly.
MIN_BRANCH_OPS = 12_000
# In place of MAX_SCALARS in what runs once, the start, which LLVM does not optimise either: with that the first answer
# of 16 disks takes 3.3 s, without 3.9.
MAX_SCALARS_WHERE_COLD = 32
# Operations of a start from which on it is compiled to be short: in the derivative of six links (24,000) it then takes
# 0.4 ms and saves 0.3 s of 7; of 16 disks (30,000, its derivative 110,000) it saves a third of the first answer.
MIN_COLD_OPS = 25_000
# Operations below which a program of many lanes makes a step for a block of lanes before the next one
# (`llvm/lane_blocks.py`): a forced oscillator beside a wall takes .45 ns a step (1.26 vector after vector), by
# `MoreauJean` (2100) 1.6 (2.8), two links (3200) 9.4 (10.6); a double pendulum (3400, with its account 5700) would take
# 7.9 where it takes 7.2, and 10.2 where it takes 9.3.
MAX_OPS_IN_BLOCKS = 3_300
# Instructions of a step that wait for one another from step to step, up to which such a program keeps its state in
# registers, unless functions or loops of the time are the same in all lanes: a ball in free fall, with 1 of them, takes
# .27 ns a step so, and .29 in blocks; an oscillator has 6.
MIN_RECURRENCE = 3
# positions and velocities of that oscillator take a quarter of a cache; by 16 a step takes .55 ns where it takes .50,
# by 256 .49
VECTORS_OF_A_BLOCK = 64
# Share of its operations that a program is left with where functions are emitted once, up to which they are, rather
# than in place: of 16 disks without the status (.86) a step takes 1.2 times as long with them, and the first answer as
# long. Of many lanes, whose time counts, they are in place up to so many
# operations: of 256 boxes in space (116,000) a call takes 30 ms, and 41 with functions, and the first answer 5.1 s, and
# 4.5; of 256 hoppers (59,800) gradients take .71 s, and .83, and the first ones as long within 3 %.
MAX_SHARED_SHARE = 0.75
MAX_OPS_IN_PLACE = 150_000
MIN_FUNCTION_OPS = 300  # operations of a function that is called from several places, from which on it is emitted once
MAX_SPECULATED_OPS = 40  # operations of a branch that always runs, whether any lane selects it or not
# Operations of a scan over constants, in programs of many lanes, up to which its turns are written out one after the
# other. By order 8 the oscillator with a wall (2000, its Jacobian 3800) then takes .63 of the time, its Jacobian .47,
# and compiles in .6 and 2.0 s where it took .6 and 1.7; the double pendulum (7400) would take .77, and compile in 1.9 s
# where it takes 1.3.
MAX_OPS_WRITTEN_OUT = 4_000
MAX_COLUMNS_BY_SHUFFLES = 4  # of an array whose rows are summed, a pack of rows at a time: more are gathered
PARALLEL_SUMS = 8  # independent sums of one loop over memory, which hide the latency of additions

# Characters of IR of a program of one lane from which on code without optimisation answers first
# (`llvm/optimized_later.py`): some 10,000 instructions, which LLVM optimises in .5 s.
MIN_BYTES_QUICK_FIRST = 500_000
FEW_LANES = 64  # up to which such code may answer: directions of a derivative, say. More wait for the optimised code.

# LLVM: calls
MAX_COPIED_BYTES = 4096  # shared operands up to this size are copied into the program's own memory
MAX_STACK_BYTES = 2**16  # of a motion within a program of XLA, up to which its memory lies on the stack
MIN_LANES_FOR_THREADS = 256  # lanes of a call from which they are shared out to all cores
MAX_LAYOUTS = 16  # of the memory of calls of a program, one for each number of lanes
MAX_LOADED_PROGRAMS = 256  # programs kept in memory
MAX_CACHE_BYTES = 256 * 2**20  # of kept code on disk; beyond it the least recently used files are removed

# GPU
THREADS_OF_A_BLOCK = 32  # lanes of a block: one warp
LONG_KERNEL_OPS = 20_000  # in place of LONG_PROGRAM_OPS
# operations of a kernel: one of 22,000 takes 2 s to compile, of 45,000 11 s, of 56,000 20 s, of 86,000 51 s
MAX_OPS_KERNEL = 60_000
# of memory of a thread's own; the driver keeps it for all threads that can run at once, some 270,000 on an H100
MAX_LOCAL_BYTES = 2**14
