"""The former name of ``executor.validation``, which scripts still write."""
