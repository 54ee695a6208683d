"""``--net`` of the verbs that predict or measure on a shaped network."""

from __future__ import annotations

import argparse

from simpar.case import Case
from simpar.errors import Problem, ScheduleError
from simpar.hardware.net import Net, parse_net


def net_of(options: argparse.Namespace) -> Net:
    """The network; what is wrong with it stands at its flag."""
    try:
        return parse_net(options.net)
    except ValueError as error:
        raise ScheduleError(Problem('--net', str(error))) from None


def predicted_net(case: Case, net: Net) -> str:
    """The network that a prediction is for, as ``--net`` writes it: the shaped one, else the profile's."""
    if net.shaped:
        return net.flag
    try:
        return parse_net(case.cluster.profile.net or 'none').flag
    # A profile may say anything of a network that is none of ours.
    except ValueError:
        return ''
