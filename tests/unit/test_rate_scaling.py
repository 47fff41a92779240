"""uf.optimizers.scale_lr (case S-AX-07)."""

import pytest

import unifit as uf
from unifit.errors import ArgumentError


@pytest.mark.parametrize(
    ("batch", "rule", "expected"),
    [
        (64 * 4, "linear", 0.1),  # 64 rows a device, four devices
        (64 * 4 * 2, "linear", 0.2),  # and accumulation 2
        (256, "linear", 0.1),  # the batch does not grow with eight devices
        (1024, "sqrt", 0.2),
        (128, "linear", 0.05),
    ],
)
def test_s_ax_07_rate_follows_the_rows_of_an_update(batch, rule, expected):
    for _ in range(2):  # a resumed run scales the same base rate again
        assert uf.optimizers.scale_lr(0.1, 256, batch, rule) == pytest.approx(expected)


def test_s_ax_07_rate_and_rule_are_said(capfd):
    uf.optimizers.scale_lr(0.1, 256, 512)
    said = capfd.readouterr().err
    assert "0.1" in said and "0.2" in said and "linear" in said and said.count("\n") == 1


def test_s_ax_07_nothing_is_scaled_by_itself():
    assert uf.optimizers.SGD(0.1).learning_rate == 0.1


@pytest.mark.parametrize("bad", [{"base_lr": 0.0}, {"base_batch": -1}, {"batch": True}, {"rule": "cubic"}])
def test_bad_arguments_are_refused(bad):
    with pytest.raises(ArgumentError, match=next(iter(bad))):
        uf.optimizers.scale_lr(**{"base_lr": 0.1, "base_batch": 256, "batch": 512} | bad)
