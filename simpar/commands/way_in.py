"""What a bare ``simpar`` shows."""

from typing import Final

WAY_IN: Final = """\
simpar predicts the step of a training schedule on Ascend and GPU clusters, and says why.

  simpar examples                        what comes with it: models, clusters, plans
  simpar examples --copy schedules       write these into a folder, to be changed
  simpar init --model llama3-8b          a first schedule of your model; simpar import FILE: of a launch script
  simpar run schedules/multi_copy.yaml   predict one: step, gain over a baseline, why, memory
  simpar sweep FILE --sweep plan.copies=1,2,4    a table over keys
  simpar check FILE                      what every rank does; --numerics trains a step and compares
  simpar measure FILE                    train it with torch.distributed, compare with the prediction
  simpar profiles                        the clusters that it knows

simpar --help lists all verbs, simpar VERB --help the flags of one."""
