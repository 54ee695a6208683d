"""Accelerators: streams and events of a device in place of threads, and one host thread that issues.

Kinds of devices are rows here, and nothing else in the executor asks which kind it is.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of device.

    Arguments:
        module: its device module, which has what ``torch.cuda`` has: Stream, Event, stream, current_stream, ...
        needs: the package that registers it with torch; empty: torch itself.
        numbered: whether there are several, and a communicator is bound to one as soon as it is made.
        backend: the backend of ``torch.distributed`` whose collectives run on its streams.
        pins: whether copies to it need pinned memory to be asynchronous.
        graphs: the class of its module that keeps what is issued, to be issued again by one call; empty: none.
        queues: the variable by which its driver is told how many work queues to use; empty: none.
        tried: where this has been run.
        note: what a reader of a run's answer must know.
    """

    name: str
    module: str
    backend: str
    tried: str
    needs: str = ''
    numbered: bool = True
    pins: bool = False
    graphs: str = ''
    queues: str = ''
    note: str = ''


NOTE: Final = 'virtual accelerators show values and order; their times are those of a simulation in Python'
_ROWS: Final = (
    Kind('cpu', 'executor.devices.blocking', 'gloo', 'in the test suite', numbered=False),
    Kind(
        'cuda', 'torch.cuda', 'nccl', 'built, not run',
        pins=True, graphs='CUDAGraph', queues='CUDA_DEVICE_MAX_CONNECTIONS',
    ),
    Kind('npu', 'torch.npu', 'hccl', 'built, not run', needs='torch_npu', pins=True),
    Kind('virtual', 'executor.virtual', 'virtual', 'in the test suite', graphs='Graph', note=NOTE),
)  # fmt: skip
KINDS: Final = {kind.name: kind for kind in _ROWS}


def in_threads(device: str, transport: str) -> bool:
    """Whether streams are threads, and messages go by gloo's rings: the CPU's own way."""
    return device == 'cpu' and transport != 'native'
