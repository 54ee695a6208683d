"""Every kernel, forward and backward, against torch's own functions and autograd in fp64."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch

from executor.kernels import KERNELS, Context, bind, kernel
from simpar.errors import ProgramError
from simpar.program import OpClass, ProgramBuilder, Tensor

functional = torch.nn.functional


ALONE = Context(rank=0, position={}, size={})
DOUBLE = {'dtype': torch.float64}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(11)


def at(position, size):
    """The context of one position of the partition ``tensor``."""
    return Context(rank=position, position={'tensor': position}, size={'tensor': size})


def run(operator, phase, *tensors, where=ALONE, results=1, **attributes):
    """The kernel's one result, or all of them."""
    op = OpClass(
        name=f'{operator}.{phase}', kind='compute', operator=operator, phase=phase,
        accumulates=tuple(f'result{i}' for i in range(results)), attributes=attributes,
    )  # fmt: skip
    found = KERNELS[operator, phase](op, where, *tensors)
    assert len(found) == results
    return found[0] if results == 1 else found


def random(*shape):
    return torch.randn(shape, **DOUBLE)


def differentiate(function, *tensors):
    """The value of a function, a random gradient of it, and what autograd makes of that for each tensor."""
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    y = function(*leaves)
    dy = torch.randn_like(y)
    return y.detach(), dy, torch.autograd.grad(y, leaves, dy)


