"""The warm process: imports once what every kernel needs, then forks a keeper, and through it a kernel, for each order.

    python -m grading.kernels.warm DESCRIPTOR [MODULE ...]

Orders come over the socket that it was started with, each with the socket of the new keeper. It runs no student code and
ends when the grading process does.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import sys
import tempfile

from grading.kernels.keeper import Order, keep

__all__ = ["PRELOAD", "main"]

# What the notebooks import, and what an ipykernel imports while it starts.
PRELOAD = (
    "numpy",
    "torch",
    "torchvision",
    "matplotlib.pyplot",
    "cv2",
    "PIL.Image",
    "ipywidgets",
    "ipykernel.kernelapp",
    "ipykernel.ipkernel",
    "ipykernel.zmqshell",
    "ipykernel.debugger",
    "tornado.platform.asyncio",
    "pdb",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.core.pylabtools",
    "IPython.extensions.storemagic",
    "matplotlib_inline.config",
    "matplotlib_inline.backend_inline",
    "course_utils.checking",
    "course_utils.observe.seal",
)


def main(arguments: list[str]) -> None:
    channel = socket.socket(fileno=int(arguments[0]))
    for name in arguments[1:]:
        importlib.import_module(name)
    if "course_utils.observe.seal" in sys.modules:
        sys.modules["course_utils.observe.seal"].prepare()
    gc.collect()
    gc.freeze()  # a collection in a kernel would write to, and so copy, every page with an object in it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a keeper ended: it says so itself
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    while os.getppid() == parent:
        if not select.select([channel], [], [], 2.0)[0]:
            continue
        text, files, _, _ = socket.recv_fds(channel, 1 << 20, 1)
        if not text:
            return
        if os.fork() == 0:
            channel.close()
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)
            keep(socket.socket(fileno=files[0]), Order(**json.loads(text)), run_kernel)
            os._exit(0)
        os.close(files[0])


def run_kernel(order: Order) -> None:
    """Be an ipykernel, as if it had been started by itself."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None  # remembered from before the environment changed
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
    for name in [n for n in sys.modules if n.partition(".")[0] in ("grading", "rfc3987_syntax")]:
        del sys.modules[name]
    _output_over_a_file(f"{order.inside}/output")
    from ipykernel.kernelapp import IPKernelApp
    from ipykernel.zmqshell import ZMQInteractiveShell

    # `exit()` ends a kernel a moment later, in the midst of a cell that can do nothing for it.
    ZMQInteractiveShell.ask_exit = lambda shell: None
    sys.argv = ["ipykernel_launcher", *order.arguments]
    IPKernelApp.launch_instance(order.arguments)


def _output_over_a_file(path: str) -> None:
    """ipykernel takes what forked processes print over a TCP port; let it be a socket file, there may be no ports."""
    import zmq
    from ipykernel.iostream import IOPubThread
    from zmq.eventloop.zmqstream import ZMQStream

    def receive(thread: IOPubThread) -> None:
        thread._pipe_uuid = os.urandom(16)
        end = thread.socket.context.socket(zmq.PULL)
        end.linger = 0
        end.bind(f"ipc://{path}")
        thread._pipe_in = ZMQStream(end, thread.io_loop)
        thread._pipe_in.on_recv(thread._handle_pipe_msg)

    def send(thread: IOPubThread) -> tuple[zmq.Context, zmq.Socket]:
        context = zmq.Context()
        end = context.socket(zmq.PUSH)
        end.linger = 3000
        end.connect(f"ipc://{path}")
        return context, end

    IOPubThread._setup_pipe_in, IOPubThread._setup_pipe_out = receive, send


if __name__ == "__main__":
    main(sys.argv[1:])
