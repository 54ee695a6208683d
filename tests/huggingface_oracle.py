"""What transformers computes of its tiny models, by its own names; plans that cover every pair of axes for them."""

from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations

import torch
from huggingface_cases import SEQUENCE, Unnarrowed, schedule_of, their_names, transformers_model

from executor.draws import batch_of, single_thread
from executor.inprocess import InProcess
from executor.reference import Reference
from simpar.lower import lower
from simpar.plans import Plan

TOLERANCE = 1e-10
FLOOR = 1e-6
"""Of the largest gradient: a bias of keys moves no softmax, so its gradient is zero but for rounding."""


@dataclass(eq=False)
class Oracle:
    """A model of transformers with the weights that programs begin with from a seed, and its workload.

    Arguments: ``kind``, its family; ``config``, its keys; ``folder``, where they are written for ours to read;
    ``documents``, tokens of each that a sample packs, of which it computes each alone.
    """

    kind: str
    config: dict
    folder: object
    seed: int = 7
    documents: tuple = (SEQUENCE,)
    found: dict = field(default_factory=dict)

    def __post_init__(self):
        packed = f', documents: {[*self.documents]}' if len(self.documents) > 1 else ''
        self.workload = schedule_of(self.config, self.folder, packed).workload
        self.model = self.loaded(torch.float64)
        self.logits = []
        for module in self.model.modules():
            if type(module).__name__.lower().endswith('topkrouter'):
                module.register_forward_hook(lambda module, inputs, outputs: self.logits.append(outputs[0]))

    def loaded(self, dtype, *, patched=True):
        """Their model with our weights."""
        model = transformers_model(self.config, dtype, patched=patched)
        own = Reference(self.workload, Plan(), seed=self.seed).parameters
        wanted = {name: value.detach().to(dtype) for name, value in own.items()}
        left = model.load_state_dict(their_names(self.kind, self.workload.model, wanted), strict=False)
        assert not left.unexpected_keys
        assert set(left.missing_keys) <= {'lm_head.weight'}, 'tied'
        return model

    def with_aux_loss(self, coefficient):
        """The workload with an auxiliary loss."""
        return schedule_of(self.config, self.folder, f', experts: {{aux_loss: {coefficient}}}').workload

    def computed(self, aux_loss=0.0, groups=1):
        """Loss and gradients; tokens are balanced in so many groups."""
        if (aux_loss, groups) not in self.found:
            self.found[aux_loss, groups] = self._computed(aux_loss, groups)
        return self.found[aux_loss, groups]

    def _computed(self, aux_loss, groups):
        self.model.zero_grad()
        total = 0.0
        # Many threads on matrices of 16 × 16 wait for one another.
        with single_thread():
            for tokens, labels in zip(*(one.chunk(groups) for one in self.drawn()), strict=True):
                loss = self._loss(tokens, labels, aux_loss)
                (loss / groups).backward()
                total += float(loss.detach()) / groups
        grads = ((name, one.grad) for name, one in self.model.named_parameters())
        return total, {name: grad.clone() for name, grad in grads if grad is not None}

    def drawn(self):
        """Tokens and labels of the first step."""
        shape, kind = (self.workload.batch, SEQUENCE), f'tokens:{self.workload.model.vocab}'
        return [batch_of(name, kind, shape, torch.int64, self.seed, 0) for name in ('tokens', 'labels')]

    def _loss(self, tokens, labels, aux_loss):
        from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

        self.logits.clear()
        with Unnarrowed(torch.float64):
            logits = torch.cat([self.model(part).logits for part in tokens.split(self.documents, 1)], 1)
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            for layer in self.logits if aux_loss else ():
                experts = self.workload.model.experts
                # Theirs counts each choice of a token as one, ours all of them together.
                loss = loss + aux_loss / experts.top_k * load_balancing_loss_func(
                    (layer,), experts.count, experts.top_k
                )
        return loss

    def unpatched_loss(self):
        """The loss in fp32, as transformers computes it without the patch."""
        model = self.loaded(torch.float32, patched=False)
        tokens, labels = self.drawn()
        with single_thread(), torch.no_grad():
            return float(torch.nn.functional.cross_entropy(model(tokens).logits.flatten(0, 1), labels.flatten()))

    def deviation(self, loss, gradients, aux_loss=0.0, groups=1, floor=FLOOR):
        """The largest relative error of a loss or of a gradient in norm; gradients by our names, as ``d:NAME``."""
        wanted, theirs = self.computed(aux_loss, groups)
        own = {name.removeprefix('d:'): value.double() for name, value in gradients.items()}
        named = their_names(self.kind, self.workload.model, own, gains=0.0)
        assert named.keys() == theirs.keys()
        least = floor * max(float(one.norm()) for one in theirs.values())
        errors = [float((named[name] - one).norm()) / max(float(one.norm()), least) for name, one in theirs.items()]
        return max(abs(loss - wanted) / abs(wanted), *errors)

    def compared(self, plan, ranks, aux_loss=0.0):
        """The same of what ranks compute under a plan, in one process."""
        workload = self.with_aux_loss(aux_loss) if aux_loss else self.workload
        found = InProcess(lower(workload, plan, ranks), self.seed).run(1)
        return self.deviation(found.losses[0], found.gradients, aux_loss, groups(plan) if aux_loss else 1)

    def margin(self):
        """Least distance of scores on which it depends where a token goes: of experts, and of groups of them."""
        self.computed()
        experts = self.workload.model.experts
        return min(map(float, (least for layer in self.logits for least in _margins(experts, layer.detach()))))


def oracles(configs, tmp_path_factory, seed=7):
    """Models of transformers by the name of their config, each made once."""
    folder = tmp_path_factory.mktemp('configs')
    return cache(lambda name: Oracle(configs[name]['model_type'], configs[name], folder, seed))


def _margins(experts, logits):
    """Of one layer: between the last choice and the next one, of groups and of experts in the chosen groups."""
    scores = logits.softmax(-1) if experts.score == 'softmax' else logits.sigmoid()
    if experts.groups > 1:
        grouped = scores.unflatten(-1, (experts.groups, -1))
        sums = grouped.sort(-1, descending=True).values[..., : experts.group_scores].sum(-1)
        order = sums.sort(-1, descending=True)
        chosen = order.indices[..., : experts.group_top_k]
        yield (order.values[..., experts.group_top_k - 1] - order.values[..., experts.group_top_k]).min()
        scores = grouped.gather(-2, chosen[..., None].expand(*chosen.shape, grouped.shape[-1])).flatten(-2)
    best = scores.sort(-1, descending=True).values
    if best.shape[-1] > experts.top_k:
        yield (best[..., experts.top_k - 1] - best[..., experts.top_k]).min()


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
    'expert data': lambda plan: plan.data > plan.expert,
    'pipeline': lambda plan: plan.pipeline > 1,
    'copies': lambda plan: plan.copies > 1,
    'zero': lambda plan: plan.zero > 0,
    'recompute': lambda plan: plan.recompute != 'none',
}
NOT_ALONE = {('tensor', 'sequence'), ('data', 'expert'), ('data', 'zero')}
"""There is no second of these without the first: nothing to shard, or to share out."""


def uncovered(plans, *names):
    """Pairs of axes that no plan has both of, or one of without the other."""
    found = {pair: {tuple(AXES[name](plan) for name in pair) for plan in plans} for pair in combinations(names, 2)}
    return [
        pair
        for pair, met in found.items()
        if not met | ({(False, True)} if pair in NOT_ALONE else set()) >= {(True, True), (True, False), (False, True)}
    ]


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
    return plan.micro_batches * plan.copies * max(plan.data, 1)
