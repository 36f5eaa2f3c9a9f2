"""`slipstream train fit`: the training itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from slipstream.cli.options import ConfigOption, ModelOption, SetOption, load
from slipstream.cli.training import CacheOption, DataOption, TapsOption, open_target

FamilyOption = Annotated[
    str | None,
    typer.Option(
        "--family",
        "--objective",
        help="Kind of drafter: dspark, eagle3, mtp, dflash or dflash2. Not given: dspark. This and "
        "the sizes below are those of --start-from where they are not given.",
    ),
]
LayersOption = Annotated[
    int | None, typer.Option(min=1, help="Not given: 2, or 1 for eagle3 and mtp.")
]
VocabOption = Annotated[
    int | None, typer.Option(min=1, help="Tokens that the drafter knows. Not given: 8192.")
]
WidthOption = Annotated[
    int | None, typer.Option(min=1, help="Width of its MLP; not given: the target's.")
]
RankOption = Annotated[
    int | None, typer.Option(min=0, help="Of dspark; 0 is without. Not given: 128.")
]
LengthOption = Annotated[
    int | None,
    typer.Option(min=1, max=31, help="Drafts that are trained. Not given: 5, for mtp 3."),
]
EpochsOption = Annotated[float, typer.Option(min=0.001, help="How often each answer is read.")]
RepeatOption = Annotated[
    float,
    typer.Option(
        min=0.001,
        help="How often drafts start in text that repeats itself, beside other text: 1 for a "
        "drafter that works alone.",
    ),
]
StepsOption = Annotated[int | None, typer.Option(min=1, help="Steps instead of --epochs.")]
RateOption = Annotated[
    float | None,
    typer.Option("--learning-rate", min=1e-7, help="Highest; not given: 8e-3, for adamw 1e-3."),
]
HeadOption = Annotated[
    bool | None,
    typer.Option(
        "--train-head/--freeze-head",
        show_default=False,
        help="Let the head move away from the target's rows. Not given: it does.",
    ),
]
StartOption = Annotated[
    str | None,
    typer.Option(
        help="Net with whose weights it starts, as large or smaller: a run, a drafter's folder, "
        ".gguf file or hub id, or the name of a shipped one, such as dspark."
    ),
]
LossOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PART=SCALE",
        help="Scale of a part of the loss, instead of the family's: label, soft, distance, "
        "shared, confidence, selector; or depth_decay. Repeatable.",
    ),
]


def fit(
    *,
    data: DataOption,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the run.")],
    cache: CacheOption = None,
    start_from: StartOption = None,
    family: FamilyOption = None,
    layers: LayersOption = None,
    taps: TapsOption = None,
    draft_len: LengthOption = None,
    draft_vocab: VocabOption = None,
    intermediate: WidthOption = None,
    markov_rank: RankOption = None,
    mask_token: Annotated[
        int | None, typer.Option(min=0, help="Not given: the lowest that the data never uses.")
    ] = None,
    train_head: HeadOption = None,
    loss: LossOption = None,
    epochs: EpochsOption = 4.0,
    steps: StepsOption = None,
    learning_rate: RateOption = None,
    pack_len: Annotated[int, typer.Option(min=16, help="Tokens of a packed sequence.")] = 512,
    step_packs: Annotated[int, typer.Option(min=1, help="Packs of a step.")] = 8,
    pass_packs: Annotated[int, typer.Option(min=1, help="Packs of a pass.")] = 8,
    anchors: Annotated[int, typer.Option(min=1, help="Drafts that start in a pack.")] = 120,
    repeat_weight: RepeatOption = 0.15,
    optimiser: Annotated[str, typer.Option(help="Of matrices: muon or adamw.")] = "muon",
    dtype: Annotated[str, typer.Option(help="Of products: bfloat16 or float32.")] = "bfloat16",
    recompute: Annotated[bool, typer.Option("--recompute", help="Less memory, slower.")] = False,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps.")] = 100,
    held_out_packs: Annotated[int, typer.Option(min=0, help="Measured now and then.")] = 16,
    seed: Annotated[int, typer.Option(min=0)] = 1,
    model: ModelOption = None,
    config: ConfigOption = None,
    settings: SetOption = None,
) -> None:
    """Train a drafter; the same command goes on where it was interrupted, to the same result.

    With torchrun before it, the processes share each step's packs.
    """
    from slipstream.cli.train_run import run_fit
    from slipstream.cli.train_settings import FitOptions, NetOptions, RunFiles

    sizes = (layers, draft_len, draft_vocab, intermediate, markov_rank)
    options = FitOptions(
        RunFiles(data, out, cache, start_from),
        NetOptions(family, taps, mask_token, train_head, *sizes),
        *(epochs, steps, learning_rate, tuple(loss or ())),
        course={
            "pack_len": pack_len,
            "step_packs": step_packs,
            "pass_packs": pass_packs,
            "num_anchors": anchors,
            "repeat_weight": repeat_weight,
            "optimiser": optimiser,
            "dtype": dtype,
            "recomputes": recompute,
            "seed": seed,
        },
        checkpoint_every=checkpoint_every,
        num_held_out=held_out_packs,
    )
    effective = load(config, settings, {"model.source": model})
    run_fit(open_target(effective), effective.model, options)
