"""Reads a ``torch.nn.Module`` as a model: ``simpar.from_module`` and ``--module``. Torch is imported then."""

from simpar.torch_module.from_module import Imported, from_module
