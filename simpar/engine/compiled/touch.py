"""What a change on a device touches: streams whose speeds are solved anew at the end of the instant, each once."""

from __future__ import annotations

from typing import Any

from simpar.engine.compiled.records import NONE, World
from simpar.jit import part


@part
def touch(world: World, number: int) -> None:
    """Touch a stream."""
    stream = world.streams[number]
    if not stream.marked:
        stream.marked = 1
        loop = world.loop[0]
        world.touched[loop.touched] = number
        loop.touched += 1


@part
def touch_computing(world: World, device: Any) -> None:
    """Touch what computes on a device."""
    for index in range(device.first_compute, device.first_communication):
        stream = world.beside[index]
        if world.streams[stream].computing:
            touch(world, stream)


@part
def occupy(world: World, number: int) -> None:
    """Let one more collective slow a device's compute."""
    device = world.devices[number]
    device.communicating += 1
    if device.communicating == 1:
        touch_computing(world, device)


@part
def vacate(world: World, device: Any) -> None:
    """Let one collective less slow a device's compute."""
    device.communicating -= 1
    if device.communicating == 0:
        touch_computing(world, device)


@part
def begin_computing(world: World, device: Any) -> None:
    """Let one more stream of a device compute, which slows transfers."""
    device.computing += 1
    if device.computing == 1 and device.transferring:
        for index in range(device.first_communication, device.end):
            lead = world.streams[world.beside[index]].lead
            if lead != NONE:
                world.streams[lead].slowing += 1
                if world.streams[lead].slowing == 1:
                    touch(world, lead)


@part
def end_computing(world: World, device: Any) -> None:
    """Let one stream less of a device compute."""
    device.computing -= 1
    if device.computing == 0 and device.transferring:
        for index in range(device.first_communication, device.end):
            lead = world.streams[world.beside[index]].lead
            if lead != NONE:
                world.streams[lead].slowing -= 1
                if world.streams[lead].slowing == 0:
                    touch(world, lead)
