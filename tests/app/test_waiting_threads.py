"""The dashboard's threads sleep while they wait, unless the user decides otherwise."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("given", "want"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_the_wait_policy_is_set_before_torch_is_there(given, want):
    env = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    env |= {"OMP_WAIT_POLICY": given} if given else {}
    code = "import app.lab, os, sys; assert 'torch' not in sys.modules; print(os.environ['OMP_WAIT_POLICY'])"
    out = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert out.stdout.split() == [want]
