"""Calibration: the record of ``python -m executor.bench`` becomes a profile of the machine it was made on."""

from simpar.calibrate.profile import Calibration, calibrate, require_profile_path, write_profile
from simpar.calibrate.record import Record, load_record
