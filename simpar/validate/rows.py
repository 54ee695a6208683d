"""Rows: published training steps as CSV files hold them, read and checked."""

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from statistics import median
from typing import Final

from simpar.errors import Problem, ScheduleError, refusal, refuse
from simpar.files import read_csv, read_regular

COLUMNS: Final = (
    *('id', 'framework', 'hardware', 'model', 'n_gpus', 'n_layers', 'hidden', 'heads', 'seq', 'micro_batch'),
    *('global_batch', 'tp', 'pp', 'dp', 'step_time_s'),
)
"""What a file must have; docs/proofs/validate.md says what else is read."""
OF_MEASUREMENT: Final = frozenset(
    {'id', 'source', 'source_ref', 'notes', 'provenance', 'confidence', 'params_b', 'stack', 'step_time_s'}
    | {'tflops_per_gpu', 'mfu_pct', 'tokens_per_s_per_gpu', 'samples_per_s_per_gpu', 'mem_gib'}
)
"""Columns that say how a step was measured, and not what was trained."""
VOCABULARY: Final = 32000
"""Tokens where neither a row nor its model's name says: those of LLaMA, of most such models."""
VOCABULARIES: Final = 'vocabularies.csv'
COUNTS: Final = (
    *('n_gpus', 'gpus_per_node', 'seq', 'micro_batch', 'global_batch', 'n_layers', 'hidden', 'heads'),
    *('tp', 'pp', 'cp', 'ep', 'etp', 'kv_heads', 'head_dim', 'vpp_chunks', 'interleave_copies', 'year'),
)
"""Columns of numbers that are 1 or more."""
NUMBERS: Final = (
    *('step_time_s', 'dp', 'sp', 'ffn', 'vocab', 'n_experts', 'topk', 'moe_ffn', 'zero_stage', 'gpu_mem_gb'),
    *('mtp_layers', 'bias_linear', 'untied_embeddings'),
)
"""Columns of numbers that are 0 or more."""
MOST: Final = 1e12
MOST_BYTES: Final = 16 * 2**20
FITTED: Final = 3
"""One row in so many is for fitting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A published step.

    Arguments: ``of``, the name of its set; ``cells``, by column, empty ones left out; ``seconds`` measured; ``same``,
    how many rows with equal settings it stands for, its seconds being their median.
    """

    of: str
    cells: Mapping[str, str]
    seconds: float
    same: int = 1

    @property
    def name(self) -> str:
        """Its id."""
        return self.cells['id']

    def text(self, column: str) -> str:
        """A cell's text; empty where there is none."""
        return self.cells.get(column, '')

    def whole(self, column: str, otherwise: int = 0) -> int:
        """A cell as a whole number."""
        word = self.cells.get(column, '')
        return int(float(word)) if word else otherwise

    @property
    def shape(self) -> tuple[str, ...]:
        """What its model is: the name, and its shape, as a set may call all its models the same."""
        return tuple(self.text(column) for column in ('model', 'n_layers', 'hidden'))

    @property
    def settings(self) -> tuple[tuple[str, str], ...]:
        """All that tells what was trained."""
        return tuple(sorted((column, word) for column, word in self.cells.items() if column not in OF_MEASUREMENT))


def is_for_fitting(row: Row) -> bool:
    """Whether numbers may be fitted on a row: about a third of all, told by hardware, model, devices and sequence.

    Rows that differ in the plan or the batch alone fall on one side, so that no plan of a model is scored of which
    another one was fitted.
    """
    text = '|'.join((row.text('hardware'), *row.shape, row.text('n_gpus'), row.text('seq')))
    return int(sha256(text.encode()).hexdigest(), 16) % FITTED == 0


def read_rows(folder: Path, wanted: str = '') -> list[Row]:
    """The rows of all CSV files of a folder, or of one set; equal settings make one row.

    Raises ``ScheduleError`` with every problem.
    """
    files = sorted(folder.glob('*.csv')) if folder.is_dir() else []
    if not files:
        raise refusal(folder, 'no CSV files here', 'name the folder of the sets with --data')
    if wanted and wanted not in {path.stem for path in files}:
        names = ', '.join(path.stem for path in files)
        raise refusal('--set', f'no such set (got {wanted})', f'one of {names}')
    problems: list[Problem] = []
    others = dict(other_files(folder))
    # A folder may hold more than steps, e.g. pairs; a set that is asked for, or that is alone, is told to be no set.
    paths = [path for path in files if path.stem == wanted or (not wanted and path not in others)]
    if not paths:
        raise ScheduleError(list(others.values())[:20])
    rows = [row for path in paths for row in _read(path, problems)]
    refuse(problems[:20])
    return _once(_one_tokenizer(list(_completed(rows))))


def other_files(folder: Path) -> Iterator[tuple[Path, Problem]]:
    """The CSV files of a folder that are no sets of steps, each with what it lacks; what cannot be read is none."""
    for path in sorted(folder.glob('*.csv')):
        try:
            head = read_regular(path, MOST_BYTES).decode('utf-8').partition('\n')[0]
            columns = next(csv.reader([head]), [])
        except (OSError, UnicodeDecodeError, csv.Error):
            continue
        missing = _missing(columns)
        if missing:
            yield path, _lacks(path, missing)