close = partial(torch.testing.assert_close, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize('lead', [(5,), (2, 3)])
@pytest.mark.parametrize(('outputs', 'inputs'), [((4,), (6,)), ((2, 3, 4), (6,)), ((5,), (2, 3, 4))])
@pytest.mark.parametrize('biased', [True, False])
def test_matmul(lead, outputs, inputs, biased):
    weight, bias = random(*outputs, *inputs), random(*outputs)
    x = random(*lead, weight[(0,) * len(outputs)].numel())

    def linear(x, weight, bias):
        y = functional.linear(x, weight.reshape(bias.numel(), -1))
        return y + bias.flatten() if biased else y + 0 * bias.flatten()

    y, dy, (dx, dweight, dbias) = differentiate(linear, x, weight, bias)
    dims = {'outputs': len(outputs)}
    close(run('matmul', 'F', x, weight, *([bias] if biased else []), **dims), y)
    close(run('matmul', 'I', dy, weight, **dims), dx)
    if biased:
        found, found_bias = run('matmul', 'W', dy, x, results=2, **dims)
        close(found_bias, dbias.flatten())
    else:
        found = run('matmul', 'W', dy, x, **dims)
    close(found, dweight.reshape(found.shape))


def test_matmul_takes_images_as_they_are():
    x, weight = random(3, 4, 5), random(6, 20)
    close(run('matmul', 'F', x, weight, outputs=1), x.flatten(1) @ weight.T)
    dy = random(3, 6)
    close(run('matmul', 'W', dy, x, outputs=1), dy.T @ x.flatten(1))


@pytest.mark.parametrize('epsilon', [1e-5, 0.1])
def test_norm(epsilon):
    x, gain, bias = random(2, 3, 8), random(8), random(8)
    y, dy, (dx, dgain, dbias) = differentiate(
        lambda *t: functional.layer_norm(t[0], (8,), *t[1:], epsilon), x, gain, bias
    )
    found, mean, rstd = run('norm', 'F', x, gain, bias, results=3, epsilon=epsilon)
    close(found, y)
    close(mean, x.mean(-1, keepdim=True))
    close(rstd, (x.var(-1, correction=0, keepdim=True) + epsilon).rsqrt())
    close(run('norm', 'I', dy, x, gain, mean, rstd, epsilon=epsilon), dx)
    for a, b in zip(run('norm', 'W', dy, x, mean, rstd, results=2, epsilon=epsilon), (dgain, dbias), strict=True):
        close(a, b)


@pytest.mark.parametrize('epsilon', [1e-5, 0.1])
@pytest.mark.parametrize('lead', [(5,), (2, 3)])
def test_rms_norm(lead, epsilon):
    x, gain = random(*lead, 8), random(8)
    y, dy, (dx, dgain) = differentiate(lambda *t: functional.rms_norm(t[0], (8,), t[1], epsilon), x, gain)
    found, rstd = run('rms_norm', 'F', x, gain, results=2, epsilon=epsilon)
    close(found, y)
    close(run('rms_norm', 'I', dy, x, gain, rstd, epsilon=epsilon), dx)
    close(run('rms_norm', 'W', dy, x, rstd, epsilon=epsilon), dgain)


def attended(groups, queries, causal):
    """Queries, keys and values, and attention of them as products and a softmax: value, gradient and theirs.

    Torch would take the same fused kernel as the executor; so it shares nothing.
    """
    qkv = random(2, 5, groups * (queries + 2) * 4)

    def attention(qkv):
        split = qkv.reshape(2, 5, groups, queries + 2, 4)
        q = split[:, :, :, :queries].reshape(2, 5, groups * queries, 4)
        k, v = (split[:, :, :, queries + i].repeat_interleave(queries, dim=2) for i in (0, 1))
        heads = (tensor.transpose(1, 2) for tensor in (q, k, v))
        return functional.scaled_dot_product_attention(*heads, is_causal=causal).transpose(1, 2).reshape(2, 5, -1)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return qkv, *differentiate(attention, qkv)


@pytest.mark.parametrize('causal', [True, False])
@pytest.mark.parametrize(('groups', 'queries'), [(1, 1), (3, 1), (2, 3), (1, 4)])
def test_attention(groups, queries, causal, monkeypatch):
    """Fused, by products, and unfused: scores, softmax and values one after the other, and their gradients."""
    qkv, y, dy, (dqkv,) = attended(groups, queries, causal)
    attributes = {'groups': groups, 'queries': queries, 'head_dim': 4, 'causal': causal}
    for _ in ('by the fused kernel', 'by products'):
        found, lse = run('attention', 'F', qkv, results=2, **attributes)
        close(found, y)
        close(run('attention', 'I', dy, qkv, found, lse, **attributes), dqkv)
        monkeypatch.setattr('executor.kernels.attention.fused', lambda *_: '')
    scores = run('attention_scores', 'F', qkv, **attributes)
    assert scores.shape == (2, groups * queries, 5, 5)
    probability = run('softmax', 'F', scores, causal=causal)
    close(run('attention_values', 'F', probability, qkv, **attributes), y)
    dprobability, dv = run('attention_values', 'I', dy, probability, qkv, results=2, **attributes)
    dscores = run('softmax', 'I', dprobability, probability)
    close(run('attention_scores', 'I', dscores, qkv, dv, **attributes), dqkv)


def test_dropout_scales_what_is_left():
    """As torch's own does: zeros where the mask is, all else divided by the probability to stay; the same backward."""
    x, keys = random(3, 40), torch.arange(3)
    y, mask = run('dropout', 'F', x, keys, results=2, dropout=0.25, site='here')
    assert mask.dtype == torch.bool
    assert set(mask.flatten().tolist()) == {True, False}
    close(y, torch.where(mask, x / 0.75, 0))
    close(run('dropout', 'I', x, mask, dropout=0.25), y)


def test_a_residual_drops_before_it_adds():
    x, z, bias, keys = random(2, 3, 6), random(2, 3, 6), random(6), torch.arange(2)
    y, mask = run('residual', 'F', x, z, bias, keys, results=2, dropout=0.5, site='here')
    close(y, x + (z + bias) * mask * 2)
    close(run('residual', 'I', z, mask, dropout=0.5), z * mask * 2)


@pytest.mark.parametrize(
    ('operator', 'function', 'saves'),
    [('gelu', functional.gelu, 'x'), ('silu', functional.silu, 'x'), ('relu', functional.relu, 'y')],
)
def test_activations(operator, function, saves):
    x = random(3, 7)
    y, dy, (dx,) = differentiate(function, x)
    close(run(operator, 'F', x), y)
    close(run(operator, 'I', dy, {'x': x, 'y': y}[saves]), dx)


@pytest.mark.parametrize('biased', [True, False])
@pytest.mark.parametrize(('kernel', 'stride', 'padding'), [(3, 1, 0), (3, 1, 1), (2, 2, 0), (3, 2, 1), (1, 3, 0)])
def test_conv2d(kernel, stride, padding, biased):
    """Strides that leave rows of an image out, too."""
    x, weight, bias = random(4, 2, 7, 6), random(3, 2, kernel, kernel), random(3)
    window = {'stride': stride, 'padding': padding}
    y, dy, (dx, dweight, dbias) = differentiate(lambda x, w, b: functional.conv2d(x, w, b, **window), x, weight, bias)
    if not biased:
        y = y - bias.reshape(3, 1, 1)
    close(run('conv2d', 'F', x, weight, *([bias] if biased else []), **window), y)
    close(run('conv2d', 'I', dy, weight, shape='-1 2 7 6', **window), dx)
    found = run('conv2d', 'W', dy, x, results=1 + biased, kernel=kernel, **window)
    for one, wanted in zip(found if biased else [found], [dweight, dbias], strict=False):
        close(one, wanted)


@pytest.mark.parametrize('mean', [True, False])
@pytest.mark.parametrize('keep', [True, False])
@pytest.mark.parametrize('dims', [(1,), (2,), (1, 3)])
def test_reductions(dims, keep, mean):
    """The last but one of the tensors has the place of samples, whose number a kernel is not told."""
    x = random(3, 4, 5, 6)
    function = torch.mean if mean else torch.sum
    y, dy, (dx,) = differentiate(lambda x: function(x, dims, keep), x)
    kind, told = ('mean', {'count': 4 * 6 if len(dims) == 2 else (4, 5)[dims[0] - 1]}) if mean else ('sum', {})
    told |= {'dims': ' '.join(map(str, dims))}
    close(run(kind, 'F', x, **told), y.reshape(y.squeeze().shape))
    close(run(kind, 'I', dy, shape='-1 4 5 6', **told), dx)


def test_a_product_of_two_values():
    x, z = random(3, 7), random(3, 7)
    y, dy, (dx, dz) = differentiate(torch.mul, x, z)
    close(run('multiply', 'F', x, z), y)
    close(run('multiply', 'I', dy, z), dx)
    close(run('multiply', 'I', dy, x), dz)


@pytest.mark.parametrize('operator', ['bias', 'residual'])
def test_biases(operator):
    x, z, bias = random(2, 3, 6), random(2, 3, 6), random(2, 3)
    terms = [x, z] if operator == 'residual' else [x]
    y, dy, (*_, dbias) = differentiate(lambda *t: sum(t[:-1]) + t[-1].flatten(), *terms, bias)
    close(run(operator, 'F', *terms, bias), y)
    close(run(operator, 'W', dy), dbias.flatten())


def test_residual_without_bias_add_and_scale():
    x, z = random(2, 3), random(2, 3)
    close(run('residual', 'F', x, z), x + z)
    close(run('add', 'I', x, z), x + z)
    close(run('scale', 'I', x, factor=0.25), x / 4)


@pytest.mark.parametrize('transpose_b', [False, True])
@pytest.mark.parametrize('transpose_a', [False, True])
@pytest.mark.parametrize('batch', [(3,), (2, 3)])
def test_batch_matmul(batch, transpose_a, transpose_b):
    """Also both of its gradients, which are such products of one operand and of dy."""
    a = random(*batch, *((5, 4) if transpose_a else (4, 5)))
    b = random(*batch, *((6, 5) if transpose_b else (5, 6)))
    spelled = f'...{"km" if transpose_a else "mk"},...{"nk" if transpose_b else "kn"}->...mn'
    y, dy, (da, db) = differentiate(partial(torch.einsum, spelled), a, b)
    close(run('batch_matmul', 'F', a, b, transpose_a=transpose_a, transpose_b=transpose_b), y)
    left = (
        run('batch_matmul', 'I', b, dy, transpose_a=transpose_b, transpose_b=True)
        if transpose_a
        else run('batch_matmul', 'I', dy, b, transpose_a=False, transpose_b=not transpose_b)
    )
    right = (
        run('batch_matmul', 'I', dy, a, transpose_a=True, transpose_b=transpose_a)
        if transpose_b
        else run('batch_matmul', 'I', a, dy, transpose_a=not transpose_a, transpose_b=False)
    )
    close(left, da)
    close(right, db)


@pytest.mark.parametrize(
    ('permutation', 'inverse'),
    [((0, 2, 1, 3), (0, 2, 1, 3)), ((0, 3, 1, 2), (0, 2, 3, 1)), ((0, 1, 2, 3), (0, 1, 2, 3))],
)
def test_transpose(permutation, inverse):
    x = random(2, 3, 4, 5)
    y, dy, (dx,) = differentiate(lambda x: x.permute(permutation), x)
    found = run('transpose', 'F', x, permutation=' '.join(map(str, permutation)))
    close(found, y)
    assert found.is_contiguous(), 'the kernel moves the elements'
    close(run('transpose', 'I', dy, permutation=' '.join(map(str, inverse))), dx)


@pytest.mark.parametrize('shape', [(-1, 3, 2, 4), (-1, 2), (-1, 24)])
def test_reshape_is_a_view(shape):
    x = random(6, 8)
    y, dy, (dx,) = differentiate(lambda x: x.view(shape), x)
    found = run('reshape', 'F', x, shape=' '.join(map(str, shape)))
    close(found, y)
    assert found.data_ptr() == x.data_ptr()
    close(run('reshape', 'I', dy, shape='-1 8'), dx)


@pytest.mark.parametrize('factor', [0.125, -3.0, 0.0])
def test_mul(factor):
    x = random(2, 3)
    y, dy, (dx,) = differentiate(lambda x: factor * x, x)
    close(run('mul', 'F', x, factor=factor), y)
    close(run('mul', 'I', dy, factor=factor), dx)


@pytest.mark.parametrize('dim', [0, 1, 2])
def test_padded_pieces_of_all_positions_sum_to_the_whole(dim):
    """What takes the gradient of a slice back: the transposed map."""
    x = random(4, 6, 2)
    for phase in 'FI':
        padded = [
            run('pad', phase, piece, where=at(i, 2), dim=dim, partition='tensor')
            for i, piece in enumerate(x.chunk(2, dim))
        ]
        close(sum(padded), x)
        close(run('slice', phase, padded[1], where=at(0, 2), dim=dim, partition='tensor'), 0 * x.chunk(2, dim)[0])


@pytest.mark.parametrize('dim', [0, 1, 2])
def test_slices_of_all_positions_make_the_whole(dim):
    x = random(4, 6, 2)
    for phase in 'FI':
        slices = [run('slice', phase, x, where=at(i, 2), dim=dim, partition='tensor') for i in (0, 1)]
        close(torch.cat(slices, dim), x)
        slices[0].zero_()
        assert x.count_nonzero() == x.numel()


@pytest.mark.parametrize('degree', [1, 2, 3])
def test_embedding_over_a_cut_vocabulary(degree):
    tokens, weight = torch.randint(12, (2, 5)), random(12, 4)
    y, dy, (dweight,) = differentiate(lambda weight: functional.embedding(tokens, weight), weight)
    cut = {'partition': 'tensor'} if degree > 1 else {}
    places = [at(i, degree) for i in range(degree)]
    parts = [
        run('embedding', 'F', tokens, piece, where=where, **cut)
        for where, piece in zip(places, weight.chunk(degree), strict=True)
    ]
    close(sum(parts), y)
    rows = 12 // degree
    close(torch.cat([run('embedding', 'W', tokens, dy, where=where, rows=rows, **cut) for where in places]), dweight)


@pytest.mark.parametrize('rows', [6, 9])
@pytest.mark.parametrize('degree', [1, 3])
def test_position_over_a_cut_sequence(degree, rows):
    x, weight = random(2, 6, 4), random(rows, 4)
    y, dy, (_, dweight) = differentiate(lambda x, weight: x + weight[:6], x, weight)
    cut = {'partition': 'tensor'} if degree > 1 else {}
    pieces = [
        (at(i, degree), *both) for i, both in enumerate(zip(x.chunk(degree, 1), dy.chunk(degree, 1), strict=True))
    ]
    close(torch.cat([run('position', 'F', x_i, weight, where=where, **cut) for where, x_i, _ in pieces], 1), y)
    close(sum(run('position', 'W', dy_i, where=where, rows=rows, **cut) for where, _, dy_i in pieces), dweight)


@pytest.mark.parametrize('lead', [(4,), (2, 3)])
def test_cross_entropy(lead):
    logits, labels = 30 * random(*lead, 7), torch.randint(7, lead)
    loss, _, (dlogits,) = differentiate(
        lambda logits: 0.5 * functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), reduction='sum'), logits
    )
    found, lse = run('cross_entropy', 'F', logits, labels, results=2, scale=0.5)
    close(found, loss)
    (dlogits,) = torch.autograd.grad(
        functional.cross_entropy((leaf := logits.clone().requires_grad_()).flatten(0, -2), labels.flatten()), leaf
    )
    scale = 1 / labels.numel()
    close(run('cross_entropy', 'I', logits, labels, lse, scale=scale), dlogits)
    close(run('cross_entropy', 'I', logits, labels, lse, scale=scale, partial_share=0.25), dlogits / 4)


