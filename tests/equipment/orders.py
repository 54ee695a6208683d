"""The in-process machine in orders that are given, or drawn: all that needs and streams allow give the same bits."""

import random
from typing import Any

import torch

from executor import inprocess
from executor.walk import Stream
from simpar import Program, Trace
from simpar.errors import ProgramError


class InProcess(inprocess.InProcess):
    """Runs a program with real tensors.

    Arguments:
        trace: a trace; the ops run in the order of its last step.
        shuffle: a seed for a random one of the orders that needs and streams allow.
    Neither: every stream in turn, as far as it goes.
    """

    def __init__(
        self,
        program: Program,
        seed: int = 0,
        dtype: torch.dtype | None = torch.float64,
        *,
        trace: Trace | None = None,
        shuffle: int | None = None,
        **more: Any,
    ) -> None:
        super().__init__(program, seed, dtype, **more)
        self._trace = trace
        self._random = None if shuffle is None else random.Random(shuffle)

    def walk(self, steps: int) -> list[Stream]:
        if self._trace is not None:
            return self._follow(self._trace, steps - self._streams[0].step)
        if self._random is None:
            return super().walk(steps)
        going = self._streams[:]
        while going := [stream for stream in going if stream.step < steps]:
            self._random.shuffle(going)
            # One op at a time, so that the shuffle decides every choice.
            ready = [stream for stream in going if self._ready(stream)]
            if not ready:
                return going
            for stream in going:
                if stream.step < steps and self._ready(stream):
                    self._start(stream)
        return []

    def _follow(self, trace: Trace, steps: int) -> list[Stream]:
        streams = {(stream.rank, stream.name): stream for stream in self._streams}
        starts = [
            (span.start, span.end, span.slot, rank, span.stream)
            for rank in range(self._program.world)
            for span in trace.spans(rank)
        ]
        # By start, then end: an op of no duration comes before the one that follows it at the same moment.
        for *_, slot, rank, name in sorted(starts) * steps:
            stream = streams[rank, name]
            # A trace that breaks its program's needs is wrong, even if the numbers came out right.
            if stream.head.position != slot or not self._ready(stream):
                raise ProgramError('\n  '.join(['the trace starts an op before it may:', *self.draw([stream])]))
            self._start(stream)
        return []
