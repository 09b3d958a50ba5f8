"""The optimizer of a record of modded-nanogpt, as one saved configuration.

    python examples/nanogpt_record.py [--out FILE.json]

writes FILE.json, nanogpt_record.json unless given. ``gradtx.from_config(json.loads(text))`` reads
it.

It follows record 46 of https://github.com/KellerJordan/modded-nanogpt (track 3, 2,690 steps,
https://github.com/KellerJordan/modded-nanogpt/pull/328), for parameters whose paths begin with
``embed``, ``head`` and ``blocks``, and matrices of ``(in, out)``, of which those of an attention
are ``blocks/*/attn/q/kernel``, ``k``, ``v`` and ``proj``, and others below ``blocks/*/mlp``. Take
the parameters to evaluate from ``gradtx.eval_params(tx, state, params, weight=0.6)``. The record
itself differs in that

- SOAP's second moment in the bases is that of the momentum, which is Nesterov's, and neither has a
  correction of the bias;
- the cautious decay of weights comes after the radius, and not before the learning rate;
- Adam of vectors has no correction of the bias, and `b2` is 0.9965 or 0.997 for those of biases.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import gradtx

STEPS = 2900
RATIO = 0.3825


LABELS = (
    ("embed*", "embed"),
    ("head*", "head"),
    ("blocks/*/attn/proj/kernel", "outputs"),
    ("blocks/*/attn/[qkv]/kernel", "matrices"),
    ("blocks/*/mlp/*/kernel", "matrices"),
    ("*", "vectors"),
)


class Record:
    """The optimizer, with times in parts of a run as long as the record's.

    Args:
        steps: how many there are; the record's schedules are for 2,900.
        factor: multiplies the learning rates.
        labels: which parameters are in which group.
        averaged: of which the tail is averaged.
    """

    def __init__(
        self,
        steps: int = STEPS,
        factor: float = 1.0,
        labels: Any = LABELS,
        averaged: Any = ("blocks*", "head*"),
    ) -> None:
        self.steps, self.factor, self.labels, self.averaged = steps, factor, labels, averaged

    def at(self, step: int) -> int:
        """The step that a step of the record corresponds to."""
        return round(step * self.steps / STEPS)

    def cooling(self, rate: float, constant: int) -> gradtx.Schedule:
        """A constant rate, then the power 1.2 of the steps that are left."""
        begin = self.at(constant)
        return gradtx.polynomial_schedule(rate, 0.0, 1.2, self.steps - begin, begin)

    def rate(self, rate: float) -> gradtx.Schedule:
        """That of all parameters but the matrices."""
        return self.cooling(self.factor * rate, 1487)

    def matrices(self, *, gated: bool) -> gradtx.GradientTransformation:
        """SOAP, then Muon, with bases that are new at each step, on matrices of a kept radius."""
        rate = self.cooling(self.factor * 0.0375, 514)
        up, down = self.at(300), self.at(STEPS - 200)
        scales = {up: 0.95 / 0.85, down: 1.0, self.steps: 0.85 / 0.95}
        momentum = gradtx.piecewise_interpolate_schedule("linear", 0.85, scales)
        direction = gradtx.scale_by_soap(momentum, 0.9, 1e-8, 0.9, precondition_frequency=1)
        if gated:
            fades, gone = self.at(1375), self.at(1625)
            floor = gradtx.piecewise_interpolate_schedule("linear", 0.45, {fades: 1.0, gone: 0.0})
            cap = gradtx.join_schedules(list(map(gradtx.constant_schedule, (0.85, 1.0))), [gone])
            direction = gradtx.trust_gate(direction, momentum, floor, cap)
        return gradtx.chain(
            direction,
            gradtx.scale_by_muon((2.0, -1.5, 0.5), 12, 0.0, 1e-7, nesterov=False),
            gradtx.scale_by_shape(),
            gradtx.add_cautious_decayed_weights(0.025),
            gradtx.scale_by_learning_rate(rate),
            gradtx.radial_brake(0.5),
            gradtx.floor_update_ratio(gradtx.multiply_schedules(rate, RATIO), each_output=True),
            gradtx.keep_radius(),
        )

    def build(self) -> gradtx.GradientTransformation:
        """The whole optimizer."""
        groups = {
            "embed": gradtx.adam(self.rate(0.3), 0.8, 0.99, 1e-10),
            "head": gradtx.adam(self.rate(1 / 320), 0.8, 0.99, 1e-10),
            "outputs": self.matrices(gated=True),
            "matrices": self.matrices(gated=False),
            "vectors": gradtx.adam(self.rate(0.01), 0.8, 0.99, 1e-10),
        }
        stretch = STEPS / self.steps
        parts = list(map(gradtx.constant_schedule, (0.0, 1.0, 0.0)))
        ahead = gradtx.join_schedules(parts, [self.at(300), self.at(STEPS - 950)])
        average = gradtx.ema_params(1 - 1 / max(self.at(150), 1), start=self.at(2400))
        return gradtx.chain(
            gradtx.partition(groups, list(self.labels)),
            gradtx.ema_nesterov(
                gradtx.multiply_schedules(self.cooling(0.3, 1487), ahead), 0.99**stretch
            ),
            gradtx.masked(average, list(self.averaged)),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    text = json.dumps(gradtx.to_config(Record().build()), indent=1)
    parser.parse_args().out.write_text(text + "\n")


if __name__ == "__main__":
    main()
