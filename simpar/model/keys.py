"""Types of keys that layers share: names, what they read, how they are split."""

from typing import Annotated

from pydantic import AliasChoices, Field

# The limits keep every size of a tensor below 2⁶² bytes, so that no count overflows.
Name = Annotated[str, Field(max_length=40, pattern='^[A-Za-z0-9_-]*$')]
Of = Annotated[
    Name,
    Field(examples=['norm1'], description='the layer that it reads, or x, the input; the one before it unless given'),
]
Pair = Annotated[
    tuple[Annotated[str, Field(max_length=40, pattern='^[A-Za-z0-9_-]+$')], ...],
    Field(min_length=2, max_length=2, examples=[['x', 'proj']], description='the two layers that it reads, or x'),
]
Width = Annotated[int, Field(ge=1, le=2**24)]
Size = Annotated[int, Field(ge=1, le=2**20)]
Deviation = Annotated[
    float,
    Field(
        ge=0,
        le=1e6,
        # The name before: files that have it are read as before.
        validation_alias=AliasChoices('init_std', 'weight_deviation'),
        json_schema_extra={'x-former': 'weight_deviation'},
        description='standard deviation of the normal initial weights; biases start at zero',
    ),
]
SplitCounts = tuple[Annotated[int, Field(ge=1, le=2**20)], ...]
"""Into how many slices each dim of a tensor is split."""
Strategy = tuple[SplitCounts, ...]
"""Into how many slices each dim of each input of an operator is split."""
Aliases = tuple[
    Annotated[
        str, Field(max_length=400, pattern=r'^[A-Za-z0-9_]+(\+[A-Za-z0-9_]+)*$', examples=['dp', 'dp+sp', 'none'])
    ],
    ...,
]
"""For each dim of a tensor the axes of plan.device_matrix that split it, the outermost first, or none."""
Layouts = Annotated[
    tuple[Aliases, ...],
    Field(
        max_length=3,
        examples=[[['dp', 'mp'], ['mp', 'none']]],
        description='in place of strategy: for each dim the axes of device_matrix that split it, joined by +, or none',
    ),
]
