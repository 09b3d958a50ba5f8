"""What each optimizer keeps, counted as in its paper: numbers for one matrix, by `describe`."""

import jax
import jax.numpy as jnp
import pytest

import gradtx
from tests.catalogue import CATALOGUE, optimizers

ROWS, COLUMNS = 512, 256
MATRIX = ROWS * COLUMNS
SIDES = ROWS + COLUMNS
SQUARES = ROWS**2 + COLUMNS**2
RANK, PAIRS = 1, 3  # of galore, apollo and fira, and of lbfgs, in the catalogue

# float32 numbers kept for a matrix of ROWS x COLUMNS; scalars such as counters not included.
KEPT = {
    0: "sign_sgd fromage noisy_sgd polyak_sgd proximal_gradient_descent",
    MATRIX: "sgd adagrad proximal_adagrad lion lars asgd tiger signum muon momo "
    "optimistic_gradient_descent dog dowg schedule_free_sgd polargrad scion "
    "dion2",
    2 * MATRIX: "adam adamw rmsprop lamb stable_adamw ftrl laprop qhadam adabound adabelief adamax "
    "adamaxw nadam nadamw radam yogi acprop adopt simplified_ademamix adadelta rprop momo_adam "
    "sophia mars_lion adagrad_da schedule_free_adamw adamuon",
    3 * MATRIX: "amsgrad ademamix madgrad diffgrad optimistic_adam optimistic_adam_v2 mars_adamw "
    "dadapt_adamw",
    4 * MATRIX: "adan prodigy",
    5 * MATRIX: "cocob",
    ROWS: "rowwise_adagrad",  # a sum for each row
    MATRIX
    + ROWS: "rowwise_adam adagrad_decay",  # a second moment, or a number of decays, for each row
    MATRIX + 1: "novograd",  # a second moment for each layer
    MATRIX + COLUMNS: "adam_mini dion3 normuon",  # a second moment for each output
    MATRIX + 4 * COLUMNS: "muown",  # the size of each output, its moments, its direction's length
    MATRIX + SIDES: "sm3",  # a momentum, and a maximum for each row and column
    MATRIX + SIDES + 1: "adafactor",  # with the catalogue's momentum; the 1 is what is not factored
    MATRIX + 2 * SIDES + 1: "came",  # the momentum, its second moment and its instability
    2 * MATRIX
    + 2 * SQUARES: "soap soap_muon shampoo "  # Adam's moments; Gram matrices, and bases or roots
    "splus",  # a momentum and an average of the parameters; the same
    2 * MATRIX + 2 * SQUARES + SIDES: "kl_soap",  # eigenvalues too
    2 * MATRIX + COLUMNS**2: "conda",  # Adam's moments, and a basis of the shorter side
    MATRIX + SQUARES: "kron",  # a momentum, and a triangular factor for each side
    MATRIX + 2 * SQUARES + SIDES: "kl_shampoo",  # and no second moment of entries
    (2 * PAIRS + 3) * MATRIX: "lbfgs",  # differences, the last point and gradient, and the next
    2 * RANK * ROWS + 1: "apollo",  # moments of the projection, and a norm
    RANK * (2 * ROWS + COLUMNS) + 1: "fira",  # and the projector
    RANK * (2 * COLUMNS + ROWS): "galore",  # moments of the projection, and the projector
}
COUNTS = {name: count for count, names in KEPT.items() for name in names.split()}


def kept(tx, dtype=jnp.float32):
    p = {"w": jax.ShapeDtypeStruct((ROWS, COLUMNS), dtype)}
    return gradtx.describe(tx, p)


def test_every_optimizer_is_counted():
    assert sorted(COUNTS) == optimizers()


@pytest.mark.parametrize("name", COUNTS)
def test_state_is_what_the_algorithm_keeps(name):
    found = kept(CATALOGUE[name].make())
    assert found.slot_bytes == 4 * COUNTS[name]
    assert found.other_bytes <= 64  # counters, scalar estimates, a few coefficients


@pytest.mark.parametrize(
    ("tx", "numbers"),
    [
        (gradtx.adafactor(1e-3), SIDES + 1),
        (gradtx.scale_by_factored_rms(), SIDES + 1),
    ],
)
def test_sublinear_second_moments(tx, numbers):
    assert kept(tx).slot_bytes == 4 * numbers


def test_low_precision_parameters():
    """Momenta in the parameters' type, sums of squares in float32."""
    found = {slot.name: slot.bytes / MATRIX for slot in kept(gradtx.adam(1e-3), jnp.bfloat16).slots}
    assert found == {"mu": 2, "nu": 4}
