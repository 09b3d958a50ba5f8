from gradtx.testing.checking import (
    check_gradient_transformation as check_gradient_transformation,
    check_rule as check_rule,
)
from gradtx.testing.report import ContractResult as ContractResult, RuleReport as RuleReport

__all__: list[str]
