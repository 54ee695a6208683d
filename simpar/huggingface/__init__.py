"""Hugging Face: a ``config.json`` as the keys of a ``transformer:``; nothing of it is run, nothing is downloaded."""

from simpar.huggingface.expand import Expanded as Expanded
from simpar.huggingface.expand import expanded as expanded
from simpar.huggingface.expand import in_its_words as in_its_words
