"""LLVM IR to object code for this processor. It needs llvmlite alone, so that a process without jax can
do it (`optimized_later`)."""

from __future__ import annotations

import sys
from functools import partial
from types import ModuleType

QUICK, FULL = (
    0,
    2,
)  # levels of optimisation: code in a tenth of the time, which takes 1.3 to 2.4 times as long to run; and the best


class Target:
    """LLVM's target for this processor, and its compiler; ``binding``: the module `llvmlite.binding`."""

    def __init__(self, binding: ModuleType) -> None:
        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        self.binding, self.cpu = binding, binding.get_host_cpu_name()
        self.known_features = binding.get_host_cpu_features()
        self.features = self.known_features.flatten()
        self.triple = binding.get_default_triple()
        make = binding.Target.from_triple(self.triple).create_target_machine
        self.new_machine = partial(make, cpu=self.cpu, features=self.features, jit=True)
        self.machines = {level: self.new_machine(opt=level) for level in (QUICK, FULL)}

    def compile(self, text: str, level: int, loops: bool = False) -> bytes:
        """Compiles a module to object code, at the level `QUICK` or `FULL`.

        ``loops``: with all optimisation passes of O2, which vectorise loops over arrays; at the level `FULL` then.
        """
        binding, machine = self.binding, self.machines[FULL if loops else level]
        module = binding.parse_assembly(text)
        module.verify()  # what reads a value that no block before it has made would end the process, or be wrong
        module.triple = machine.triple
        module.data_layout = str(machine.target_data)
        builder = binding.create_pass_builder(machine, binding.create_pipeline_tuning_options(speed_level=2))
        if loops:
            builder.getModulePassManager().run(module, builder)
            return machine.emit_object(module)
        # The writer has made vectors and eliminated common subexpressions: the other passes of O2 take ten times as
        # long, and found nothing more. Both levels have these, so that code is generated of the same instructions.
        passes = binding.create_new_module_pass_manager()
        passes.add_instruction_combine_pass()
        passes.add_simplify_cfg_pass()
        passes.add_aggressive_dce_pass()
        passes.run(module, builder)
        return machine.emit_object(module)


def main() -> None:
    """Compiles the module on standard input, and writes its object code to standard output;
    the first argument is llvmlite's folder."""
    import os

    os.nice(5)  # the process that asked goes on with what it has
    sys.path.insert(0, sys.argv[1])
    import llvmlite.binding

    code = Target(llvmlite.binding).compile(sys.stdin.buffer.read().decode(), FULL)
    sys.stdout.buffer.write(code)


if __name__ == "__main__":
    main()
