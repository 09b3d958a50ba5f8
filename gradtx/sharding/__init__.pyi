# Where the numbers of a state are, and what a step sends.

from gradtx.sharding.padding import Padded as Padded
from gradtx.sharding.planning import Link as Link, StepPlan as StepPlan, plan_step as plan_step
from gradtx.sharding.sharding import (
    StateSharding as StateSharding,
    init_sharded as init_sharded,
    state_sharding as state_sharding,
)
