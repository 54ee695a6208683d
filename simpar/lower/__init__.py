"""Lowering: Workload × Plan × number of ranks → Program, in small passes that know no hardware and no seconds."""

from simpar.lower.lower import lower