@pytest.mark.parametrize('degree', [2, 4])
def test_cross_entropy_over_a_cut_vocabulary(degree):
    logits, labels = 30 * random(2, 3, 8), torch.randint(8, (2, 3))
    leaf = logits.clone().requires_grad_()
    loss = functional.cross_entropy(leaf.flatten(0, 1), labels.flatten())
    (dlogits,) = torch.autograd.grad(loss, leaf)
    scale, cut = 1 / 6, {'partition': 'tensor'}
    pieces = [(at(i, degree), piece) for i, piece in enumerate(logits.chunk(degree, -1))]
    maximum = torch.stack([run('ce_max', 'F', piece) for _, piece in pieces]).amax(0)
    parts = sum(run('ce_sum', 'F', piece, labels, maximum, where=where, **cut) for where, piece in pieces)
    found, lse = run('ce_loss', 'F', parts, maximum, results=2, scale=scale)
    close(found, loss.detach())
    gradients = [
        run('cross_entropy', 'I', piece, labels, lse, where=where, scale=scale, **cut) for where, piece in pieces
    ]
    close(torch.cat(gradients, -1), dlogits)


@pytest.mark.parametrize(('operator', 'function'), [('mse', functional.mse_loss), ('mae', functional.l1_loss)])
def test_means_of_differences(operator, function):
    y, target = random(4, 3), random(4, 3)
    y[1, 1] = target[1, 1]
    leaf = y.clone().requires_grad_()
    loss = function(leaf, target)
    (dy,) = torch.autograd.grad(loss, leaf)
    close(run(operator, 'F', y, target, scale=1 / 12), loss.detach())
    close(run(operator, 'I', y, target, scale=1 / 12), dy)
    close(run(operator, 'I', y, target, scale=1 / 12, partial_share=0.5), dy / 2)


