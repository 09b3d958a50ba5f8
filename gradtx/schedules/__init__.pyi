# The schedules, and the public names of optax.schedules.

from gradtx.schedules.cyclic import (
    cosine_restarts_schedule as cosine_restarts_schedule,
    cyclic_schedule as cyclic_schedule,
)
from gradtx.schedules.decay import (
    constant_schedule as constant_schedule,
    cosine_decay_schedule as cosine_decay_schedule,
    exponential_decay as exponential_decay,
    inverse_time_decay as inverse_time_decay,
    linear_schedule as linear_schedule,
    polynomial_schedule as polynomial_schedule,
    power_cooldown_schedule as power_cooldown_schedule,
    relative_step_schedule as relative_step_schedule,
)
from gradtx.schedules.half_life import half_life_schedule as half_life_schedule
from gradtx.schedules.piecewise import (
    cosine_onecycle_schedule as cosine_onecycle_schedule,
    join_schedules as join_schedules,
    linear_onecycle_schedule as linear_onecycle_schedule,
    piecewise_constant_schedule as piecewise_constant_schedule,
    piecewise_interpolate_schedule as piecewise_interpolate_schedule,
    sgdr_schedule as sgdr_schedule,
    warmup_constant_schedule as warmup_constant_schedule,
    warmup_cosine_decay_schedule as warmup_cosine_decay_schedule,
    warmup_exponential_decay_schedule as warmup_exponential_decay_schedule,
    wsd_schedule as wsd_schedule,
)
from gradtx.schedules.products import (
    multiplicative_schedule as multiplicative_schedule,
    multiply_schedules as multiply_schedules,
    stretch_schedule as stretch_schedule,
)
from gradtx.types import Schedule as Schedule, StatefulSchedule as StatefulSchedule
from gradtx.wrappers.inject import (
    InjectHyperparamsState as InjectHyperparamsState,
    InjectStatefulHyperparamsState as InjectStatefulHyperparamsState,
    WrappedSchedule as WrappedSchedule,
    inject_hyperparams as inject_hyperparams,
    inject_stateful_hyperparams as inject_stateful_hyperparams,
)
