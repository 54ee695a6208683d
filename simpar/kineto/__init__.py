"""Traces as Kineto (Chrome) JSON, which Perfetto, chrome://tracing and Holistic Trace Analysis (HTA) open.

A rank is a process, a stream a thread, an op a kernel. A collective's kernel lasts from the arrival of this rank, as an
NCCL kernel does that waits for its peers; ``waited us`` says how long. HTA finds a file's rank by ``"rank": N`` in one
line, needs the space there, and takes a kernel for communication if its name matches ``^nccl.*Kernel``. It drops
kernels without a launch, and all launched in the last step, since a profiler's last is incomplete: in the files of
single ranks every kernel has a launch (of no duration where the host's time is not known), and an empty step is last.
Sends and receives are kernels while they transfer, as the metrics count them. An action of a pipeline is an annotation,
``PP:2F0``, as torch.distributed.pipelining writes it.
"""

from simpar.kineto.write import Style, chosen_ranks, events, in_the_merged_file, link_counters, write_kineto
