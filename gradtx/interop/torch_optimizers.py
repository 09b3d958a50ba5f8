"""Each of PyTorch's optimizers as a transformation, with PyTorch's own formulas."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from gradtx.composition.chain import chain, identity
from gradtx.composition.matrices import MuonDimensionNumbers
from gradtx.core.pair import GradientTransformation
from gradtx.interop.reading import Options, finite, multiplied
from gradtx.optimizers.adadelta import adadelta
from gradtx.optimizers.adafactor import scale_by_factored_rms
from gradtx.optimizers.adagrad import adagrad
from gradtx.optimizers.adam import adam, scale_by_adam
from gradtx.optimizers.adamax import adamax
from gradtx.optimizers.amsgrad import scale_by_amsgrad
from gradtx.optimizers.asgd import asgd
from gradtx.optimizers.muon import scale_by_shape
from gradtx.optimizers.nadam import scale_by_nadam
from gradtx.optimizers.orthogonalize import orthogonalize
from gradtx.optimizers.radam import scale_by_radam
from gradtx.optimizers.rmsprop import scale_by_rms, scale_by_stddev
from gradtx.optimizers.rprop import rprop
from gradtx.optimizers.sgd import sgd
from gradtx.schedules.decay import relative_step_schedule
from gradtx.transforms.clipping import clip_by_block_rms
from gradtx.transforms.decay import add_decayed_weights
from gradtx.transforms.momentum import trace
from gradtx.transforms.scaling import scale, scale_by_learning_rate
from gradtx.transforms.trust import scale_by_param_block_rms


class TorchCore(NamedTuple):
    """The transformation that stands for a class of PyTorch, and how to convert its state.

    tx: turns gradients, after weight decay, into updates; slots: our names by theirs, and how to
    convert them; scalars: likewise for numbers; momentum: the argument of `tx` that a scheduler
    cycles.
    """

    tx: GradientTransformation
    slots: Mapping[str, Any]
    scalars: Mapping[str, str] = {}
    momentum: str | None = None


def _sgd(o: Options, rate: Any) -> TorchCore:
    momentum, dampening = o.number("momentum"), o.number("dampening")
    nesterov = o.flag("nesterov")
    tx = sgd(rate, momentum or None, nesterov and momentum != 0, dampening=dampening or None)
    return TorchCore(tx, {"momentum_buffer": "trace"}, momentum="momentum")


def _decoupled(o: Options, rate: Any, *links: GradientTransformation) -> GradientTransformation:
    return chain(
        *links, add_decayed_weights(o.number("weight_decay")), scale_by_learning_rate(rate)
    )


def _adam(o: Options, rate: Any, decoupled: bool = False) -> TorchCore:
    (b1, b2), eps = o.pair("betas"), o.number("eps")
    slots = {"exp_avg": "mu", "exp_avg_sq": "nu", "max_exp_avg_sq": "nu_max"}
    if o.flag("amsgrad"):
        by = scale_by_amsgrad(b1, b2, eps, max_before_correction=True)
    else:
        by = scale_by_adam(b1, b2, eps)
    if o.flag("decoupled_weight_decay", False) or decoupled:
        return TorchCore(_decoupled(o, rate, by), slots, momentum="b1")
    return TorchCore(chain(by, scale_by_learning_rate(rate)), slots, momentum="b1")


def _adamw(o: Options, rate: Any) -> TorchCore:
    return _adam(o, rate, decoupled=True)


def _sparse_adam(o: Options, rate: Any) -> TorchCore:
    (b1, b2), eps = o.pair("betas"), o.number("eps")
    return TorchCore(
        adam(rate, b1, b2, eps, epsilon_hat=True), {"exp_avg": "mu", "exp_avg_sq": "nu"}
    )


def _adagrad(o: Options, rate: Any) -> TorchCore:
    tx = adagrad(
        rate,
        o.number("initial_accumulator_value"),
        o.number("eps"),
        lr_decay=o.number("lr_decay"),
        eps_in_sqrt=False,
    )
    return TorchCore(tx, {"sum": "sum_of_squares"})


def _rmsprop(o: Options, rate: Any) -> TorchCore:
    momentum = o.number("momentum")
    by = scale_by_stddev if o.flag("centered") else scale_by_rms
    links = by(o.number("alpha"), o.number("eps"), 0.0, False), scale_by_learning_rate(rate)
    tx = chain(links[0], trace(momentum), links[1]) if momentum > 0 else chain(*links)
    slots = {"square_avg": "nu", "grad_avg": "mu", "momentum_buffer": "trace"}
    return TorchCore(tx, slots, momentum="1.decay" if momentum > 0 else None)


def _adadelta(o: Options, rate: Any) -> TorchCore:
    tx = adadelta(rate, o.number("rho"), o.number("eps"))
    return TorchCore(tx, {"square_avg": "e_g", "acc_delta": "e_x"})


def _adamax(o: Options, rate: Any) -> TorchCore:
    (b1, b2), eps = o.pair("betas"), o.number("eps")
    return TorchCore(adamax(rate, b1, b2, eps), {"exp_avg": "mu", "exp_inf": "nu"}, momentum="b1")


def _nadam(o: Options, rate: Any) -> TorchCore:
    (b1, b2), eps = o.pair("betas"), o.number("eps")
    by = scale_by_nadam(b1, b2, eps, momentum_decay=o.number("momentum_decay"))
    return TorchCore(
        _either(o, rate, by),
        {"exp_avg": "mu", "exp_avg_sq": "nu"},
        {"mu_product": "momentum_product"},
        momentum="b1",
    )


def _radam(o: Options, rate: Any) -> TorchCore:
    (b1, b2), eps = o.pair("betas"), o.number("eps")
    by = scale_by_radam(b1, b2, eps, epsilon_hat=True)
    return TorchCore(_either(o, rate, by), {"exp_avg": "mu", "exp_avg_sq": "nu"}, momentum="b1")


def _either(o: Options, rate: Any, by: GradientTransformation) -> GradientTransformation:
    if o.flag("decoupled_weight_decay"):
        return _decoupled(o, rate, by)
    return chain(by, scale_by_learning_rate(rate))


def _asgd(o: Options, rate: Any) -> TorchCore:
    tx = asgd(rate, o.number("lambd"), o.number("alpha"), o.number("t0"), o.number("weight_decay"))
    return TorchCore(tx, {"ax": "ax"})


def _rprop(o: Options, rate: Any) -> TorchCore:
    (minus, plus), (least, largest) = o.pair("etas"), o.pair("step_sizes")
    first = min(max(rate, least), largest)  # PyTorch bounds the first step size too
    tx = rprop(first, minus, plus, least, largest)
    return TorchCore(tx, {"prev": "prev_updates", "step_size": "step_sizes"})


def _adafactor(o: Options, rate: Any) -> TorchCore:
    eps = o.take("eps")
    if not isinstance(eps, list | tuple) or len(eps) != 2:
        raise TypeError(f"{o.where}: eps must be a pair, not {eps!r:.80}")
    smallest = finite(f"{o.where}: eps", eps[0])
    decay = o.number("weight_decay")
    tx = chain(
        scale_by_factored_rms(
            decay_rate=-o.number("beta2_decay"),
            min_dim_size_to_factor=0,
            epsilon=0.0,
            factor_last_dims=True,
            torch_eps=smallest,
        ),
        clip_by_block_rms(o.number("d")),
        scale_by_param_block_rms(finite(f"{o.where}: eps", eps[1])),
        scale_by_learning_rate(relative_step_schedule(rate), flip_sign=False),
        add_decayed_weights(multiplied(rate, decay)) if decay else identity(),
        scale(-1.0),
    )
    rows, columns = (("v_row", lambda x: x[..., 0]), ("v_col", lambda x: x[..., 0, :]))
    return TorchCore(tx, {"row_var": rows, "col_var": columns, "variance": "v"})


def _muon(o: Options, rate: Any) -> TorchCore:
    momentum, nesterov = o.number("momentum"), o.flag("nesterov")
    coefficients = o.take("ns_coefficients")
    if not isinstance(coefficients, list | tuple):
        raise TypeError(f"{o.where}: ns_coefficients must be three numbers, not {coefficients!r}")
    adjust = o.take("adjust_lr_fn")
    if not isinstance(adjust, str | None) or adjust not in (None, "original", "match_rms_adamw"):
        raise ValueError(f"{o.where}: adjust_lr_fn must be 'original' or 'match_rms_adamw'")
    # A weight of PyTorch has its outputs first.
    numbers = MuonDimensionNumbers(reduction_axis=1, output_axis=0)
    where = f"{o.where}: ns_coefficients"
    by = chain(
        trace(momentum, nesterov),
        orthogonalize(
            tuple(finite(where, c) for c in coefficients),
            o.integer("ns_steps"),
            o.number("eps"),
            weight_dimension_numbers=numbers,
        ),
        scale_by_shape(0.2 if adjust == "match_rms_adamw" else None, numbers),
    )
    # Its momentum is a mean, ours a sum; the iteration does not see the difference.
    sum_of_mean = ("trace", lambda x: x / (1 - momentum))
    return TorchCore(_decoupled(o, rate, by), {"momentum_buffer": sum_of_mean})


CORES: dict[str, Callable[[Options, Any], TorchCore]] = {
    "ASGD": _asgd,
    "Adadelta": _adadelta,
    "Adafactor": _adafactor,
    "Adagrad": _adagrad,
    "Adam": _adam,
    "AdamW": _adamw,
    "Adamax": _adamax,
    "Muon": _muon,
    "NAdam": _nadam,
    "RAdam": _radam,
    "RMSprop": _rmsprop,
    "Rprop": _rprop,
    "SGD": _sgd,
    "SparseAdam": _sparse_adam,
}