def _missing(header: Iterable[str]) -> list[str]:
    names = {*header}
    return [column for column in COLUMNS if column not in names]


def _lacks(path: Path, missing: Sequence[str]) -> Problem:
    return Problem(f'{path}:1', f'no column {", ".join(missing)}', f'columns: {", ".join(COLUMNS)}')


def _completed(rows: Sequence[Row]) -> Iterator[Row]:
    """Rows of one model share the vocabulary that one of them states; a published model has that of its config."""
    by_shape = {row.shape: row.text('vocab') for row in rows if row.text('vocab')}
    for row in rows:
        vocabulary = by_shape.get(row.shape, '') or vocabulary_of(row.text('model'))
        yield replace(row, cells={**row.cells, 'vocab': vocabulary}) if vocabulary and not row.text('vocab') else row


def vocabulary_of(model: str) -> str:
    """The tokens of a published model, by its name; empty where it is not known."""
    table = read_csv(Path(__file__).parent / VOCABULARIES)
    return next((line['vocab'] for line in table if fnmatchcase(model.lower(), line['model'])), '')


def _one_tokenizer(rows: Sequence[Row]) -> list[Row]:
    """Rows of one source have one tokenizer: its usual size where the stated one contradicts their numbers of weights.

    Tables of papers state weights and no vocabulary, and whoever copies them assumes one.
    """
    by: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        by.setdefault((row.of, row.text('source')), []).append(row)
    new_rows = []
    for group in by.values():
        # Numbers of rows without a step are not checked.
        timed = [row for row in group if row.seconds]
        wrong = any(not _fits(row, row.whole('vocab')) for row in timed)
        usual = wrong and all(_fits(row, VOCABULARY) for row in timed)
        new_rows += [replace(row, cells={**row.cells, 'vocab': str(VOCABULARY)}) if usual else row for row in group]
    return new_rows


def _fits(row: Row, vocab: int) -> bool:
    """Whether a plain GPT of this vocabulary has as many billions of weights as stated, to the last digit stated."""
    stated = row.text('params_b')
    plain = row.text('mlp') in ('', 'gelu') and row.whole('ffn', 4 * row.whole('hidden')) == 4 * row.whole('hidden')
    if not plain or not vocab or not _is_number(stated, 0) or '.' not in stated:
        return True
    layers, hidden = row.whole('n_layers'), row.whole('hidden')
    weights = layers * (12 * hidden + 13) * hidden + (vocab + row.whole('seq') + 2) * hidden
    return round(weights / 1e9, len(stated.partition('.')[2])) == float(stated)


def _read(path: Path, problems: list[Problem]) -> Iterator[Row]:
    try:
        text = read_regular(path, MOST_BYTES).decode('utf-8')
    except (OSError, UnicodeDecodeError) as failure:
        problems.append(Problem(str(path), f'cannot be read: {str(failure)[:100]}', 'write CSV in UTF-8'))
        return
    reader = csv.DictReader(io.StringIO(text, newline=''))
    try:
        if missing := _missing(reader.fieldnames or ()):
            problems.append(_lacks(path, missing))
            return
        for cells in reader:
            # What stands behind the last column has no name.
            texts = {key: word.strip() for key, word in cells.items() if key and word and word.strip()}
            if row := _row(path, reader.line_num, texts, problems):
                yield row
    except csv.Error as failure:
        problems.append(Problem(f'{path}:{reader.line_num}', f'no row of CSV: {failure}', 'write one line a row'))


def _row(path: Path, line: int, cells: Mapping[str, str], problems: list[Problem]) -> Row | None:
    if 'id' not in cells:
        problems.append(Problem(f'{path}:{line}', 'id: empty', 'give each row its own, e.g. myset:0001'))
        return None
    seconds = cells.get('step_time_s', '')
    if not seconds:
        return Row(of=path.stem, cells=cells, seconds=0.0)
    wrong = [*_wrong_numbers(cells, COUNTS, 1), *_wrong_numbers(cells, NUMBERS, 0)]
    if cells.get('recompute', '').startswith('{') and not _is_mapping(cells['recompute']):
        wrong.append(('recompute: not JSON', 'write a word, or one mapping'))
    problems += [Problem(f'{path}:{line}', what, instead) for what, instead in wrong]
    return None if wrong else Row(of=path.stem, cells=cells, seconds=float(seconds))


def _wrong_numbers(cells: Mapping[str, str], columns: Iterable[str], least: int) -> Iterator[tuple[str, str]]:
    """What is wrong with cells that must be numbers, and what to write instead."""
    for column in columns:
        word = cells.get(column, '')
        if word and not _is_number(word, least):
            # A shown cell cannot harm the terminal, and is no longer than a line.
            yield f'{column}: not a number (got {word[:40]!r})', f'write a number from {least} to {MOST:g}'


def _is_number(word: str, least: int) -> bool:
    try:
        return least <= float(word) <= MOST
    except ValueError:
        return False


def _is_mapping(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _once(rows: Iterable[Row]) -> list[Row]:
    """Rows of equal settings as one, its seconds the median of theirs."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.of, row.settings), []).append(row)
    return [
        Row(of=group[0].of, cells=group[0].cells, seconds=median(row.seconds for row in group), same=len(group))
        for group in groups.values()
    ]
