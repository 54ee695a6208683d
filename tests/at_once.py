"""Functions in threads of their own, all at once."""

from concurrent.futures import ThreadPoolExecutor


def at_once(*functions):
    """What each gives, in their order; an error is raised here."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [one.result() for one in [pool.submit(function) for function in functions]]
