"""Fused ensembles: M pruned members in one network (method.md, section 3).

The network is the native model with its blocks replaced. Members that agree in layers 1..l
share one copy of the stream there (the shared trunk); where they part, the batch axis grows:
(G*B, T, d), G = distinct prefixes so far. So members form a prefix tree over the blocks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hydra_core.errors import CheckpointError, HydraError
from hydra_core.fusion.grouped import (
    GroupedLinear,
    MemberLoop,
    average,
    pack_members,
    same_module,
    stack,
    unpack_members,
)
from hydra_core.fusion.surgery import prune_model
from hydra_core.heads.mask import HeadMask, Plan
from hydra_core.models.attention import cut, kind_of, pad_to
from hydra_core.models.blocks import carried, unchained
from hydra_core.models.inplace import reuse_hidden
from hydra_core.models.shadow import set_child, shadow
from hydra_core.models.view import ModelView

FORMAT = "hydra-ensemble-1"
# Bytes. ViT-Ti, M = 3, batch 32 on two cores took 1.2 to 1.5 of the members' time in one piece, 0.9 to 1.0 in pieces.
CPU_ACTIVATION = 8 * 2**20


@dataclass(frozen=True)
class FusionOptions:
    """How members become one network.

    Attributes:
        merge_mlp: average the members' MLPs into one (the paper). False keeps one a member.
        norms: "member" keeps each member's norms and classifier (exact), "average" merges them (fill-in).
        share_trunk: run layers in which members agree once (ours). Never changes the result.
    """

    merge_mlp: bool = True
    norms: str = "member"
    share_trunk: bool = True

    def __post_init__(self) -> None:
        if self.norms not in ("member", "average"):
            raise HydraError("Norms are kept or merged", expected="'member' or 'average'", got=repr(self.norms))


class Branch(nn.Module):
    """One block of the tree: takes the stream of the groups before, gives that of the groups after.

    `parents[g]` is the group before from which group g comes.
    """

    def __init__(self, block: nn.Module, parents: Sequence[int], before: int) -> None:
        super().__init__()
        self.block, self.parents, self.before = block, tuple(parents), before

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        groups, more = len(self.parents), carried(self.block) - 1
        rows = next(iter(_each(x))).shape[0] // self.before
        x = select_groups(x, self.parents, self.before)
        # arguments with one row a sample (attention masks) are the same for every group
        args = (
            *(select_groups(a, self.parents, self.before) for a in args[:more]),
            *(_repeat(a, rows, groups) for a in args[more:]),
        )
        kwargs = {k: _repeat(v, rows, groups) for k, v in kwargs.items()}
        return self.block(x, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("block"), name)


def _each(x: Any) -> list[torch.Tensor]:
    return [x] if isinstance(x, torch.Tensor) else [t for item in x for t in _each(item)]


def select_groups(x: Any, parents: Sequence[int], before: int) -> Any:
    """(before*B, ...) -> (len(parents)*B, ...): each new group starts from its parent's rows. Lists: each tensor."""
    if isinstance(x, list | tuple):
        return type(x)(select_groups(item, parents, before) for item in x)
    if tuple(parents) == tuple(range(before)):
        return x
    if before == 1:
        return x.repeat(len(parents), *(1,) * (x.ndim - 1))
    return pack_members(unpack_members(x, before)[list(parents)])


def _repeat(value: Any, rows: int, groups: int) -> Any:
    batched = isinstance(value, torch.Tensor) and value.ndim >= 4 and value.shape[0] == rows and rows > 1
    return value.repeat(groups, *(1,) * (value.ndim - 1)) if batched and groups > 1 else value


