"""Throughput: the numbers that engineers quote of a step: tokens or samples a second, FLOP/s, utilisation, days."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import numpy as np

from simpar.cost.compute import MATRIX
from simpar.hardware import Profile
from simpar.hardware.profile import Dtype
from simpar.model.model import Graph
from simpar.program import OpClass, Program


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """What a step does, by which its seconds become rates; see "Throughput" in docs/answers.md.

    Arguments:
        samples, tokens: of a step, over all devices; tokens 0: its samples have none.
        devices: ranks.
        parameters: numbers that the model trains.
        model_flops: of the products and attention of a step, forward and backward, without recomputation.
        hardware_flops: of the same as the devices do it, with recomputation and the update.
        peak: FLOP/s of one device in the step's precision; 0: its profile has none.
    Does not model: a product that several ranks repeat counts once for each of them.
    Example: ``prediction.throughput.mfu(prediction.step)``.
    """

    samples: int
    tokens: int
    devices: int
    parameters: int
    model_flops: float
    hardware_flops: float
    peak: float

    @property
    def unit(self) -> str:
        """What the model reads: tokens, or samples where these have none."""
        return 'tokens' if self.tokens else 'samples'

    def rate(self, step: float) -> float:
        """Tokens (samples without any) a second of all devices; argument: seconds of a step."""
        return (self.tokens or self.samples) / step

    def flops(self, step: float) -> float:
        """Model FLOP/s of a device; argument: seconds of a step."""
        return self.model_flops / self.devices / step

    def mfu(self, step: float) -> float | None:
        """Model FLOPs utilisation (Chowdhery et al. 2022, appendix B), from 0 to 1; None where the peak is unknown."""
        return self.flops(step) / self.peak if self.peak else None

    def hfu(self, step: float) -> float | None:
        """Hardware FLOPs utilisation: the same with all that the devices do."""
        return self.hardware_flops / self.devices / step / self.peak if self.peak else None

    def seconds(self, step: float, amount: float) -> float:
        """Seconds of training on so many tokens (samples without any) without a pause; ``step`` in seconds."""
        return amount / self.rate(step)


def throughput(program: Program, graph: Graph, profile: Profile, *, batch: int, precision: Dtype) -> Throughput:
    """What a step of a program does.

    Arguments:
        graph: the model's, of the whole batch.
        batch: samples of a step.
        precision: of activations and weights.
    """
    device = profile.device
    peak = device.matrix.get(precision) or device.vector.get(precision)
    forward = _flops(program, lambda op: op.phase == 'F' and op.part == 'F')
    trains = any(op.phase == 'I' for op in program.cost_kinds[1])
    return Throughput(
        samples=batch,
        # Indices are read by an embedding: each is a token. Images and features are none.
        tokens=sum(prod(source.shape) for source in graph.sources if source.integer),
        devices=program.world,
        parameters=graph.parameters,
        # The backward of a product is two products of the same size.
        model_flops=forward * (3 if trains else 1),
        hardware_flops=_flops(program, lambda op: True),
        peak=peak.value if peak else 0.0,
    )


def _flops(program: Program, counts: Callable[[OpClass], bool]) -> float:
    """FLOPs of products and attention over all ranks; argument: which op classes count."""
    each = np.array([op.flops if op.operator in MATRIX and counts(op) else 0.0 for op in program.op_classes])
    ranks = np.bincount(program.role_of_rank, minlength=len(program.roles))
    return float(
        sum(
            count * (np.bincount(role.op_class, minlength=len(each)) @ each)
            for count, role in zip(ranks.tolist(), program.roles, strict=True)
        )
    )
