"""A record as the bench writes it, made up from laws that are known: what a calibration must find again."""

import itertools

SIZES = (8, 32, 128, 512)
PEAK, KERNEL, AREA, DEPTH = 80e9, 12e-6, 900.0, 20.0
STREAM_START, STREAM_RATE = 9e-6, 12e9
ATTENTION_START, ATTENTION_RATE, BACKWARD = 15e-6, 30e9, 2.25
START, LATENCY, RATE = 20e-6, 100e-6, 1.5e9


def product(m, n, k, *, peak=PEAK, kernel=KERNEL, area=AREA, depth=DEPTH):
    """Seconds of a matrix product: a fixed time, and edges that cost as much as more rows and more depth would."""
    return kernel + 2 * (m * n + area) * (k + depth) / peak


def stream(size):
    return STREAM_START + size / STREAM_RATE


def attention(head_dim, sequence, pairs):
    return ATTENTION_START + 2 * pairs * sequence**2 * head_dim / ATTENTION_RATE


def ring(operator, ranks, size, *, start=START, latency=LATENCY, rate=RATE):
    """Seconds around a ring: an all-reduce passes everything on twice, gather and scatter once."""
    passes = 2 if operator == 'all_reduce' else 1
    return start + passes * (ranks - 1) * latency + passes * (ranks - 1) / ranks * size / rate


def figures(seconds, cv=0.02, n=48):
    return {'n': n, 'median': 1.02 * seconds, 'p10': seconds, 'iqr': 0.02 * seconds, 'cv': cv}


def row(seconds, cv=0.02, wall=1.0, **key):
    """A line; ``wall``: by the clock it took so many times its CPU time."""
    return {**key, 'weight': 1, 'wall': figures(wall * seconds, cv), 'cpu': figures(seconds, cv), 'quiet': 1.0}


def collective(operator, ranks, size, seconds, cv=0.02):
    algorithm = 'exchange' if operator == 'all_reduce' and size <= 4096 else 'ring'
    key = {'operator': operator, 'ranks': ranks, 'nodes': 1, 'bytes': size, 'algorithm': algorithm}
    return row(seconds, cv, **key)


def collectives(law=ring, ranks=(2, 4), sizes=tuple(4**power for power in range(4, 13))):
    names = ('all_reduce', 'all_gather', 'reduce_scatter')
    return [collective(name, p, size, law(name, p, size)) for name, p, size in itertools.product(names, ranks, sizes)]


def products(law=product, sizes=SIZES):
    return [
        row(law(m, n, k), m=m, n=n, k=k, phase=phase)
        for m, n, k in itertools.product(sizes, repeat=3)
        for phase in ('F', 'I', 'W')
    ]


def stretch(what, beside, factor, cv=0.03):
    """Of kernels the median counts, of collectives the 10th percentile."""
    return {
        'what': what,
        'beside': beside,
        'factor': figures(factor if what == 'collective' else factor / 1.02, cv, 12),
    }


def record(**changes):
    """The whole record; ``changes`` replace tables, or keys beside the tables."""
    tables = {
        'matmul': products(),
        'attention': [
            row(
                attention(d, s, p) * (BACKWARD if phase == 'I' else 1),
                queries=1,
                head_dim=d,
                sequence=s,
                pairs=p,
                phase=phase,
            )
            for d, s, p in itertools.product((32, 64), (16, 64, 256), (1, 8))
            for phase in ('F', 'I')
        ],
        'operator': [
            row(stream(size), operator=operator, phase='F', bytes=size)
            for operator in ('residual', 'bias', 'gelu')
            for size in (10**4, 10**5, 10**6, 10**7)
        ],
        'collective': collectives(),
    }
    made = {
        'format': 'simpar bench 1',
        'date': '2026-11-20',
        'machine': '4-core x86 CPU',
        'cores': 4,
        'memory': 16 * 10**9,
        'software': {'Python': '3.11', 'torch': '2.13'},
        'ranks': 4,
        'net': 'none',
        'overlap': [
            stretch('matrix', 'all-reduces', 1.25),
            stretch('collective', 'matrix kernels', 1.6),
            stretch('memory', 'all-reduces', 2.0),
            stretch('collective', 'memory kernels', 2.5),
        ],
        'notes': [],
    }
    tables |= {kind: rows for kind, rows in changes.items() if kind in tables}
    made |= {key: value for key, value in changes.items() if key not in tables}
    return {**made, 'tables': tables}
