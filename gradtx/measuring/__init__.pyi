# What is measured of a run, and settings that were.

from gradtx.inspection.movement import unmoved as unmoved
from gradtx.inspection.noise_scale import NoiseScale as NoiseScale, noise_scale as noise_scale
from gradtx.inspection.rate_law import RateLaw as RateLaw, fit_rate_law as fit_rate_law
from gradtx.inspection.tuned import TunedSettings as TunedSettings, tuned_settings as tuned_settings
from gradtx.training.coordinates import (
    CoordinateCheck as CoordinateCheck,
    coordinate_check as coordinate_check,
)
from gradtx.training.plots import plot_runs as plot_runs
from gradtx.training.rates import RateSweep as RateSweep, find_rate as find_rate
