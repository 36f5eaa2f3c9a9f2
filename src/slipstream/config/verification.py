"""Setting `speculation.verification`: how drafts are checked.

A tagged union: `kind` chooses the class, and a bare name such as `rejection` is short for
`{kind: rejection}`.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from slipstream.config.section import Section, tagged


class ExactConfig(Section):
    """Keeps what the target's sampler says: the tokens of a seed are those without drafts."""

    kind: Literal["exact"] = Field(default="exact", description="Which verification this is.")


class RejectionConfig(Section):
    """Keeps drafts by the ratio of target and draft probabilities. The distribution of answers is
    the target's, the tokens of a seed are not those without drafts; greedy answers are. Requests
    with a temperature are drafted as chains."""

    kind: Literal["rejection"] = Field(
        default="rejection", description="Which verification this is."
    )
    rule: Literal["block", "chain"] = Field(
        default="block",
        description="Whether the whole draft is judged at once, which keeps more of it on average, "
        "or each token by itself.",
    )


VerificationConfig = Annotated[
    Annotated[ExactConfig | RejectionConfig, Field(discriminator="kind")], BeforeValidator(tagged)
]