@pytest.mark.parametrize(
    ('operator', 'function', 'saves'), [('exp', torch.exp, 'y'), ('log', torch.log, 'x'), ('negate', torch.neg, '')]
)
def test_operators_of_one_value(operator, function, saves):
    x = random(3, 7).abs() + 0.1
    y, dy, (dx,) = differentiate(function, x)
    close(run(operator, 'F', x), y)
    close(run(operator, 'I', dy, *{'x': [x], 'y': [y]}.get(saves, [])), dx)


def test_a_column_is_subtracted():
    y, dy, (dx, dz) = differentiate(torch.sub, x := random(3, 7), z := random(3, 1))
    close(run('subtract', 'F', x, z), y)
    close(dy, dx)
    close(run('subtract', 'I', dy, shape='3 1'), dz)


@pytest.mark.parametrize(('shape', 'dims', 'kept'), [((3, 7), (1,), True), ((6,), (0,), False), ((6, 1), (0, 1), True)])
def test_sums(shape, dims, kept):
    """A number stands in a tensor of one element."""
    y, dy, (dx,) = differentiate(lambda x: x.sum(dims, keepdim=kept), x := random(*shape))
    close(run('reduce_sum', 'F', x, dims=' '.join(map(str, dims))).reshape(y.shape), y)
    dy_given = dy.reshape(dy.shape or (1,))
    close(run('reduce_sum', 'I', dy_given, shape=' '.join(map(str, shape))), dx)


