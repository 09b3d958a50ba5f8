"""The parts of rules: the mathematics of one array, its precision, the step."""

from gradtx.numerics.mathematics import (
    abs_sq as abs_sq,
    all_finite as all_finite,
    any_nan as any_nan,
    bounded as bounded,
    cube_root as cube_root,
    divide as divide,
    ema as ema,
    infinity as infinity,
    inverse_root as inverse_root,
    is_zero as is_zero,
    log_of as log_of,
    one_per_row as one_per_row,
    quotient_up_to as quotient_up_to,
    row_mean as row_mean,
    shrink as shrink,
    squarable as squarable,
    sum_sq as sum_sq,
)
from gradtx.numerics.norms import (
    Norm as Norm,
    in_two as in_two,
    norm as norm,
    plain_rms as plain_rms,
    ratio_factors as ratio_factors,
    rms as rms,
    root_mean_square as root_mean_square,
    shrink_factor as shrink_factor,
    shrink_factors as shrink_factors,
    shrunk as shrunk,
    signed_factor as signed_factor,
)
from gradtx.numerics.precision import (
    accumulator_dtype as accumulator_dtype,
    as_arrays as as_arrays,
    as_inexact as as_inexact,
    cast as cast,
    compute_dtype as compute_dtype,
    full as full,
    full_like as full_like,
    is_narrow as is_narrow,
    mean_dtype as mean_dtype,
    moments as moments,
    own_copy as own_copy,
    precise as precise,
    real_dtype as real_dtype,
    scalar_dtype as scalar_dtype,
    signed as signed,
    widen as widen,
    zero_mean as zero_mean,
    zeros_like as zeros_like,
)
from gradtx.numerics.root import (
    root as root,
    root_plus as root_plus,
)
from gradtx.numerics.rounding import (
    round_to as round_to,
    unit as unit,
)
from gradtx.numerics.step import (
    Step as Step,
    debias as debias,
    epsilon_hat as epsilon_hat,
    increment as increment,
    nesterov_mean as nesterov_mean,
    safe_increment as safe_increment,
    safe_int32_increment as safe_int32_increment,
)