class HydraEnsemble(nn.Module):
    """M pruned members fused into one network.

    Attributes:
        view: the model the members come from.
        plan: the members' masks.
        options: how they were fused.
        groups: distinct streams after each block; the cost in block runs is their sum.
    """

    def __init__(
        self,
        view: ModelView,
        plan: Plan,
        net: nn.Module,
        leaves: Sequence[int],
        groups: Sequence[int],
        options: FusionOptions,
    ) -> None:
        super().__init__()
        self.view, self.plan, self.options = view, plan, options
        self.net = net
        self.leaves = tuple(leaves)  # member -> its group after the last block
        self.groups = tuple(groups)
        self._widest: int | None = None  # bytes; found when the first batch comes

    @property
    def members(self) -> int:
        return len(self.plan)

    @torch.inference_mode()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of every member, (M, B, C), from a batch (B, ...)."""
        step = self._step(x) if x.device.type == "cpu" else len(x)
        parts = [unpack_members(self.net(part), max(self.leaves) + 1) for part in x.split(max(1, step))]
        logits = parts[0] if len(parts) == 1 else torch.cat(parts, 1)  # (G, B, C)
        return logits[list(self.leaves)]  # (M, B, C)

    def _step(self, x: torch.Tensor) -> int:
        """Samples a pass on a CPU: members on the batch axis fill its caches M times as fast as one model does."""
        if self._widest is None and len(x):
            self._widest = widest_output(self.net, x[:1])
        return CPU_ACTIVATION // max(1, self._widest or 0)

    member_logits = forward

    def predict_proba(self, x: torch.Tensor) -> torch.Tensor:
        """Mean over members of their softmax, (B, C)."""
        return self.forward(x).softmax(-1).mean(0)

    def save(self, path: str | Path) -> Path:
        """Write a safetensors checkpoint with the recipe to rebuild the structure in its header."""
        from safetensors.torch import save

        path = Path(path)
        tensors = {k: v.detach().cpu().contiguous().clone() for k, v in self.net.state_dict().items()}
        meta = {
            "format": FORMAT,
            "model": self.view.name,
            "plan": json.dumps(self.plan.to_json()),
            "options": json.dumps(vars(self.options)),
        }
        path.write_bytes(save(tensors, metadata=meta))  # with the user's own permissions, which save_file narrows
        return path


def widest_output(net: nn.Module, x: torch.Tensor) -> int:
    """Bytes of the largest tensor that a linear layer of the network gives for x."""
    sizes = [0]

    def note(_: nn.Module, __: Any, out: torch.Tensor) -> None:
        sizes.append(out.numel() * out.element_size())

    linears = [m for m in net.modules() if isinstance(m, nn.Linear | GroupedLinear)]
    handles = [m.register_forward_hook(note) for m in linears]
    try:
        net(x)
    finally:
        for handle in handles:
            handle.remove()
    return max(sizes)


def fuse(
    view: ModelView,
    masks: Plan | Sequence[HeadMask],
    *,
    members: Sequence[nn.Module] | None = None,
    options: FusionOptions | None = None,
) -> HydraEnsemble:
    """Fuse pruned members into one network.

    Without fine-tuning this is exact: member m's logits equal those of the model pruned with mask m.

    Args:
        view: the model all members start from.
        masks: one mask a member.
        members: fine-tuned pruned models, one a mask, as `prune_model` built them. None: no fine-tuning.
        options: see `FusionOptions`.

    Raises:
        MaskError: a mask does not fit.
        UnsupportedModel: a layer cannot be cut exactly.
    """
    plan = masks if isinstance(masks, Plan) else Plan(tuple(masks))
    for mask in plan:
        mask.check(view.shape)
    options = options or FusionOptions()
    models = list(members) if members is not None else [prune_model(view, mask, gate=True) for mask in plan]
    if len(models) != len(plan):
        raise HydraError("One fine-tuned model a mask", expected=len(plan), got=len(models))
    parts = [[model.get_submodule(path) for path in view.blocks] for model in models]
    if options.norms == "average" and members is not None:
        _average_norms(parts)
    if unchained(view.module):
        return _fuse_whole(view, plan, models, options)
    net, early, late = _skeleton(view, models, options)
    paths, groups, before = [0] * len(models), [], 1
    if early:  # embeddings differ: members part before the first block
        raise HydraError(
            "Members have different embeddings",
            expected="members that share patch and position embeddings",
            got=", ".join(early[:3]),
            hint="Freeze the embeddings when fine-tuning, or evaluate the members unfused.",
        )
    for b, path in enumerate(view.blocks):
        blocks = [p[b] for p in parts]
        split = late and b == len(view.blocks) - 1  # the tail differs: every member needs its own rows
        paths, parents, firsts = _split(paths, blocks, options.share_trunk and not split)
        set_child(net, path, Branch(fuse_blocks([blocks[m] for m in firsts], options), parents, before))
        before = len(parents)
        groups.append(before)
    net = reuse_hidden(shadow(net))  # a shadow: blocks may be the members' own
    return HydraEnsemble(view, plan, net.eval().requires_grad_(False), paths, groups, options)


def _fuse_whole(view: ModelView, plan: Plan, models: Sequence[nn.Module], options: FusionOptions) -> HydraEnsemble:
    """Members as whole models, one after another; those that are the same run once."""
    paths, _, firsts = _split([0] * len(models), models, options.share_trunk)
    net = WholeModels([models[m] for m in firsts])
    groups = [len(firsts)] * len(view.blocks)
    return HydraEnsemble(view, plan, net.eval().requires_grad_(False), paths, groups, options)


class WholeModels(nn.Module):
    """Models that share nothing but the input: (B, ...) -> (G*B, C), member-major."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(models)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([member(x) for member in self.members])


