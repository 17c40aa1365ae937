"""PyTorch's own error texts, and what to try. One table for all exercises: a learner meets the same words everywhere."""

from __future__ import annotations

import re

__all__ = ["ADVICE", "advice"]

# (pattern in "Class: message", one line of advice)
ADVICE = [
    (r"^TimeIsUp", "a loop without an end? Or a worker waits for ever: try num_workers=0"),
    (r"DataLoader worker.*(exited|killed)", "a worker died, and could not say why: try num_workers=0"),
    (r"SIGSEGV", "memory that may only be read was written: copy what a memmap gives you"),
    (r"SIGKILL|exited unexpectedly|killed by signal", "a process was killed, or ran out of memory: try smaller pieces"),
    (r"still not done", "something waits for ever: a lock, a queue, a worker that is gone"),
    (r"left with exit code", "the process ended itself: no exit() or os._exit() in an answer"),
    (r"Seed must be between", "a seed for np.random.seed has 32 bits: take it modulo 2**32"),
    (r"PIL Image|pic should be", "make an image or a tensor of the array first, then transform it"),
    (r"no attribute '_shutdown_workers'", "without workers, or without persistent ones, there is none to shut down"),
    (r"[Tt]oo many open files", "batches and iterators of workers hold file descriptors: let them go"),
    (r"No space left on device|shared memory", "shared memory is full: smaller batches, or fewer in advance"),
    (r"batch must contain|expects each tensor to be equal size", "items differ in shape or type: pad or convert them"),
    (r"[Cc]an(no|')t pickle", "leave out of the pickle what cannot travel: see __getstate__"),
    (r"^FileNotFoundError", "a file is not there: say what is to happen then, or correct its name"),
    (r"strides? .*negative|negative stride", "copy the array first: array[..., ::-1].copy() has positive strides"),
    (r"view size is not compatible", "view never copies; ask whether a copy is allowed, then use reshape"),
    (r"not writable|read-only", "copy the array before you write into it"),
    (r"not a multiple of the element", "torch needs steps of whole elements: give the tensor its own memory"),
    (r"numpy\(\) on Tensor that requires grad", "NumPy knows no gradients: call detach() first"),
    (
        r"'numpy.ndarray' object has no attribute",
        "an array came in: ask isinstance(x, torch.Tensor) before you treat it",
    ),
    (
        r"'(str|int|float|bool|list|dict|tuple)' object has no attribute '(to|device|cpu|detach)'",
        "not everything that comes in is a tensor: ask isinstance first",
    ),
    (
        r"Found no NVIDIA driver|not compiled with CUDA",
        "there is no CUDA here: torch.accelerator knows every kind of GPU",
    ),
    (r"'float' object cannot be interpreted", "a float came where only a whole number will do"),
    (r"byte order", "change the byte order first: array.astype(array.dtype.newbyteorder('='))"),
    (r"can't convert np.ndarray of type", "this dtype has no counterpart in torch: convert the array first"),
    (r"Trying to resize storage|not resizable", "memory that NumPy owns cannot be resized: copy it first"),
    (r"result type \w+ can't be cast", "an in-place operation keeps the dtype: use x = x + y, or convert x first"),
    (
        r"(Input|weight|bias) type \(torch\.(sim|cuda)\.",
        "one type names a GPU, the other does not: move one with .to(device)",
    ),
    (
        r"expected scalar type|should be the same|same dtype",
        "two operands differ in dtype: convert one with .to(dtype)",
    ),
    (
        r"same device|on the expected device|at least two devices",
        "two operands live on different devices: move one with .to(device)",
    ),
    (r"deserialize object on", "the file names a device that is not here: give torch.load a map_location"),
    (r"device type tensor to numpy", "NumPy reads host memory only: bring the tensor back with .cpu()"),
    (r"BackwardHookFunction", "full backward hooks and in-place layers do not go together: hook tensors"),
    (r"register a hook on a tensor that doesn't require", "ask requires_grad of the tensor before you hook it"),
    (r"Inplace update to inference tensor", "made under inference_mode: clone it outside before you write to it"),
    (r"element 0 of tensors does not require grad", "the loss has no graph: look for detach, no_grad, item or .data"),
    (r"leaf Variable that requires grad", "an update belongs under torch.no_grad(); a formula works on a clone()"),
    (r"written-to tensor refers to a single memory", "an expanded tensor has one number for many: work out of place"),
    (r"must be Tensor, not RemovableHandle", "what a forward hook returns replaces the output: return nothing"),
    (r"Expected more than 1 value per channel", "BatchNorm is in train mode here: did you mean to call eval()?"),
    (r"Boolean value of Tensor with more than one", "== and `in` compare numbers; `is` asks: the same object?"),
    (r"unsupported operand type.*NoneType", "one of the two is None: ask `is None` before you compute with it"),
    (r"modified by an inplace operation", "an operation changed a value that backward needs: do it out of place"),
    (
        r"unscale_\(\) (has already been called|is being called after)",
        "scaler.update() ends a step: call it once, after scaler.step(optimizer)",
    ),
    (r"over the budget of", "one pass is len(images) images; reading for statistics counts as well"),
    (r"source state dict is empty", "a scaler switched off has no state: save and load it only when it is on"),
    (r"does not require grad", "the graph was cut before this point: look for detach, no_grad or .data"),
    (
        r"backward through the graph a second time",
        "the graph is freed by backward: build it again, do not keep the loss",
    ),
    (r"mat1 and mat2 shapes", "Linear works on the last axis: print the shape just before this line"),
    (
        r"shape .* is invalid for input of size|invalid for input of size",
        "the sizes do not multiply to the same number",
    ),
    (r"must match the size|size of tensor a", "the shapes do not broadcast: print both shapes just before this line"),
    (r"'generator' object is not subscriptable|'generator' has no len", "walk through a generator with for, once"),
    (r"torch\.memory_format|(contiguous|clone)\(\) takes", "give the format by its name: memory_format=..."),
    (
        r"missing \d+ required positional|positional arguments? but|unexpected keyword|combination of arguments",
        "compare the call with the parameters; some want their name, as dim=1",
    ),
    (r"NameError: name '(\w+)'", "a typo in the name? If not, run the cell that defines it first"),
    (r"before Module.__init__", "a module registers what you assign: call super().__init__() first"),
    (r"'NoneType' object", "something is None here: print it; a function without return gives None"),
]


def advice(error: str, message: str, exercise: str = "") -> str:
    """One line of advice for an exception, or an empty text where there is none to give.

    ``exercise`` is the name of the student's function or class: a wrong call of that one comes from its own head.
    """
    text = f"{error}: {message}"
    if exercise and re.match(rf"TypeError: {exercise}(\.\w+)?\(\) (missing|takes|got)", text):
        return "keep the parameters as they were handed out"
    return next((line for pattern, line in ADVICE if re.search(pattern, text)), "")
