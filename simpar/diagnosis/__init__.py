"""Diagnosis: what makes a measured step differ from its prediction, and where; judged by simulating it."""

from simpar.diagnosis.causes import Cause, CauseKind, Diagnosis, diagnose, diagnosis_to_dict, sentence
