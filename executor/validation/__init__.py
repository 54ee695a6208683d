"""Validation: schedules predicted and measured in one run, on a network of known rate, with emulated compute.

``python -m executor.validation --net netns:500mbit`` prints the tables of ``docs/evidence.md``. Emulated compute checks
dependencies, streams, rendezvous and communication; it does not check the seconds of computation, which are given.
"""
