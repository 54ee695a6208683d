"""Fused kernels of CUDA, which the CPU stands in for: what they are asked for, and what training by them gives."""

import pytest
import torch
from every import some

from executor.devices import KINDS, fused
from executor.inprocess import InProcess
from executor.kernels import KERNELS, Context
from executor.kernels.update import _composed_adam
from executor.state import Request
from executor.virtual.transport import VirtualWorld
from simpar.files import read_csv
from simpar.lower import lower
from simpar.plans import Plan
from simpar.program import OpClass
from simpar.workload import AdamW, Transformer, Workload

functional = torch.nn.functional
FLASH, EFFICIENT = '_scaled_dot_product_flash_attention', '_scaled_dot_product_efficient_attention'


def probabilities(q, k, causal, scale):
    """Scores' log-sum-exp, and the scores; every query head has its own keys."""
    scores = q @ k.mT * scale
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float('-inf'))
    return scores.logsumexp(-1), scores


def attended(q, k, v, causal, scale):
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
    lse, scores = probabilities(q, k, causal, scale)
    return (scores - lse.unsqueeze(-1)).exp() @ v, lse


def derived(dy, q, k, v, y, lse, causal, scale):
    """Of the result and log-sum-exp that are given, which may be over more keys than these."""
    times = q.shape[1] // k.shape[1]
    keys, values = (one.repeat_interleave(times, 1) for one in (k, v))
    p = (probabilities(q, keys, causal, scale)[1] - lse.unsqueeze(-1)).exp()
    ds = p * (dy @ values.mT - (dy * y).sum(-1, keepdim=True)) * scale
    dk, dv = (one.unflatten(1, (-1, times)).sum(2) for one in (ds.mT @ q, p.mT @ dy))
    return ds @ keys, dk, dv


def flash(q, k, v, dropout=0.0, causal=False, debug=False, *, scale=None):
    y, lse = attended(q, k, v, causal, scale)
    empty = q.new_empty(0)
    return y, lse, empty, empty, q.shape[2], k.shape[2], empty, empty, empty


def flash_backward(
    dy, q, k, v, y, lse, before_q, before_k, most_q, most_k, dropout, causal, seed, offset, *, scale=None
):
    assert (before_q, before_k, most_q, most_k, dropout) == (None, None, q.shape[2], k.shape[2], 0.0)
    return derived(dy, q, k, v, y, lse, causal, scale)


def efficient(q, k, v, bias, keeps, dropout=0.0, causal=False, *, scale=None):
    assert (bias, keeps, k.shape[1]) == (None, True, q.shape[1])
    y, lse = attended(q, k, v, causal, scale)
    # Whoever reads the rows that are not there spoils all.
    return y, functional.pad(lse, (0, -lse.shape[-1] % 32), value=float('nan')), q.new_empty(0), q.new_empty(0)


def efficient_backward(dy, q, k, v, bias, y, lse, seed, offset, dropout, wanted, causal=False, *, scale=None):
    assert (bias, dropout, wanted, lse.shape[-1] % 32) == (None, 0.0, [True, True, True, False], 0)
    assert lse[..., q.shape[2] :].isinf().all()
    return *derived(dy, q, k, v, y, lse[..., : q.shape[2]], causal, scale), q.new_empty(0)


def rms_backward(dy, x, shape, rstd, gain, wanted):
    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        # Its epsilon, of the statistics that it is given.
        epsilon = float((rstd**-2 - x.square().mean(-1, keepdim=True)).mean())
        (dx,) = torch.autograd.grad(functional.rms_norm(leaf, shape, gain, epsilon), leaf, dy)
    return dx, torch.empty(0, dtype=x.dtype)


STANDINS = {
    FLASH: flash, f'{FLASH}_backward': flash_backward, EFFICIENT: efficient,
    f'{EFFICIENT}_backward': efficient_backward, '_fused_rms_norm_backward': rms_backward,
}  # fmt: skip


