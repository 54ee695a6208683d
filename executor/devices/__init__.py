"""Accelerators: streams and events of a device in place of threads, and one host thread that issues.

Kinds of devices are rows here, and nothing else in the executor asks which kind it is.
"""

from __future__ import annotations

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
        attention: torch's fused kernel for attention there; empty: attention is products and a softmax.
        note: what a reader of a run's answer must know.
    """

    name: str
    module: str
    needs: str
    numbered: bool
    backend: str
    pins: bool
    graphs: str
    tried: str
    queues: str = ''
    attention: str = ''
    note: str = ''


FLASH: Final = '_scaled_dot_product_flash_attention_for_cpu'
"""Virtual accelerators compute on the CPU, too."""
KINDS: Final = {
    kind.name: kind
    for kind in (
        Kind(
            name='cpu',
            module='executor.devices.blocking',
            needs='',
            numbered=False,
            backend='gloo',
            pins=False,
            graphs='',
            tried='in the test suite',
            attention=FLASH,
        ),
        Kind(
            name='cuda',
            module='torch.cuda',
            needs='',
            numbered=True,
            backend='nccl',
            pins=True,
            graphs='CUDAGraph',
            queues='CUDA_DEVICE_MAX_CONNECTIONS',
            tried='built, not run',
        ),
        Kind(
            name='npu',
            module='torch.npu',
            needs='torch_npu',
            numbered=True,
            backend='hccl',
            pins=True,
            graphs='',
            tried='built, not run',
        ),
        Kind(
            name='virtual',
            module='executor.virtual',
            needs='',
            numbered=True,
            backend='virtual',
            pins=False,
            graphs='Graph',
            tried='in the test suite',
            attention=FLASH,
            note='virtual accelerators show values and order; their times are those of a simulation in Python',
        ),
    )
}


def in_threads(device: str, transport: str) -> bool:
    """Whether streams are threads, and messages go by gloo's rings: the CPU's own way."""
    return device == 'cpu' and transport != 'native'
