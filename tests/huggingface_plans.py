"""Plans of up to 8 ranks that cover every pair of axes, for models of transformers."""

from dataclasses import replace

from simpar.plans import Plan

SIX = ('gpt2', 'llama', 'mistral', 'qwen3', 'mixtral', 'deepseek_v3')
PLANS = {
    'ring, zero 1': Plan(data=2, expert=2, context=2, context_kind='ring', tensor=2, zero=1),
    'gather, tensor, sequence, pipeline, copies, recompute': Plan(
        context=2, tensor=2, sequence_parallel=True, pipeline=2, micro_batches=2, copies=2, recompute='full'),
    'heads, expert, pipeline, copies, zero 2': Plan(
        data=2, expert=2, context=2, context_kind='all_to_all', pipeline=2, micro_batches=2, copies=2, zero=2),
    'expert, tensor, sequence, pipeline, copies, zero 2': Plan(
        data=2, expert=2, tensor=2, sequence_parallel=True, pipeline=2, micro_batches=2, copies=2, zero=2),
    'expert, data, tensor, copies, zero 3': Plan(data=4, expert=2, tensor=2, copies=2, zero=3, recompute='selective'),
    'ring of runs, expert, tensor, sequence, zero 3': Plan(
        data=2, expert=2, context=2, context_kind='ring', context_split='contiguous', tensor=2, sequence_parallel=True,
        zero=3, recompute='full'),
    'gather in 4, expert': Plan(data=2, expert=2, context=4, context_split='contiguous', recompute='full'),
    'gather, expert, pipeline, late': Plan(
        data=2, expert=2, context=2, pipeline=2, micro_batches=4, reduce='late', recompute='selective'),
    'heads of runs, data, pipeline, copies, zero 1': Plan(
        data=2, context=2, context_kind='all_to_all', context_split='contiguous', pipeline=2, micro_batches=2, copies=2,
        zero=1, recompute='selective'),
}  # fmt: skip


AXES = {
    'data': lambda plan: plan.data > 1,
    'tensor': lambda plan: plan.tensor > 1,
    'sequence': lambda plan: plan.sequence_parallel,
    'context': lambda plan: plan.context > 1,
    'expert': lambda plan: plan.expert > 1,
    'pipeline': lambda plan: plan.pipeline > 1,
    'copies': lambda plan: plan.copies > 1,
    'zero': lambda plan: plan.zero > 0,
    'recompute': lambda plan: plan.recompute != 'none',
}
SAMPLE = Plan(data=2, expert=2, context=2, context_kind='ring', copies=2, zero=1)
"""What the suite trains on gloo; ``make prove-huggingface`` trains the others."""


def ranks(plan):
    """How many a plan has."""
    return plan.data * plan.context * plan.tensor * plan.pipeline


def plan_for(plan, workload):
    """A plan for a model: without experts, no ranks share them."""
    plan = replace(plan, data=max(1, plan.data))
    return plan if workload.model.experts else replace(plan, expert=1)


def groups(plan):
    """In how many groups an auxiliary loss balances the tokens of a step."""
    return plan.micro_batches * plan.copies * plan.data
