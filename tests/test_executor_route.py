"""Which interface leads to the other ranks: the route to the master decides, not the host's own name."""

import os
import shutil
import subprocess
import sys

import pytest

from executor.cluster.meeting import interface_of, interface_to, local_address, loopback


def test_addresses_of_this_host():
    assert local_address('127.0.0.1') == '127.0.0.1'
    assert local_address('no.such.host.invalid') == ''
    assert [loopback(text) for text in ('127.0.1.1', '::1', '10.0.0.1', 'fe80::1%eth0', '')] == [
        True,
        True,
        *[False] * 3,
    ]


@pytest.mark.skipif(sys.platform != 'linux', reason='elsewhere the loopback has another name')
def test_the_loopback_is_an_interface_but_leads_to_no_other_host():
    assert interface_of('127.0.0.1') == 'lo'
    assert interface_of('192.0.2.1') == ''
    assert interface_to(['127.0.0.1', 'localhost', 'no.such.host.invalid']) == ''


@pytest.mark.lab
def test_the_interface_is_the_one_whose_route_leads_to_the_master():
    """Two networks in a namespace; where the master's name means the loopback, a rank elsewhere decides."""
    script = """
ip link set lo up
for number in 1 2; do
    ip link add e$number type veth peer name far$number; ip link set far$number up
    ip addr add 10.78.$number.1/24 dev e$number; ip link set e$number up
done
exec "$0" -c 'from executor.cluster.meeting import interface_to as to
print(to(["10.78.2.7"]), to(["10.78.1.9"]), to(["127.0.1.1", "10.78.2.3"]), to(["10.78.1.1"]))'
"""
    if shutil.which('unshare') is None or shutil.which('ip') is None:
        pytest.skip('needs iproute2 and util-linux')
    command = ['unshare', '-n', 'sh', '-c', script, sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=dict(os.environ))
    if 'Operation not permitted' in done.stderr:
        pytest.skip('no rights to make a network namespace')
    assert done.stdout.split() == ['e2', 'e1', 'e2', 'e1'], done.stderr
