"""Diagnosis: what makes a measured step differ from its prediction, and where; judged by simulating it."""

from simpar.diagnosis.cause import Cause as Cause
from simpar.diagnosis.cause import CauseKind as CauseKind
from simpar.diagnosis.diagnose import Diagnosis as Diagnosis
from simpar.diagnosis.diagnose import diagnose as diagnose
from simpar.diagnosis.sentence import diagnosis_to_dict as diagnosis_to_dict
from simpar.diagnosis.sentence import sentence as sentence

__all__ = ['Cause', 'CauseKind', 'Diagnosis', 'diagnose', 'diagnosis_to_dict', 'sentence']
