"""Names of roles, there and back, and what is refused."""

import pytest

from residlab.errors import ResidlabError
from residlab.precision.accumulation import PAIRWISE
from residlab.precision.formats import BF16, E4M3FN, FORMATS, FP16, FP32, FP64
from residlab.precision.roles import PRACTICE, Roles


@pytest.mark.parametrize("name", [*FORMATS, *PRACTICE, "q=e4m3fn a=fp16 w=fp32 r=bf16"])
def test_a_name_comes_back(name):
    roles = Roles.named(name, PAIRWISE)
    assert Roles.named(str(roles), PAIRWISE) == roles


def test_letters_are_the_roles():
    roles = Roles.named("r=fp32 q=e4m3fn w=fp16 a=bf16")
    assert roles == Roles(operands=E4M3FN, accumulator=BF16, functions=FP16, stream=FP32)
    assert Roles.named("bf16") == Roles.all(BF16) == Roles(BF16, BF16, BF16, BF16)


@pytest.mark.parametrize(
    "name", ["", "bf17", "q=bf16", "q=bf16 a=bf16 w=bf16 r=bf16 r=bf16", "q=bf16 a=x w=bf16 r=bf16", "BF16"]
)
def test_other_names_are_refused(name):
    with pytest.raises(ResidlabError, match="roles are named by a format"):
        Roles.named(name)


@pytest.mark.parametrize("pair", [(FP64, FP32), (FP16, FP64)])
def test_float64_is_for_both_factors_of_a_product_or_for_none(pair):
    with pytest.raises(ResidlabError, match="for both operands and accumulator or for none"):
        Roles(*pair, FP32, FP32)