def _split(paths: Sequence[int], blocks: Sequence[nn.Module], share: bool) -> tuple[list[int], list[int], list[int]]:
    """Members that shared a stream and run the same block go on sharing it.

    Returns:
        (group of each member, parent group of each group, first member of each group).
    """
    groups: list[list[int]] = []
    for m, block in enumerate(blocks):
        for group in groups:
            first = group[0]
            if share and paths[first] == paths[m] and same_block(blocks[first], block):
                group.append(m)
                break
        else:
            groups.append([m])
    member_group = [next(g for g, group in enumerate(groups) if m in group) for m in range(len(blocks))]
    return member_group, [paths[group[0]] for group in groups], [group[0] for group in groups]


def same_block(a: nn.Module, b: nn.Module) -> bool:
    """Whether two blocks compute the same function: same heads kept, same weights."""
    return a is b or same_module([a, b])


def fuse_blocks(blocks: Sequence[nn.Module], options: FusionOptions) -> nn.Module:
    """One block over members on the batch axis: grouped attention, merged MLP, norms as they differ."""
    if len(blocks) == 1:
        return blocks[0]
    blocks = pad_heads(blocks)
    if options.merge_mlp:
        blocks = [shadow(b) for b in blocks]
        for name in mlp_names(blocks[0]):
            merged = average([b.get_submodule(name) for b in blocks])
            for block in blocks:
                set_child(block, name, merged)
    return stack(blocks)


def mlp_names(block: nn.Module) -> list[str]:
    """Children of a block that hold no attention and at least one linear: its MLPs."""
    names: list[str] = []
    if kind_of(block):  # one module holds both: its linears are not an MLP's alone
        return names
    for name, child in block.named_children():
        has_attention = any(kind_of(m) for m in child.modules())
        if not has_attention and any(isinstance(m, nn.Linear) for m in child.modules()):
            names.append(name)
    return names


def pad_heads(blocks: Sequence[nn.Module]) -> list[nn.Module]:
    """Bring members to the same number of heads where that is exact, by heads whose output is not read.

    A padded head is a copy of the member's first head with zero columns in the projection: it adds nothing.
    """
    blocks = list(blocks)
    for path, first in list(blocks[0].named_modules()):
        kind = kind_of(first)
        if kind is None or kind.slice is None or not kind.grouped:
            continue  # members that cannot be grouped run one after another, each with its own heads
        try:
            attentions = [b.get_submodule(path) if path else b for b in blocks]
        except AttributeError:
            continue
        kinds = [kind_of(a) or kind for a in attentions]
        counts = [k.heads(a)[0] for k, a in zip(kinds, attentions, strict=True)]
        if len(set(counts)) == 1:
            continue
        if len({type(a) for a in attentions}) > 1:  # some kinds cut into another class: bring all to that one
            attentions = [cut(k, a, range(n)) for k, a, n in zip(kinds, attentions, counts, strict=True)]
            kinds = [kind_of(a) or kind for a in attentions]
        padded = [pad_to(k, a, max(counts)) for k, a in zip(kinds, attentions, strict=True)]
        ready = [p for p in padded if p is not None]
        if len(ready) < len(padded):
            continue  # members of unequal size run one after another
        blocks = [shadow(b) for b in blocks]
        for block, attention in zip(blocks, ready, strict=True):
            set_child(block, path, attention)
    return blocks


