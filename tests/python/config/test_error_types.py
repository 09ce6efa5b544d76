# SPDX-License-Identifier: Apache-2.0
"""The exception types, and the properties that callers may rely on."""

from __future__ import annotations

from agspeed import errors


def test_one_base_catches_everything():
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), errors.AgspeedError)


def test_the_callers_fault_is_a_value_error():
    assert issubclass(errors.UserError, ValueError)
    assert not issubclass(errors.InternalError, ValueError)


def test_a_wrong_type_is_a_type_error_too():
    assert issubclass(errors.UserTypeError, errors.UserError)
    assert issubclass(errors.UserTypeError, TypeError)
    assert not issubclass(errors.UserError, TypeError)
