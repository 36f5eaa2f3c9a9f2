"""Draft nets: what they compute does not depend on how it is cut, and it can be trained."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from slipstream.models.drafts.dflash import BlockNet
from slipstream.models.drafts.eagle3 import Eagle3Net
from slipstream.models.drafts.initial import initial_parameters
from slipstream.models.drafts.load import AnyDraftNet, net_class_of
from slipstream.models.drafts.parts import Context, LayerKv, empty_context, gated_mlp
from tests.support.drafts import CONFIGS, HIDDEN_SIZE, VOCAB_SIZE, tiny_ends, tiny_hparams, tiny_net

CONTEXT_LEN = 11
BLOCK_FAMILIES = ("dflash", "dflash2", "dspark")
CAUSAL_BLOCK = torch.ones(CONTEXT_LEN, CONTEXT_LEN, dtype=torch.bool).tril()


def random(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def block_net(family: str, **changes: Any) -> BlockNet[Any]:  # Any: JSON values
    net = tiny_net(family, changes)
    assert isinstance(net, BlockNet)
    return net


def eagle_net() -> Eagle3Net:
    net = tiny_net("eagle3")
    assert isinstance(net, Eagle3Net)
    return net


def context_of(net: BlockNet[Any], length: int, blocks: int = 1) -> Context:
    taps = random(1, length, 3 * HIDDEN_SIZE)
    positions = torch.arange(length).unsqueeze(0)
    layers = net.context_kv(net.context_features(taps), positions)
    return Context(layers, positions, torch.ones(1, blocks, length, dtype=torch.bool))


def run_block(net: BlockNet[Any], anchor: int, context: Context, start: int) -> Tensor:
    num_rows = net.hparams.draft_block_len
    tokens = net.block_tokens(torch.tensor([[anchor]]), num_rows)
    return net.block_hidden(tokens, (start + torch.arange(num_rows)).view(1, 1, -1), context)


def rows_of(layers: list[LayerKv], length: int) -> list[LayerKv]:
    return [LayerKv(layer.keys[:, :length], layer.values[:, :length]) for layer in layers]


@pytest.mark.parametrize("family", BLOCK_FAMILIES)
def test_blocks_of_one_training_pass_equal_blocks_drafted_one_by_one(family: str) -> None:
    net = block_net(family)
    starts, anchors = [4, 7, 11], [5, 9, 13]
    context = context_of(net, CONTEXT_LEN, blocks=3)
    sees = context.positions[:, None] < torch.tensor(starts).view(1, 3, 1)
    num_rows = net.hparams.draft_block_len
    positions = torch.tensor(starts).view(1, 3, 1) + torch.arange(num_rows)

    together = net.block_hidden(
        net.block_tokens(torch.tensor([anchors]), num_rows),
        positions,
        Context(context.layers, context.positions, sees),
    )

    for index, (start, anchor) in enumerate(zip(starts, anchors, strict=True)):
        alone = Context(
            rows_of(list(context.layers), start),
            context.positions[:, :start],
            torch.ones(1, 1, start, dtype=torch.bool),
        )
        expected = run_block(net, anchor, alone, start)
        torch.testing.assert_close(together[:, index], expected[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", BLOCK_FAMILIES)
def test_a_shorter_block_is_a_block_of_its_own(family: str) -> None:
    net = block_net(family, is_causal=True)
    context = context_of(net, CONTEXT_LEN)
    whole = run_block(net, 5, context, CONTEXT_LEN)
    tokens = net.block_tokens(torch.tensor([[5]]), 3)
    positions = (CONTEXT_LEN + torch.arange(3)).view(1, 1, -1)

    part = net.block_hidden(tokens, positions, context)

    torch.testing.assert_close(part, whole[:, :, :3], rtol=1e-4, atol=1e-5)


def test_a_sliding_layer_does_not_see_what_lies_a_window_back() -> None:
    net = block_net("dflash", use_swa=True, swa_window_size=6)
    context = context_of(net, CONTEXT_LEN)
    far = [
        LayerKv(
            torch.cat((layer.keys[:, :2] + 9.0, layer.keys[:, 2:]), 1),
            torch.cat((layer.values[:, :2] - 9.0, layer.values[:, 2:]), 1),
        )
        for layer in context.layers
    ]

    before = run_block(net, 5, context, CONTEXT_LEN)
    after = run_block(net, 5, Context(far, context.positions, context.is_visible), CONTEXT_LEN)

    assert torch.equal(before, after)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("silu", functional.silu),
        ("gelu_pytorch_tanh", partial(functional.gelu, approximate="tanh")),
    ],
)
@pytest.mark.parametrize("family", ["eagle3", "dflash"])
def test_the_mlp_has_the_activation_that_the_configuration_names(
    family: str, name: str, function: Callable[[Tensor], Tensor]
) -> None:
    net = tiny_net(family, {"hidden_act": name})
    x = random(3, HIDDEN_SIZE)
    gate, up, down = (
        net.parameters[f"layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up", "down")
    )

    mixed = gated_mlp(net.products, "layers.0", x, net.hparams.body.activation)

    torch.testing.assert_close(mixed, (function(x @ gate.T) * (x @ up.T)) @ down.T)
    other = tiny_net(family, {"hidden_act": "silu"})
    assert torch.equal(output_of(net), output_of(other)) == (name == "silu")


def output_of(net: AnyDraftNet) -> Tensor:
    """States of a few rows behind the final norm."""
    if isinstance(net, BlockNet):
        return run_block(net, 5, context_of(net, CONTEXT_LEN), CONTEXT_LEN)
    assert isinstance(net, Eagle3Net)
    tokens = positions = torch.arange(CONTEXT_LEN).view(1, 1, -1)
    hidden = net.fuse(random(1, 1, CONTEXT_LEN, 3 * HIDDEN_SIZE))
    nothing = empty_context(net.hparams.body, 1, 1)
    return net.extend(tokens, hidden, positions, nothing, (), CAUSAL_BLOCK).normed


def test_dflash_2_starts_as_the_dflash_inside_it() -> None:
    hparams = tiny_hparams(CONFIGS["dflash2"])
    parameters = initial_parameters(hparams, torch.Generator().manual_seed(0))
    dflash2 = block_net_of(net_class_of(hparams)(hparams, parameters, tiny_ends()))
    inner = {
        name: tensor
        for name, tensor in parameters.items()
        if "conv" not in name and "selector" not in name
    }
    dflash = tiny_net("dflash", parameters=inner)
    assert isinstance(dflash, BlockNet)
    context = context_of(dflash, CONTEXT_LEN)

    hidden = run_block(dflash2, 5, context, CONTEXT_LEN)

    torch.testing.assert_close(hidden, run_block(dflash, 5, context, CONTEXT_LEN))
    logits = dflash2.logits(hidden)
    choices = dflash2.choices(hidden, logits, torch.full(hidden.shape[:-1], 5))
    assert torch.equal(choices.token_ids[..., 0], logits.argmax(-1))
    torch.testing.assert_close(choices.logits, logits.topk(choices.logits.shape[-1]).values)


def block_net_of(net: AnyDraftNet) -> BlockNet[Any]:
    assert isinstance(net, BlockNet)
    return net


@pytest.mark.parametrize("kind", ["vanilla", "gated", "rnn"])
def test_a_markov_head_without_weights_changes_no_logit(kind: str) -> None:
    config = CONFIGS["dspark"] | {"markov_head_type": kind}
    hparams = tiny_hparams(config)
    parameters = initial_parameters(hparams, torch.Generator().manual_seed(0))
    net = block_net_of(net_class_of(hparams)(hparams, parameters, tiny_ends()))
    hidden = random(2, HIDDEN_SIZE)
    logits = net.logits(hidden)

    choices = net.choices(hidden, logits, torch.tensor([4, 5]))

    torch.testing.assert_close(choices.logits, logits)
    assert choices.token_ids.shape == logits.shape


def test_the_recurrent_markov_head_remembers_its_path() -> None:
    net = block_net("dspark", markov_head_type="rnn")
    hidden = random(1, HIDDEN_SIZE)
    logits = net.logits(hidden)
    previous = torch.tensor([7])

    def second(first_token: int) -> Tensor:
        first = net.choices(hidden, logits, torch.tensor([first_token]))
        return net.choices(hidden, logits, previous, first.state).logits

    assert not torch.allclose(second(4), second(5))


def test_confidence_does_not_depend_on_later_tokens() -> None:
    net = block_net("dspark")
    hidden = random(3, HIDDEN_SIZE)
    logits = net.confidence_logits(hidden, torch.tensor([4, 5, 6]))
    changed = net.confidence_logits(hidden, torch.tensor([4, 5, 7]))
    assert logits is not None
    assert changed is not None
    assert torch.equal(logits[:2], changed[:2])
    assert not torch.equal(logits[2], changed[2])


def test_eagle_rows_in_parts_equal_rows_at_once() -> None:
    net = eagle_net()
    tokens = torch.arange(CONTEXT_LEN).view(1, 1, -1) + 20
    hidden = net.fuse(random(1, 1, CONTEXT_LEN, 3 * HIDDEN_SIZE))
    positions = torch.arange(CONTEXT_LEN).view(1, 1, -1)
    nothing = empty_context(net.hparams.body, 1, 1)
    whole = net.extend(tokens, hidden, positions, nothing, (), CAUSAL_BLOCK)
    first = 6
    stored = [
        LayerKv(layer.keys[:, 0, :first], layer.values[:, 0, :first]) for layer in whole.layers
    ]
    context = Context(stored, positions[0, :, :first], torch.ones(1, 1, first, dtype=torch.bool))

    rest = CONTEXT_LEN - first
    part = net.extend(
        tokens[..., first:],
        hidden[:, :, first:],
        positions[..., first:],
        context,
        (),
        CAUSAL_BLOCK[:rest, :rest],
    )

    torch.testing.assert_close(part.hidden, whole.hidden[:, :, first:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(part.normed, whole.normed[:, :, first:], rtol=1e-4, atol=1e-5)


def test_a_training_step_over_all_positions_equals_a_served_chain() -> None:
    """Step 1 of training: every position is a block of one row that reads its own step 0."""
    net = eagle_net()
    tokens = torch.arange(CONTEXT_LEN + 1).view(1, 1, -1) + 20
    hidden = net.fuse(random(1, 1, CONTEXT_LEN, 3 * HIDDEN_SIZE))
    positions = torch.arange(CONTEXT_LEN).view(1, 1, -1)
    nothing = empty_context(net.hparams.body, 1, 1)
    step0 = net.extend(tokens[..., :-1], hidden, positions, nothing, (), CAUSAL_BLOCK)
    stored = [LayerKv(layer.keys[:, 0], layer.values[:, 0]) for layer in step0.layers]
    by_position = (1, CONTEXT_LEN, 1)

    step1 = net.extend(
        tokens[..., 1:].view(by_position),
        step0.hidden.view(*by_position, -1),
        positions.view(by_position) + 1,
        Context(stored, positions[0], CAUSAL_BLOCK.unsqueeze(0)),
        (),
        torch.ones(1, 1, dtype=torch.bool),
    )

    for row in (0, 4, CONTEXT_LEN - 1):
        seen = [LayerKv(layer.keys[:, : row + 1], layer.values[:, : row + 1]) for layer in stored]
        context = Context(
            seen, positions[0, :, : row + 1], torch.ones(1, 1, row + 1, dtype=torch.bool)
        )
        served = net.extend(
            tokens[..., row + 1 : row + 2],
            step0.hidden[:, :, row : row + 1],
            positions[..., row : row + 1] + 1,
            context,
            (),
            torch.ones(1, 1, dtype=torch.bool),
        )
        torch.testing.assert_close(step1.hidden[:, row], served.hidden[:, 0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", BLOCK_FAMILIES)
def test_every_parameter_of_a_block_net_gets_a_gradient(family: str) -> None:
    net = block_net(family)
    parameters = {name: tensor.requires_grad_() for name, tensor in net.parameters.items()}
    hidden = run_block(net, 5, context_of(net, CONTEXT_LEN), CONTEXT_LEN)
    rows = net.draft_rows(hidden)
    logits = net.logits(rows)
    previous = torch.arange(logits.shape[2]).view(1, 1, -1)
    loss = net.choices(rows, logits, previous).logits.square().mean()
    confidence = net.confidence_logits(rows, previous)
    if confidence is not None:
        loss = loss + confidence.square().mean()

    loss.backward()  # type: ignore[no-untyped-call]  # torch does not annotate it

    missing = [name for name, tensor in parameters.items() if tensor.grad is None]
    assert not missing
    assert all(
        tensor.grad.abs().sum() > 0.0 for tensor in parameters.values() if tensor.grad is not None
    )


def test_every_parameter_of_an_eagle_net_gets_a_gradient() -> None:
    net = eagle_net()
    parameters = {name: tensor.requires_grad_() for name, tensor in net.parameters.items()}
    rows = net.extend(
        torch.arange(CONTEXT_LEN).view(1, 1, -1),
        net.fuse(random(1, 1, CONTEXT_LEN, 3 * HIDDEN_SIZE)),
        torch.arange(CONTEXT_LEN).view(1, 1, -1),
        empty_context(net.hparams.body, 1, 1),
        (),
        CAUSAL_BLOCK,
    )

    net.head(rows.normed).square().mean().backward()  # type: ignore[no-untyped-call]  # as above

    assert not [name for name, tensor in parameters.items() if tensor.grad is None]


def test_a_reduced_vocabulary_names_target_tokens() -> None:
    net = eagle_net()
    token_ids = net.target_token_ids()
    assert len(token_ids) == 96
    assert int(token_ids.max()) < VOCAB_SIZE
    assert net.head(random(1, HIDDEN_SIZE)).shape == (1, 96)