def _skeleton(
    view: ModelView, models: Sequence[nn.Module], options: FusionOptions
) -> tuple[nn.Module, list[str], bool]:
    """The native model around the blocks, with a tail that serves every member.

    Returns:
        (network, names of differing modules before the blocks, whether the tail differs).
    """
    net = shadow(models[0])
    differing = _differing(view, models)
    early, late = [], False
    seen_blocks = False
    order = [name for name, _ in models[0].named_children()]
    tops = {path.split(".")[0] for path in view.blocks}
    for name in order:
        if name in tops:
            seen_blocks = True
            continue
        if name not in differing:
            continue
        if not seen_blocks:
            early.append(name)
            continue
        children = [m.get_submodule(name) for m in models]
        merged = average(children) if options.norms == "average" else stack(children)
        late = late or options.norms != "average"
        set_child(net, name, merged)
    own = [k for k, p in models[0]._parameters.items() for m in models[1:] if not _same(p, m._parameters[k])]
    return net, early + own, late


def _differing(view: ModelView, models: Sequence[nn.Module]) -> set[str]:
    names = [name for name, _ in models[0].named_children()]
    return {n for n in names if not same_module([m.get_submodule(n) for m in models])}


def _same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    from hydra_core.models.shadow import same_tensor

    return same_tensor(a, b)


def _average_norms(parts: Sequence[list[nn.Module]]) -> None:
    """Replace the members' norms in each block by their mean, in private shadows."""
    for b in range(len(parts[0])):
        blocks = [shadow(p[b]) for p in parts]
        for name, module in list(blocks[0].named_modules()):
            if isinstance(module, nn.LayerNorm):
                merged = average([block.get_submodule(name) for block in blocks])
                for block in blocks:
                    set_child(block, name, merged)
        for p, block in zip(parts, blocks, strict=True):
            p[b] = block


def load_hydra(path: str | Path, view: ModelView) -> HydraEnsemble:
    """Read what `HydraEnsemble.save` wrote.

    Args:
        view: the model it was fused from (its structure; the weights come from the file).

    Raises:
        CheckpointError: not such a file, or made from another model.
    """
    from safetensors import safe_open

    try:
        with safe_open(str(path), framework="pt") as file:
            meta = file.metadata() or {}
            state = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except Exception as error:
        raise CheckpointError("The file cannot be read as safetensors", got=type(error).__name__) from error
    if meta.get("format") != FORMAT:
        raise CheckpointError("This is not a fused ensemble", expected=FORMAT, got=repr(meta.get("format")))
    plan = Plan.from_json(meta["plan"], view.shape)
    options = FusionOptions(**json.loads(meta["options"]))
    return rebuild(view, plan, options, state)


def rebuild(view: ModelView, plan: Plan, options: FusionOptions, state: Mapping[str, torch.Tensor]) -> HydraEnsemble:
    """A fused ensemble with this structure and these weights.

    A state whose tree is that of an unfine-tuned ensemble loads directly. After fine-tuning more is
    grouped (norms, classifier, biases); those shapes are taken from the state.
    """
    hydra = fuse(view, plan, options=options)
    hydra.net = _own_copy(hydra.net)
    expected = hydra.net.state_dict()
    if expected.keys() != state.keys() or any(expected[k].shape != v.shape for k, v in state.items()):
        odd = sorted(expected.keys() ^ state.keys()) or sorted(
            k for k, v in state.items() if expected[k].shape != v.shape
        )
        raise CheckpointError(
            "The fused weights do not fit this model and plan",
            expected=f"{len(expected)} tensors as fuse() lays them out",
            got=f"differences at {', '.join(odd[:4])}",
        )
    hydra.net.load_state_dict(dict(state))
    return hydra


def _own_copy(net: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(net)


__all__ = ["FusionOptions", "HydraEnsemble", "MemberLoop", "fuse", "load_hydra"]
