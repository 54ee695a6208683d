"""Words that the vocabularies of known tokenizers have, by a part of their name.

Each count is vocab_size of a published config: openai-community/gpt2, meta-llama/Llama-2-7b-hf, Meta-Llama-3-8B,
mistralai/Mistral-7B-v0.1 and Mixtral-8x7B, Qwen/Qwen2.5-7B and Qwen3-8B, deepseek-ai/DeepSeek-V2 and V3,
google-bert/bert-base-uncased, google/gemma-2-9b.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

KNOWN: Final = (
    (r'llama[-_]?(3|tokenizer3)|llama3tokenizer|meta-llama-3', 128256, 'Llama 3'),
    (r'llama[-_]?2|llama2tokenizer|codellama', 32000, 'Llama 2'),
    (r'mixtral|mistral-?7b-v0\.1', 32000, 'Mixtral'),
    (r'qwen-?3|qwen-?2\.?5?', 151936, 'Qwen 2 and 3'),
    (r'deepseek-?_?v?3|deepseek-?_?r1', 129280, 'DeepSeek-V3'),
    (r'deepseek-?_?v?2', 102400, 'DeepSeek-V2'),
    (r'gemma', 256000, 'Gemma'),
    (r'gpt2bpetokenizer|gpt-?2', 50257, 'GPT-2'),
    (r'bertwordpiececase|bert-?\w*-?cased', 28996, 'BERT, cased'),
    (r'bertwordpiecelowercase|bert-?base-?uncased', 30522, 'BERT'),
)


def words_known(texts: Iterable[str]) -> tuple[int, str] | None:
    """Words and name of the tokenizer that texts such as a path name; None where none does."""
    whole = ' '.join(texts).lower()
    return next(((count, name) for pattern, count, name in KNOWN if re.search(pattern, whole)), None)