@pytest.fixture
def as_on_cuda(monkeypatch):
    """Every device chooses as CUDA does, in fp64 and for small heads, too; the CPU has the kernels."""
    library, rows = torch.library.Library('aten', 'IMPL'), fused.rows
    for name, function in STANDINS.items():
        library.impl(name, function, 'CPU')
    monkeypatch.setattr(
        fused,
        'rows',
        lambda operator, device: tuple({**row, 'dtypes': '', 'multiple': ''} for row in rows(operator, 'cuda')),
    )
    yield
    del library


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize(('groups', 'queries', 'values'), [(3, 1, 4), (2, 3, 4), (2, 3, 6)])
def test_attention_of_both_entries_is_that_of_torch(as_on_cuda, groups, queries, values, causal):
    # Values of another size are what flash attention does not take.
    torch.manual_seed(3)
    attributes = {'groups': groups, 'queries': queries, 'head_dim': 4, 'causal': causal}
    attributes |= {'value_dim': values} if values != 4 else {}
    op = OpClass(name='attention.F', kind='compute', operator='attention', phase='F', attributes=attributes)
    qkv = torch.randn(2, 5, groups * (queries * 4 + 4 + values), dtype=torch.float64, requires_grad=True)
    assert fused.fused('attention', op, qkv) == (FLASH if values == 4 else EFFICIENT)
    q, k, v = qkv.unflatten(-1, (groups, -1)).split((queries * 4, 4, values), -1)
    q = q.unflatten(-1, (queries, 4)).flatten(2, 3).transpose(1, 2)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = functional.scaled_dot_product_attention(
            q, k.transpose(1, 2), v.transpose(1, 2), is_causal=causal, enable_gqa=True
        ).transpose(1, 2).flatten(2)  # fmt: skip
    dy = torch.randn_like(wanted)
    (dqkv,) = torch.autograd.grad(wanted, qkv, dy)
    where, qkv = Context(rank=0, position={}, size={}), qkv.detach()
    y, lse = KERNELS['attention', 'F'](op, where, qkv)
    torch.testing.assert_close(y, wanted)
    torch.testing.assert_close(KERNELS['attention', 'I'](op, where, dy, qkv, y, lse)[0], dqkv)


MODEL = Transformer(
    layers=1, hidden=16, heads=4, kv_heads=2, vocab=12, sequence=8, norm='rms_norm', activation='swiglu', bias=(),
    position='rotary', init_std=0.3,
)  # fmt: skip
WORK = Workload(model=MODEL, batch=4, precision='bf16', optimizer=AdamW(learning_rate=0.01, master_weights=True))


@pytest.mark.parametrize('plan', [
    Plan(data=2, tensor=2, copies=2),
    Plan(context=4, context_kind='ring'),
    Plan(context=4, context_kind='ring', context_split='contiguous'),
    Plan(context=2, data=2, context_kind='all_to_all'),
    Plan(context=2, data=2, context_kind='all_gather'),
])  # fmt: skip
def test_training_by_them_is_training_without(plan, monkeypatch, request):
    program = lower(WORK, plan, 4)
    monkeypatch.setattr(fused, 'rows', lambda operator, device: ())
    composed = InProcess(program, 0).run(2)
    request.getfixturevalue('as_on_cuda')
    # The first step of a graph is issued op by op, too.
    for order, issue in some([(None, 'graph'), *((seed, 'eager') for seed in range(3))], 4):
        found = VirtualWorld(program, Request(steps=2, dtype='fp64', issue=issue), order).run()
        torch.testing.assert_close(found.losses, composed.losses, rtol=1e-11, atol=0)
        for name, wanted in composed.parameters.items():
            torch.testing.assert_close(found.parameters[name], wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize('decay', [0.0, 0.1])
def test_the_fused_update_is_that_of_torch_and_the_composed_one(decay, monkeypatch):
    torch.manual_seed(5)
    weights = [torch.randn(shape, dtype=torch.float64) for shape in ((3, 4), (7,))]
    attributes = {'learning_rate': 0.01, 'beta1': 0.9, 'beta2': 0.95, 'epsilon': 1e-8, 'weight_decay': decay}
    op = OpClass(name='adam.U', kind='compute', operator='adam', phase='U', attributes=attributes)
    ours = {how: [*map(torch.clone, weights), *map(torch.zeros_like, weights * 2)] for how in ('fused', 'composed')}
    theirs = [weight.clone().requires_grad_() for weight in weights]
    optimizer = torch.optim.AdamW(theirs, lr=0.01, betas=(0.9, 0.95), weight_decay=decay, foreach=False)
    for step in range(3):
        gradients = [torch.randn_like(weight) for weight in weights]
        for how, tensors in ours.items():
            with monkeypatch.context() as patch:
                if how == 'composed':
                    patch.setattr('executor.kernels.update._fused_adam', _composed_adam)
                where = Context(rank=0, position={}, size={}, step=step)
                KERNELS['adam', 'U'](op, where, *gradients, *tensors)
        for leaf, gradient in zip(theirs, gradients, strict=True):
            leaf.grad = gradient
        optimizer.step()
        for tensors in ours.values():
            torch.testing.assert_close(tensors[:2], [leaf.detach() for leaf in theirs], rtol=1e-13, atol=1e-15)


def test_every_kernel_of_the_table_is_one_of_torch_and_every_row_says_why():
    rows = read_csv(fused.TABLE)
    operators = {operator for operator, _ in KERNELS}
    for row in rows:
        assert {*row['operator'].split()} <= operators
        assert {*row['devices'].split()} <= KINDS.keys()
        assert row['why']
        assert row['source']
        assert not row['kernel'] or hasattr(torch.ops.aten, row['kernel'])
        # Of what has conditions, or is composed, the table says what happens instead.
        assert row['otherwise'] or not (row['without'] or row['largest'] or not row['kernel'])
