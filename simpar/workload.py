"""Workload: the model, its batch and its optimizer for one training step; knows no hardware and no plan."""

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal

from pydantic import Field

from simpar import document, keys
from simpar.model import Network, Strategy
from simpar.model.library.cross_entropy import LossForm
from simpar.model.library.gpt import Transformer as Transformer  # noqa: PLC0414 (users import it from here)
from simpar.model.model import FromModule

Precision = Literal['fp64', 'fp32', 'fp16', 'bf16']
Masters = bool | Literal['shared']
"""Whether weights are kept in fp32, too; ``shared``: of these only the 16 bits that the weight itself lacks."""
MODEL: Final = '\0model'
"""Where a file's ``transformer:`` or ``network:`` is put before it is read: a key that no file can hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
@keys.described('workload.optimizer.sgd')
class Sgd:
    """w ← w − learning_rate · gradient."""

    learning_rate: float = 0.01
    master_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
@keys.described('workload.optimizer.momentum')
class Momentum:
    """v ← momentum · v + g; w ← w − learning_rate · v; one state in fp32 per weight (Polyak 1964).

    As MindSpore's nn.Momentum and torch's SGD: g is the gradient + weight_decay · w, v begins at zero, nothing dampens
    it; with ``nesterov``, w ← w − learning_rate · (g + momentum · v) (Sutskever et al. 2013).
    """

    learning_rate: float = 0.01
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    master_weights: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
@keys.described('workload.optimizer.adam')
class Adam:
    """Adam without weight decay; two states per weight, and a third with ``master_weights``."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    master_weights: Masters = False
    moments: Literal['fp32', 'bf16', 'fp16'] = 'fp32'


@dataclass(frozen=True, slots=True, kw_only=True)
@keys.described('workload.optimizer.adamw')
class AdamW:
    """Adam whose weights decay apart, by learning_rate · weight_decay (Loshchilov and Hutter 2019)."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    master_weights: Masters = False
    moments: Literal['fp32', 'bf16', 'fp16'] = 'fp32'


@dataclass(frozen=True, slots=True, kw_only=True)
@keys.described('workload.optimizer.muon')
class Muon:
    """Momentum of a full matrix, orthogonalised by 5 Newton–Schulz iterations (Jordan et al. 2024); a state in fp32.

    v ← momentum · v + g; u = g + momentum · v with ``nesterov``, else v, in the precision of gradients (fp32 for fp16);
    w ← w · (1 − learning_rate · weight_decay) − learning_rate · √max(1, rows / columns) · orthogonal(u). So are weights
    of products (queries, keys and values as one matrix, and the head too) and of convolutions, as matrices of [outputs,
    inputs]. All others, i.e. biases, gains, embeddings, positions and tied heads, are updated as by ``Momentum`` with
    the same keys.
    """

    learning_rate: float = 0.02
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.0
    master_weights: bool = False


Optimizer = Sgd | Momentum | Adam | AdamW | Muon
OPTIMIZERS: Final = {'sgd': Sgd, 'momentum': Momentum, 'adam': Adam, 'adamw': AdamW, 'muon': Muon}


@dataclass(frozen=True, slots=True, kw_only=True)
@keys.described('workload')
class Workload:
    """What one optimizer step computes.

    Arguments:
        batch: samples over all ranks.
        loss: mean over the samples of a copy.
        loss_strategy: how the loss is split where layers have strategies.
        loss_operators, loss_strategies: the same of its operators, see ``simpar.model.library.cross_entropy``.
        fp8: weights, what is added to and what is updated stay as precision says; only what products read is cast.
        clip_norm: gradients shrink by min(1, clip_norm / (norm + 1e-6)), norm that of all of them together.
        loss_scale: multiplies the loss's gradient, and the update divides by it. Where a gradient is not finite no rank
            updates.
        data: ``random`` tensors, or ``mnist``: IDX files from the folder DATA_PATH, and generated learnable images
            where there are none.
    """

    model: Annotated[
        Network | Transformer | FromModule,
        document.OneOf(
            hoist=True,
            written_out=('model',),
            transformer=Transformer,
            module=FromModule,
            network=Annotated[Network, document.Short('layers', 'layers, as a list, or a mapping of these')],
        ),
        Field(alias=MODEL),
    ]
    batch: int
    loss: Literal['cross-entropy', 'mse', 'mae'] = 'cross-entropy'
    loss_strategy: Strategy = ()
    loss_operators: LossForm = 'one'
    loss_strategies: dict[str, Annotated[Strategy, Field(min_length=1, max_length=2)]] = field(default_factory=dict)
    precision: Precision = 'fp32'
    fp8: Literal['none', 'e4m3', 'hybrid'] = 'none'
    fp8_except: tuple[Annotated[str, Field(max_length=200, min_length=1)], ...] = ('head',)
    gradients: Precision | None = None
    phase: Literal['train', 'forward'] = 'train'
    optimizer: Annotated[Optimizer, document.OneOf(short=True, **OPTIMIZERS)] = Sgd()
    clip_norm: float = 0.0
    loss_scale: float = 1.0
    data: Literal['random', 'mnist'] = 'random'
