"""Write ``cuda_checks.py``: the operators whose CUDA wrappers compare the devices of their tensors.

    python -m course_utils.simgpu.make_cuda_checks

The names come from PyTorch's ``native_functions.yaml``, which torchgen (installed with PyTorch) reads. Kept are the operators that have a CUDA
kernel with an exact device check, a CPU kernel (no other can meet a simulated tensor) and at least two tensors to compare. Where the
installed PyTorch was built with CUDA, the names of the wrappers are looked up in its library.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import torch
import torchgen
from torchgen.gen import parse_native_yaml
from torchgen.model import DeviceCheckType, DispatchKey, NativeFunction

from course_utils.simgpu.errors import wrapper_name

TARGET = Path(__file__).with_name("cuda_checks.py")

HEAD = '''"""Operators whose CUDA wrappers compare the devices of all their tensors, one word each: ``name`` or ``name.overload``.

Written by make_cuda_checks.py; do not edit. The names come from PyTorch {version}'s native_functions.yaml.
"""

# Structured kernels: the wrapper is called wrapper_CUDA_name_overload.
STRUCTURED = frozenset(
    """
{structured}
    """.split()  # noqa: SIM905
)

# The others: wrapper_CUDA_overload_name.
PLAIN = frozenset(
    """
{plain}
    """.split()  # noqa: SIM905
)
'''


def _kept(function: NativeFunction, cuda: object, cpu: object) -> bool:
    structured = function.structured or function.structured_delegate is not None
    for_all = function.has_composite_explicit_autograd_kernel
    if not structured and not (cuda.has_kernel(function) and (cpu.has_kernel(function) or for_all)):
        return False
    tensors = [a for a in function.func.arguments.flat_all if a.type.is_tensor_like()]
    return (
        function.device_check == DeviceCheckType.ExactSame
        and not function.func.is_out_fn()  # out= variants get the general message
        and (len(tensors) > 1 or any(a.type.is_list_like() is not None for a in tensors))
    )


def main() -> None:
    """Write the table beside this file and say how many names were found in the CUDA library."""
    folder = Path(torchgen.__file__).parent / "packaged/ATen/native"
    parsed = parse_native_yaml(str(folder / "native_functions.yaml"), str(folder / "tags.yaml"))
    cuda, cpu = parsed.backend_indices[DispatchKey.CUDA], parsed.backend_indices[DispatchKey.CPU]
    names: dict[bool, list[str]] = {True: [], False: []}
    for function in parsed.native_functions:
        if _kept(function, cuda, cpu):
            names[function.structured or function.structured_delegate is not None].append(str(function.func.name))
    lists = {
        key: textwrap.fill(
            " ".join(sorted(words)), 116, initial_indent=" " * 4, subsequent_indent=" " * 4, break_on_hyphens=False
        )
        for key, words in names.items()
    }
    TARGET.write_text(HEAD.format(version=torch.__version__.split("+")[0], structured=lists[True], plain=lists[False]))
    library = Path(torch.__file__).parent / "lib/libtorch_cuda.so"
    if library.exists():
        known = {word.decode() for word in re.findall(rb"wrapper_CUDA_\w+", library.read_bytes())}
        wrappers = [wrapper_name(name, True) for name in names[True]] + [
            wrapper_name(name, False) for name in names[False]
        ]
        missing = [name for name in wrappers if name not in known]
        print(f"{len(wrappers) - len(missing)} of {len(wrappers)} wrappers are in {library.name}; not: {missing}")


if __name__ == "__main__":
    main()
