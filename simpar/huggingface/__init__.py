"""Hugging Face: a ``config.json`` as the keys of a ``transformer:``; nothing of it is run, nothing is downloaded."""

from simpar.huggingface.expand import Expanded, expanded, in_its_words