def test_elements_are_picked_and_masked():
    x, index = random(5, 4), torch.tensor([[3], [0], [1], [1], [2]])
    y, dy, (dx,) = differentiate(lambda x: x.gather(1, index), x)
    close(run('gather_elements', 'F', x, index), y)
    close(run('gather_elements', 'I', dy, index, shape='5 4'), dx)
    mask = run('equal', 'F', index, value=1)
    assert mask.flatten().tolist() == [False, False, True, True, False]
    z, dz, (dy_masked,) = differentiate(lambda y: y.masked_fill(mask, 0.0), y)
    close(run('masked_fill', 'F', y, mask), z)
    close(run('masked_fill', 'I', dz, mask), dy_masked)
    assert run('masked_fill', 'F', mask).flatten().tolist() == [1, 1, 0, 0, 1]


def test_the_operators_of_cross_entropy_are_cross_entropy():
    """One after the other, with ignored labels; torch's own leaves these out of the mean, too."""
    logits, labels = random(6, 5), torch.tensor([[0], [4], [-100], [2], [-100], [1]])
    wanted, dloss, (wanted_gradient,) = differentiate(lambda x: functional.cross_entropy(x, labels.flatten()), logits)
    largest = run('maximum', 'F', logits, dims='1')
    exp = run('exp', 'F', run('subtract', 'F', logits, largest))
    total = run('reduce_sum', 'F', exp, dims='1').reshape(6, 1)
    lse = run('log', 'F', total) + largest
    log_softmax = run('subtract', 'F', logits, lse)
    ignored = run('equal', 'F', labels, value=-100)
    index = run('masked_fill', 'F', labels, ignored)
    kept = run('masked_fill', 'F', run('negate', 'F', run('gather_elements', 'F', log_softmax, index)), ignored)
    count = run('masked_fill', 'F', ignored).sum().reshape(1)
    close(run('cross_entropy_mean', 'F', kept.sum().reshape(1), random(1), count, scale=1.0), wanted.reshape(1))
    dsum, dsmooth = run('cross_entropy_mean', 'I', count, results=2, scale=1.0, partial_share=0.5)
    assert dsmooth.tolist() == [0.0]
    dkept = run('reduce_sum', 'I', 2 * dsum, shape='6 1')
    dpicked = run('negate', 'I', run('masked_fill', 'I', dkept, ignored))
    dlog_softmax = run('gather_elements', 'I', dpicked, index, shape='6 5')
    dtotal = run('log', 'I', run('subtract', 'I', dlog_softmax, shape='6 1'), total)
    dexp = run('reduce_sum', 'I', dtotal, shape='6 5')
    gradient = dlog_softmax + run('exp', 'I', dexp, exp)
    close(gradient * dloss, wanted_gradient)


