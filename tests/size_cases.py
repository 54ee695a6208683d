"""Random schedules of many sizes, for the estimates of their size."""

from pathlib import Path
from random import Random

EXAMPLES = Path(__file__).parent.parent / 'examples'


def cases(count: int, seed: int, most: float = 1.5e6) -> list[list[str]]:
    """So many schedules: a file, and what is set in it. Arguments: ``most``, about how many slots they have."""
    draw = Random(seed)
    kinds = [_pipeline, _copies, _network, _tiles]
    found: list[list[str]] = []
    while len(found) < count:
        words, slots = kinds[len(found) % len(kinds)](draw)
        if slots <= most:
            found.append(words)
    return found


def _pipeline(draw: Random) -> tuple[list[str], float]:
    pipeline, data, layers = draw.choice([2, 4, 8, 16, 32]), draw.choice([1, 2, 8]), draw.choice([1, 2, 4])
    micro_batches = pipeline * draw.choice([1, 2, 4, 8, 16, 32])
    order, chunks = draw.choice([('1f1b', 1), ('gpipe', 1), ('zb-h1', 1), ('interleaved-1f1b', 2)])
    layers *= pipeline * chunks
    words = {
        'cluster.nodes': pipeline * data,
        'plan.data': data,
        'plan.pipeline': pipeline,
        'plan.micro_batches': micro_batches,
        'plan.order': order,
        'plan.chunks': chunks,
        'plan.copies': draw.choice([1, 1, 2]),
        'workload.transformer.layers': layers,
        'workload.batch': 2 * data * micro_batches,
    }
    return [str(EXAMPLES / 'pipeline_h100.yaml'), *_set(words)], 80.0 * layers * micro_batches


def _copies(draw: Random) -> tuple[list[str], float]:
    copies, layers = 2 ** draw.randint(0, 8), draw.choice([4, 16, 32, 64])
    words = {'plan.copies': copies, 'workload.transformer.layers': layers, 'workload.batch': max(32, copies)}
    return [str(EXAMPLES / 'transformer_h100.yaml'), *_set(words)], 40.0 * layers * copies


def _network(draw: Random) -> tuple[list[str], float]:
    copies = 2 ** draw.randint(0, 10)
    words = {'plan.copies': copies, 'workload.batch': 2 * copies, 'plan.micro_batches': 1}
    return [str(EXAMPLES / 'multi_copy.yaml'), *_set(words)], 20.0 * copies


def _tiles(draw: Random) -> tuple[list[str], float]:
    tiles, copies, layers = 2 ** draw.randint(0, 5), 2 ** draw.randint(0, 3), draw.choice([1, 8, 24])
    words = {
        'plan.tiles': tiles,
        'plan.copies': copies,
        'workload.transformer.layers': layers,
        'workload.batch': max(2, copies),
    }
    return [str(EXAMPLES / 'tiles.yaml'), *_set(words)], 60.0 * layers * copies * tiles


def _set(words: dict[str, object]) -> list[str]:
    return [f'{key}={value}' for key, value in words.items()]
