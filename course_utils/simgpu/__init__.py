"""A simulated GPU: what a device does to a PyTorch program, on a machine that has none.

    from course_utils.simgpu import counters, enable, simulated_gpu

    with simulated_gpu() as device:            # or enable(), once, for a whole notebook
        model = nn.Linear(4, 2).to(device)     # parameters now say device='sim:0'
        model(torch.randn(3, 4))               # RuntimeError: Expected all tensors to be on the same device, ...
        counters().h2d_bytes                   # bytes that went to the device

Every tensor of ``torch.device("sim")`` is an ordinary CPU tensor whose memory is marked. So all numbers are real, and
autograd, modules, optimizers and data loaders are PyTorch's own.

Simulated, and tested by the same tests that can run on CUDA (tests/simgpu):

* devices: ``sim:0``, ``sim:1`` and so on; which operators refuse tensors of different devices, in CUDA's words (PyTorch 2.14.1);
  what may mix; which conversions are refused (``numpy``), which wait (``item``, ``tolist``, printing)
* moves: modules in place, tensors by copy, gradients back, optimizer state where CUDA keeps it, ``torch.save`` and
  ``torch.load`` with ``map_location``, data loaders with ``pin_memory``
* pinned memory and ``non_blocking`` in both directions, with both mistakes: a queued copy is done as late as a GPU might do it
* exact counts of transfers, bytes, operators, synchronisations and hazards; memory in use and at the peak, rounded to
  512 bytes a block as CUDA's allocator does; running out of it
* autocast by CUDA's lists, ``GradScaler``, checkpointing, ``torch.accelerator``, ``torch.sim``

Not simulated. Use of it raises an error that says so (:class:`Unsupported`), except for the last three:

* time: there is no clock, and nothing gets faster. ``Event.elapsed_time`` raises
* ``torch.compile``, sparse tensors, second streams, CUDA graphs, reserved memory
* CUDA's random numbers: the device draws what the CPU would draw from the same seed
* CUDA's rounding: results are the CPU's, bit for bit; a GPU's differ in the last digits
* threads that were running before the simulation was switched on: their results fall to the host

The names and rules that were copied from CUDA's behaviour come from PyTorch's source. The simulation itself has been
tested on CPUs only; the tests' CUDA side is there for a machine that has a GPU.
"""

from __future__ import annotations

from course_utils.simgpu.colours import NAME
from course_utils.simgpu.counters import Counters, Event
from course_utils.simgpu.counting import counters, counting, events
from course_utils.simgpu.errors import Unsupported
from course_utils.simgpu.switch import disable, enable, simulated_gpu
from course_utils.simgpu.world import active as is_enabled

__all__ = [
    "NAME",
    "Counters",
    "Event",
    "Unsupported",
    "counters",
    "counting",
    "disable",
    "enable",
    "events",
    "is_enabled",
    "simulated_gpu",
]