def test_an_unknown_kernel_is_refused_with_what_there_is():
    op = OpClass(name='gelu.W', kind='compute', operator='gelu', phase='W')
    with pytest.raises(ProgramError, match=r"gelu.W: no kernel for 'gelu' in phase W; there are phases F, I"):
        kernel(op)
    with pytest.raises(ProgramError, match=r'there are operators adam, add, alibi, aten, .*attention, '):
        kernel(OpClass(name='x', kind='compute', operator='maxout', phase='F'))


def program_of(op, **shapes):
    builder = ProgramBuilder(1)
    for name, (kind, shape, dtype) in shapes.items():
        builder.add_tensor(Tensor(name, kind, shape, dtype))
    builder.add_op_class(op)
    builder.add_role('all', [0], [(op.name, 'compute', 0, 0)], ('compute',))
    return builder.build()


def test_a_bound_kernel_gives_the_shapes_and_dtypes_of_the_program():
    op = OpClass(name='m.W', kind='compute', operator='matmul', phase='W', reads=('dy', 'x'),
                 accumulates=('d:w', 'd:b'), attributes={'outputs': 2})  # fmt: skip
    program = program_of(
        op, dy=('activation', (4, 6), 'fp16'), x=('activation', (4, 5), 'fp16'),
        **{'d:w': ('gradient', (2, 3, 5), 'fp32'), 'd:b': ('gradient', (2, 3), 'fp16')},
    )  # fmt: skip
    dy, x = torch.randn(4, 6).half(), torch.randn(4, 5).half()
    dweight, dbias = bind(program, op, kernel(op))(ALONE, [dy, x])
    assert (tuple(dweight.shape), dweight.dtype) == ((2, 3, 5), torch.float32)
    assert (tuple(dbias.shape), dbias.dtype) == ((2, 3), torch.float16)
    exact, _ = bind(program, op, kernel(op), torch.float64)(ALONE, [dy.double(), x.double()])
    torch.testing.assert_close(exact, (dy.double().T @ x.double()).reshape(2, 3, 5))


