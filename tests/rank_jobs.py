"""The life of ranks of torch's own engines, begun by a test: join over gloo, do the jobs, write what was found."""

import importlib
import multiprocessing
import os
import pickle
import sys
import traceback

import torch
import torch.distributed as dist


def found_by(script, jobs, world, folder):
    """What each rank of a script found, all jobs one after the other."""
    (folder / 'jobs').write_bytes(pickle.dumps(jobs))
    process = _server().Process(target=_begin, args=(script, world, folder))
    process.start()
    process.join(240)
    assert process.exitcode == 0, (folder / 'errors').read_text(encoding='utf-8')
    return [pickle.loads((folder / f'found{rank}').read_bytes()) for rank in range(world)]


def _server():
    """The server from which pools fork their ranks: it has imported torch."""
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['executor.ranks.pool'])
    return context


def launched(module, flags, world):
    """Exit codes of the ranks of a command, begun as torchrun's agent begins them, at a store that it serves."""
    store = dist.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False)
    where = {'WORLD_SIZE': str(world), 'MASTER_ADDR': '127.0.0.1', 'MASTER_PORT': str(store.port)}
    where |= {'TORCHELASTIC_USE_AGENT_STORE': 'True', 'TORCHELASTIC_RUN_ID': 'none'}
    ranks = [_server().Process(target=_command, args=(module, flags, rank, where)) for rank in range(world)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(100)
    return [one.exitcode for one in ranks]


def _command(module, flags, rank, where):
    os.environ.update(where, RANK=str(rank))
    sys.exit(importlib.import_module(module).main(flags))


def _begin(script, world, folder):
    """The process of a script, whose ranks are forked."""
    os.dup2(os.open(folder / 'errors', os.O_WRONLY | os.O_CREAT), 2)
    sys.exit(importlib.import_module(script).main(world, folder))


def serve(run, rank, world, folder):
    """Do each job of the folder by ``run``, and write what each found by its name."""
    torch.set_num_threads(1)
    os.environ.setdefault('GLOO_SOCKET_IFNAME', 'lo')
    dist.init_process_group('gloo', store=dist.FileStore(str(folder / 'store'), world), rank=rank, world_size=world)
    jobs = pickle.loads((folder / 'jobs').read_bytes())
    found = {name: run(job) for name, job in jobs.items()}
    (folder / f'found{rank}').write_bytes(pickle.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def fork(run, world, folder):
    """Ranks of one process, so that torch is imported once; ``run`` takes a job and a rank. Returns how many failed."""
    children = []
    for rank in range(world):
        child = os.fork()
        if not child:
            try:
                serve(lambda job, rank=rank: run(job, rank), rank, world, folder)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)
