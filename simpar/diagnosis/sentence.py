"""The sentence that names a cause."""

from simpar.diagnosis.diagnose import Diagnosis


def sentence(diagnosis: Diagnosis) -> str:
    """placeholder"""
    return str(diagnosis.causes)