def test_tensors_of_other_shapes_are_refused_by_op_and_rank():
    op = OpClass(name='layer0.add', kind='compute', operator='add', phase='I', reads=('a', 'b'), writes=('c',))
    program = program_of(op, **dict.fromkeys('abc', ('activation', (4,), 'fp32')))
    with pytest.raises(ProgramError, match=r'layer0.add on rank 0: .* it read \(4,\), \(3,\)'):
        bind(program, op, kernel(op))(ALONE, [torch.zeros(4), torch.zeros(3)])
    with pytest.raises(ProgramError, match=r'layer0.add on rank 0'):
        bind(program, op, kernel(op))(ALONE, [torch.zeros(5), torch.zeros(5)])


@pytest.mark.parametrize('dtype', [torch.float16, torch.bfloat16])
def test_sixteen_bits_are_as_exact_as_their_rounding(dtype):
    logits, labels = (30 * random(64, 50)).to(dtype), torch.randint(50, (64,))
    loss, lse = run('cross_entropy', 'F', logits, labels, results=2, scale=1.0)
    torch.testing.assert_close(
        loss.double(), functional.cross_entropy(logits.double(), labels, reduction='sum'), rtol=1e-5, atol=0
    )
    qkv = random(2, 5, 12).to(dtype)
    attributes = {'groups': 1, 'queries': 1, 'head_dim': 4, 'causal': True}
    y, lse = run('attention', 'F', qkv, results=2, **attributes)
    exact, exact_lse = run('attention', 'F', qkv.double(), results=2, **attributes)
    unit = torch.finfo(dtype).eps
    torch.testing.assert_close(y.double(), exact, rtol=4 * unit, atol=4 * unit)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=4 * unit, atol=4 * unit)
    assert run('attention', 'I', torch.ones_like(y), qkv, y, lse, **attributes).dtype == dtype


@pytest.mark.parametrize('sink', ['learned', 'zero'])
def test_sinks_of_attention_are_those_of_gpt_oss(sink):
    oss = pytest.importorskip('transformers.models.gpt_oss.modeling_gpt_oss')
    groups, queries, width, tokens = 2, 3, 4, 5
    mask = torch.full((tokens, tokens), -torch.inf, **DOUBLE).triu(1)[None, None]

    def theirs(qkv, sinks):
        parts = qkv.unflatten(-1, (groups, queries + 2, width)).split((queries, 1, 1), -2)
        q, k, v = (part.flatten(2, 3).transpose(1, 2) for part in parts)
        module = SimpleNamespace(num_key_value_groups=queries, sinks=sinks.flatten(), training=False)
        return oss.eager_attention_forward(module, q, k, v, mask, width**-0.5)[0].flatten(2)

    sinks = random(groups, queries) if sink == 'learned' else torch.zeros(groups, queries, **DOUBLE)
    qkv = random(2, tokens, groups * (queries + 2) * width)
    right, dy, (dqkv, dsinks) = differentiate(theirs, qkv, sinks)
    told = {'groups': groups, 'queries': queries, 'head_dim': width, 'causal': True, 'sink': sink}
    given = [sinks] if sink == 'learned' else []
    y, lse = run('attention', 'F', qkv, *given, results=2, **told)
    close(y, right)
    close(run('attention', 'I', dy, qkv, y, lse, **told), dqkv)
    close(run('attention_sink', 'W', dy, y, lse, sinks, **told), dsinks)
